"""The broker's door: members and producers come through it, and one member's process can be cut off from the broker."""

from __future__ import annotations

import asyncio
import socket
from types import TracebackType
from typing import Self

import psutil

from broadsheet.runtime.task_group import TaskGroup

_READ_BYTES = 1 << 16


class _Passage:
    """One connection, both ways."""

    def __init__(self, port: int) -> None:
        self.port = port
        """Of the client."""
        self.flows = asyncio.Event()
        self.flows.set()


class BrokerDoor:
    """Forwards connections to the broker; those of processes that are cut off stay open, and nothing comes through.

    As where a switch drops packets: nobody is told. An async context manager.
    """

    def __init__(self, broker_address: str) -> None:
        """Name the broker, `http://host:port`."""
        host, _, port = broker_address.removeprefix("http://").rpartition(":")
        self._host, self._port = host, int(port)
        self._passages: set[_Passage] = set()
        self._cut_off: set[int] = set()
        self._server: asyncio.Server | None = None
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.address = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        """Where members find the broker."""

    def cut_off(self, pid: int) -> None:
        """Let nothing of a process through, either way, until it is let in."""
        self._cut_off.add(pid)
        ports = _ports_of(pid)
        for passage in self._passages:
            if passage.port in ports:
                passage.flows.clear()

    def let_in(self, pid: int) -> None:
        """Let through what a process sends, what was held included."""
        self._cut_off.discard(pid)
        still = set().union(*map(_ports_of, self._cut_off))
        for passage in self._passages:
            if passage.port not in still:
                passage.flows.set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, sock=self._socket)
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        assert self._server is not None
        self._server.close()
        for passage in self._passages:
            passage.flows.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        passage = _Passage(writer.get_extra_info("peername")[1])
        if any(passage.port in _ports_of(pid) for pid in self._cut_off):
            passage.flows.clear()
        self._passages.add(passage)
        try:
            await passage.flows.wait()
            broker_reader, broker_writer = await asyncio.open_connection(self._host, self._port)
            try:
                async with TaskGroup() as group:
                    for source, sink in ((reader, broker_writer), (broker_reader, writer)):
                        group.start_soon(_pump(group, source, sink, passage), name="pump")
            finally:
                broker_writer.transport.abort()
        except OSError:
            pass  # The broker is down.
        finally:
            self._passages.discard(passage)
            writer.transport.abort()


async def _pump(
    group: TaskGroup, source: asyncio.StreamReader, sink: asyncio.StreamWriter, passage: _Passage
) -> None:
    try:
        while data := await source.read(_READ_BYTES):
            await passage.flows.wait()
            sink.write(data)
            await sink.drain()
    except ConnectionError:
        pass
    group.stop()


def _ports_of(pid: int) -> set[int]:
    """Return the local ports of a process's connections; none if it is gone."""
    try:
        return {each.laddr.port for each in psutil.Process(pid).net_connections("tcp")}
    except psutil.Error:
        return set()
