"""A TCP proxy that can fall silent or break, for faults between a client and a healthy server."""

from __future__ import annotations

import asyncio
from collections import deque
from types import TracebackType
from typing import Self

from broadsheet.runtime.task_group import TaskGroup


class TcpProxy:
    """Forwards connections of a free port to a target, until told not to."""

    def __init__(self, target: str) -> None:
        """Name the target, `host:port`."""
        host, _, port = target.rpartition(":")
        self._host, self._port = host, int(port)
        self._requests_flow, self._answers_flow = asyncio.Event(), asyncio.Event()
        self.thaw()
        self._server: asyncio.Server | None = None
        self._listen_port = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self.delay_seconds = 0.0
        """How long what is forwarded takes, each way; what was sent before stays before."""
        self.connections = 0
        """Connections accepted so far."""
        self.bytes_answered = 0
        """Forwarded from the target to clients so far."""

    def lead_to(self, target: str) -> None:
        """Forward the connections that come from now on to another target, `host:port`."""
        host, _, port = target.rpartition(":")
        self._host, self._port = host, int(port)

    @property
    def endpoint(self) -> str:
        """Where to connect, `127.0.0.1:PORT`."""
        return f"127.0.0.1:{self._listen_port}"

    def freeze(self) -> None:
        """Keep every connection, accept new ones, and forward nothing."""
        self._requests_flow.clear()
        self._answers_flow.clear()

    def freeze_answers(self) -> None:
        """Forward what the client sends, and nothing of what it is answered."""
        self._answers_flow.clear()

    def thaw(self) -> None:
        """Forward again, what was held included."""
        self._requests_flow.set()
        self._answers_flow.set()

    async def cut(self) -> None:
        """Break every connection and refuse new ones."""
        if self._server is not None:
            self._server.close()
            for writer in tuple(self._writers):
                writer.transport.abort()
            await self._server.wait_closed()
            self._server = None

    async def heal(self) -> None:
        """Accept connections again, at the same endpoint."""
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._listen_port)
        self._listen_port = self._server.sockets[0].getsockname()[1]

    async def __aenter__(self) -> Self:
        await self.heal()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.thaw()
        await self.cut()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            target_reader, target_writer = await asyncio.open_connection(self._host, self._port)
        except OSError:
            writer.transport.abort()
            return
        self._writers |= {writer, target_writer}
        try:
            async with TaskGroup() as group:
                requests = self._pump(group, reader, target_writer, self._requests_flow)
                answers = self._pump(group, target_reader, writer, self._answers_flow)
                group.start_soon(requests, name="pump requests")
                group.start_soon(answers, name="pump answers")
        finally:
            self._writers -= {writer, target_writer}
            writer.transport.abort()
            target_writer.transport.abort()

    async def _pump(
        self,
        group: TaskGroup,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
        flow: asyncio.Event,
    ) -> None:
        late = _LateWriter(sink)
        try:
            while data := await source.read(65_536):
                await flow.wait()
                late.write(data, self.delay_seconds)
                if flow is self._answers_flow:
                    self.bytes_answered += len(data)
                await sink.drain()
        except ConnectionError:
            pass
        group.stop()


class _LateWriter:
    """Writes what it is given after a while, in order whatever the delays."""

    def __init__(self, sink: asyncio.StreamWriter) -> None:
        self._sink = sink
        self._loop = asyncio.get_running_loop()
        self._waiting: deque[bytes] = deque()
        self._due = 0.0
        """When the last of it is written, by the loop's time."""

    def write(self, data: bytes, delay_seconds: float) -> None:
        now = self._loop.time()
        self._due = max(self._due, now + delay_seconds)
        if not self._waiting and self._due <= now:
            self._sink.write(data)
            return
        self._waiting.append(data)
        # Timers of one instant come in any order, and each writes the oldest.
        self._loop.call_at(self._due, self._write_next)

    def _write_next(self) -> None:
        self._sink.write(self._waiting.popleft())
