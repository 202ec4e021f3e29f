"""The bare machinery below our servers: gRPC handlers that do nothing. Run as a process of its own.

python -m bench.bare_server      prints `listening 127.0.0.1:PORT`
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc.aio

from broadsheet.embedded.broker import package_environment
from broadsheet.embedded.child_process import ChildProcess

START_SECONDS = 20.0
OPTIONS = [("grpc.max_receive_message_length", 16 << 20)]


async def _swallow(requests: AsyncIterator[bytes], context: object) -> bytes:
    total = 0
    async for chunk in requests:
        total += len(chunk)
    return str(total).encode()


async def _pour(request: bytes, context: object) -> AsyncIterator[bytes]:
    chunk_bytes, count = (int(part) for part in request.split())
    chunk = b"x" * chunk_bytes
    for _ in range(count):
        yield chunk


async def _echo(request: bytes, context: object) -> bytes:
    return request


async def serve() -> None:
    """Serve `/bare/swallow`, `/bare/pour` and `/bare/echo` until killed."""
    server = grpc.aio.server(options=OPTIONS)
    handlers: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {
        "swallow": grpc.stream_unary_rpc_method_handler(_swallow),
        "pour": grpc.unary_stream_rpc_method_handler(_pour),
        "echo": grpc.unary_unary_rpc_method_handler(_echo),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("bare", handlers),))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    print(f"listening 127.0.0.1:{port}", flush=True)
    await server.wait_for_termination()


@contextmanager
def bare_server(directory: Path) -> Iterator[str]:
    """Run the server in a process of its own; yield its address."""
    log_file = directory / "bare_server.log"
    child = ChildProcess(
        [sys.executable, "-m", "bench.bare_server"],
        directory=Path.cwd(),
        log_file=log_file,
        environment=package_environment(),
    )
    try:
        deadline = time.monotonic() + START_SECONDS
        while "listening " not in (text := log_file.read_text() if log_file.exists() else ""):
            if child.exit_code is not None or time.monotonic() > deadline:
                raise RuntimeError(f"the bare server did not start: {text}")
            time.sleep(0.02)
        yield text.split("listening ")[1].split()[0]
    finally:
        child.kill()


if __name__ == "__main__":
    asyncio.run(serve())
