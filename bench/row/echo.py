"""The cost of a message by transport: an echo of 400 bytes over one open stream.

    echo_cpu_ms     processor time a message, of client and server, over gRPC for asyncio (`transport` = grpc) and over
                    length-prefixed frames of an asyncio protocol (stream)
    echo_p50_ms     round trip

Both run in turn, and each figure is the lowest of the rounds. The difference bounds what another transport of journals
could save; see docs/adr/0018-keep-grpc-for-rows.md. The client's time has its own timer in it, about 0.15 ms at 200/s.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias, cast

import grpc
import psutil

from bench.report import Params, emit
from broadsheet.embedded.broker import package_environment
from broadsheet.embedded.child_process import ChildProcess
from broadsheet.runtime.event_loop import run as run_on_uvloop

PAYLOAD = b"x" * 400
MESSAGES_PER_SECOND = 200
START_SECONDS = 20.0
_LENGTH_BYTES = 4
_METHOD = "/bare/echo"
Call: TypeAlias = "Callable[[bytes], Awaitable[bytes]]"


@dataclass(frozen=True, slots=True)
class _Echo:
    """One measurement; times are seconds a message."""

    client_cpu: float
    server_cpu: float
    round_trip: float
    """The median."""


class _Frames(asyncio.Protocol):
    """Four bytes of length, then the message."""

    def __init__(self, on_message: Callable[[_Frames, bytes], None]) -> None:
        self._on_message = on_message
        self._buffer = bytearray()
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # Not by `isinstance`, because uvloop's transports are no subclasses of asyncio's.
        self._transport = cast("asyncio.WriteTransport", transport)

    def send(self, message: bytes) -> None:
        assert self._transport is not None, "connected"
        self._transport.write(len(message).to_bytes(_LENGTH_BYTES) + message)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while len(self._buffer) >= _LENGTH_BYTES:
            end = _LENGTH_BYTES + int.from_bytes(self._buffer[:_LENGTH_BYTES])
            if len(self._buffer) < end:
                return
            message = bytes(self._buffer[_LENGTH_BYTES:end])
            del self._buffer[:end]
            self._on_message(self, message)


async def _serve_grpc() -> None:
    async def echo(requests: AsyncIterator[bytes], _: object) -> AsyncIterator[bytes]:
        async for message in requests:
            yield message

    server = grpc.aio.server()
    _, service, name = _METHOD.split("/")
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        name: grpc.stream_stream_rpc_method_handler(echo)
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"listening {port}", flush=True)
    await server.wait_for_termination()


async def _serve_frames() -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Frames(_Frames.send), "127.0.0.1", 0)
    print(f"listening {server.sockets[0].getsockname()[1]}", flush=True)
    await server.serve_forever()


@asynccontextmanager
async def _call_grpc(port: int) -> AsyncIterator[Call]:
    async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
        stream: grpc.aio.StreamStreamCall[bytes, bytes] = channel.stream_stream(_METHOD)()

        async def call(message: bytes) -> bytes:
            await stream.write(message)
            answer = await stream.read()
            assert isinstance(answer, bytes), "the server ended the stream"
            return answer

        yield call
        stream.cancel()


@asynccontextmanager
async def _call_frames(port: int) -> AsyncIterator[Call]:
    loop = asyncio.get_running_loop()
    answers: list[asyncio.Future[bytes]] = []
    transport, frames = await loop.create_connection(
        lambda: _Frames(lambda _, message: answers.pop().set_result(message)), "127.0.0.1", port
    )

    async def call(message: bytes) -> bytes:
        answer: asyncio.Future[bytes] = loop.create_future()
        answers.append(answer)
        frames.send(message)
        return await answer

    yield call
    transport.close()


_TRANSPORTS = ("grpc", "stream")


def measure(bench: str, *, rounds: int, seconds: float) -> None:
    """Measure both transports in turn, and print the figures."""
    found: dict[str, list[_Echo]] = {transport: [] for transport in _TRANSPORTS}
    with tempfile.TemporaryDirectory(prefix="echo-") as directory:
        for _ in range(rounds):
            for transport, echoes in found.items():
                with _server(transport, Path(directory)) as (pid, port):
                    echoes.append(run_on_uvloop(_drive(transport, pid, port, seconds)))
    for transport, echoes in found.items():
        params: Params = {"transport": transport, "messages_per_s": MESSAGES_PER_SECOND}
        for process, lowest in (
            ("client", min(each.client_cpu for each in echoes)),
            ("server", min(each.server_cpu for each in echoes)),
        ):
            emit(bench, "echo_cpu_ms", lowest * 1e3, "ms", process=process, **params)
        fastest = min(each.round_trip for each in echoes)
        emit(bench, "echo_p50_ms", fastest * 1e3, "ms", **params)


async def _drive(transport: str, pid: int, port: int, seconds: float) -> _Echo:
    connect = _call_grpc if transport == "grpc" else _call_frames
    count = round(MESSAGES_PER_SECOND * seconds)
    async with connect(port) as call:
        await call(PAYLOAD)  # Connects.
        trips: list[float] = []
        client, server = _cpu_seconds(None), _cpu_seconds(pid)
        due = time.perf_counter()
        for _ in range(count):
            # Late messages are not made up for: messages in a burst cost less than those that come alone.
            due = max(due + 1 / MESSAGES_PER_SECOND, time.perf_counter())
            await asyncio.sleep(due - time.perf_counter())
            began = time.perf_counter()
            await call(PAYLOAD)
            trips.append(time.perf_counter() - began)
        spent = _cpu_seconds(None) - client, _cpu_seconds(pid) - server
    return _Echo(spent[0] / count, spent[1] / count, sorted(trips)[count // 2])


def _cpu_seconds(pid: int | None) -> float:
    times = psutil.Process(pid).cpu_times()
    return float(times.user + times.system)


@contextmanager
def _server(transport: str, directory: Path) -> Iterator[tuple[int, int]]:
    """Run a server in a process of its own; yield its process id and its port."""
    log_file = directory / f"{transport}.log"
    log_file.unlink(missing_ok=True)
    child = ChildProcess(
        [sys.executable, "-m", "bench.row.echo", transport],
        directory=Path.cwd(),
        log_file=log_file,
        environment=package_environment(),
    )
    try:
        deadline = time.monotonic() + START_SECONDS
        while not (said := log_file.read_text() if log_file.exists() else "").endswith("\n"):
            if child.exit_code is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the echo server does not serve: {said}")
            time.sleep(0.02)
        yield child.pid, int(said.split()[-1])
    finally:
        child.kill()


if __name__ == "__main__":
    run_on_uvloop(_serve_grpc() if sys.argv[1] == "grpc" else _serve_frames())
