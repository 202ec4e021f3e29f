"""A broker that single processes of this machine can be cut off from, without a word: their packets go nowhere."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from broadsheet.embedded.broker import EmbeddedBrokerProcess
from broadsheet.runtime.task_group import TaskGroup

CHUNK_BYTES = 1 << 18


@dataclass(slots=True)
class CuttableBroker:
    """A broker behind a proxy on a thread of its own."""

    target: str
    """Of the broker itself, `host:port`."""
    address: str = ""
    """Of the proxy."""
    cut_pids: set[int] = field(default_factory=set)
    _flowing: asyncio.Event = field(default_factory=asyncio.Event)
    _loop: asyncio.AbstractEventLoop | None = None
    _stop: asyncio.Event = field(default_factory=asyncio.Event)
    _ready: threading.Event = field(default_factory=threading.Event)

    def cut(self, pid: int) -> None:
        """Forward nothing more to and from a process."""
        self._in_loop(lambda: self.cut_pids.add(pid))

    def heal(self) -> None:
        """Forward everything again, what was held included."""
        self._in_loop(self._heal)

    def _heal(self) -> None:
        self.cut_pids.clear()
        self._flowing.set()
        self._flowing = asyncio.Event()

    def _in_loop(self, action: object) -> None:
        assert self._loop is not None, "it runs"
        assert callable(action)
        self._loop.call_soon_threadsafe(action)

    def run(self) -> None:
        """Serve until `stop`."""
        asyncio.run(self._run())

    def stop(self) -> None:
        """End `run`."""
        self._in_loop(self._stop.set)

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        async with TaskGroup() as group:

            def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                group.start_soon(self._serve(reader, writer), name="proxied connection")

            server = await asyncio.start_server(accept, "127.0.0.1", 0)
            self.address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            self._ready.set()
            await self._stop.wait()
            server.close()
            group.stop()

    def wait_until_ready(self) -> None:
        """Wait until it listens."""
        self._ready.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pid = await asyncio.to_thread(_pid_at, writer.get_extra_info("peername")[1])
        host, _, port = self.target.rpartition(":")
        try:
            there_reader, there_writer = await asyncio.open_connection(host, int(port))
        except OSError:
            writer.transport.abort()
            return
        try:
            async with TaskGroup() as pumps:
                for source, sink in ((reader, there_writer), (there_reader, writer)):
                    pumps.start_soon(self._pump(pumps, pid, source, sink), name="pump")
        finally:
            writer.transport.abort()
            there_writer.transport.abort()

    async def _pump(
        self,
        group: TaskGroup,
        pid: int,
        source: asyncio.StreamReader,
        sink: asyncio.StreamWriter,
    ) -> None:
        try:
            while data := await source.read(CHUNK_BYTES):
                while pid in self.cut_pids:
                    await self._flowing.wait()
                sink.write(data)
                await sink.drain()
        except ConnectionError:
            pass
        group.stop()


def _pid_at(port: int) -> int:
    """Return the process whose connection begins at a port of this machine; 0 if there is none."""
    for each in psutil.net_connections("tcp"):
        if each.laddr and each.laddr.port == port and each.pid:
            return int(each.pid)
    return 0


@contextmanager
def cuttable_broker(data_dir: Path) -> Iterator[CuttableBroker]:
    """Run a broker and the proxy before it."""
    with EmbeddedBrokerProcess(data_dir) as process:
        broker = CuttableBroker(process.address.removeprefix("http://"))
        thread = threading.Thread(target=broker.run, name="cuttable broker", daemon=True)
        thread.start()
        broker.wait_until_ready()
        try:
            yield broker
        finally:
            broker.stop()
            thread.join()
