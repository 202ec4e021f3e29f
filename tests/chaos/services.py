"""The etcd and the broker of a chaos run: killed and restarted on their data, at their addresses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from broadsheet.consumer.embedded.broker import EmbeddedBrokerProcess
from broadsheet.consumer.embedded.etcd import EmbeddedEtcdProcess
from tests.chaos.schedule import Fault, FaultKind


class ChaosServices:
    """One etcd, one broker. A context manager, outside of any event loop."""

    def __init__(self, directory: Path) -> None:
        """Keep data and logs below `directory`."""
        self.etcd = EmbeddedEtcdProcess(directory / "etcd", listen="tcp")
        self.broker = EmbeddedBrokerProcess(directory / "broker")
        self._broker_log = directory / "broker.log"
        self._locks: dict[object, asyncio.Lock] = {
            self.etcd: asyncio.Lock(),
            self.broker: asyncio.Lock(),
        }

    async def restart(self, fault: Fault) -> None:
        """Kill one of them, and start it again after a while; one that is down already is so for longer."""
        server = self.broker if fault.kind is FaultKind.BROKER else self.etcd
        async with self._down(server):
            await asyncio.sleep(fault.lasts_seconds)

    @asynccontextmanager
    async def etcd_down(self) -> AsyncIterator[None]:
        """Keep etcd down within the block."""
        async with self._down(self.etcd):
            yield

    @asynccontextmanager
    async def _down(
        self, server: EmbeddedEtcdProcess | EmbeddedBrokerProcess
    ) -> AsyncIterator[None]:
        async with self._locks[server]:
            await asyncio.to_thread(server.kill)
            try:
                yield
            finally:
                await asyncio.to_thread(server.restart)

    @property
    def broker_pid(self) -> int:
        """The broker's process."""
        return self.broker.pid

    def logs(self) -> dict[str, str]:
        """What they have written."""
        broker = self._broker_log.read_text(errors="replace") if self._broker_log.exists() else ""
        return {"etcd": self.etcd.log_tail, "broker": broker}

    def __enter__(self) -> Self:
        self.etcd.start()
        try:
            self.broker.start()
        except BaseException:
            self.etcd.stop()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.broker.stop()
        self.etcd.stop()
