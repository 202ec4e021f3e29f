"""The etcd and the broker of a chaos run: killed and restarted on their data, at their addresses."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from broadsheet.broker.fragments import STORED_SUFFIX
from broadsheet.embedded.broker import EmbeddedBrokerProcess
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from tests.chaos.cluster_plan import ClusterPlan
from tests.chaos.schedule import Fault, FaultKind
from tests.support.etcd_users import add_user, enable_users

USER, PASSWORD = "chaos", "chaos-secret"
PREFIXES = ("/chaos/", "/broadsheet.v1/chaos/", "/stream-sum/hints/", "/chaos.clusters/")
"""Keys that members need: of their root, of what the allocator keeps beside it, of their shards' hints, and on Spark of
their cluster.
"""
TOKEN_SECONDS = 2
"""Life of a token that is not used."""
STORE = "file:///chaos/"
_OF_ETCD = (FaultKind.ETCD, FaultKind.ETCD_LONG)


class ChaosServices:
    """One etcd with users, one broker with a fragment store. A context manager, outside of any event loop."""

    def __init__(self, directory: Path) -> None:
        """Keep data and logs below `directory`."""
        self.etcd = EmbeddedEtcdProcess(
            directory / "etcd",
            listen="tcp",
            # Tokens end while members are frozen or cut off; logins are cheap.
            arguments=("--auth-token-ttl", str(TOKEN_SECONDS), "--bcrypt-cost", "4"),
        )
        self._broker_directory = directory / "broker"
        self._fragments = directory / "fragments"
        self.broker = EmbeddedBrokerProcess(
            self._broker_directory, arguments=("--file-root", str(self._fragments))
        )
        self._broker_log = directory / "broker.log"
        self.fragments_lost = 0
        """Files that the broker lost, and has in its store alone."""
        self._locks: dict[object, asyncio.Lock] = {
            self.etcd: asyncio.Lock(),
            self.broker: asyncio.Lock(),
        }

    async def restart(self, fault: Fault) -> None:
        """Kill one of them, and start it again after a while; one that is down already is so for longer."""
        server = self.etcd if fault.kind in _OF_ETCD else self.broker
        async with self._down(server):
            if fault.kind is FaultKind.BROKER_DISK:
                await asyncio.to_thread(self._lose_stored_fragments)
            await asyncio.sleep(fault.lasts_seconds)

    def _lose_stored_fragments(self) -> None:
        """Remove the broker's own files of all fragments that are in the store."""
        for record in self._broker_directory.rglob(f"*{STORED_SUFFIX}"):
            fragment = record.with_suffix("")
            if fragment.exists():
                fragment.unlink()
                self.fragments_lost += 1

    async def lose_broker_disk(self) -> None:
        """Kill the broker, and start it on an empty disk; its store stays."""
        async with self._down(self.broker):
            await asyncio.to_thread(shutil.rmtree, self._broker_directory)

    def plan(self, directory: Path, **options: Any) -> ClusterPlan:
        """Return a plan of members that use these services. `Any`: options of the plan differ in type."""
        return ClusterPlan(
            etcd_endpoint=self.etcd.endpoint,
            broker_address=self.broker.address,
            etcd_user=USER,
            etcd_password=PASSWORD,
            fragment_store=STORE,
            directory=directory,
            **options,
        )

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
        self._fragments.mkdir()
        self.etcd.start()
        try:
            add_user(self.etcd.endpoint, USER, PASSWORD, PREFIXES)
            enable_users(self.etcd.endpoint)
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
