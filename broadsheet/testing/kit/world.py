"""The port of a cluster: what `TestCluster` asks of a virtual or a real one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from broadsheet.consumer.shard.live_shard import LiveShard
from broadsheet.journals.client import JournalClient
from broadsheet.wire.journal_pb2 import JournalSpec
from broadsheet.wire.shard_pb2 import ShardSpec


class World(Protocol):
    """A broker, an etcd, and members of an application. All methods run on the cluster's loop."""

    journals: JournalClient
    """The client of the test itself, without faults; set by `start`."""

    @property
    def look_seconds(self) -> float:
        """Pause between two looks at the shards."""
        ...

    @property
    def wall_seconds(self) -> float:
        """Seconds since the Unix epoch, as members see them."""
        ...

    async def start(self) -> None:
        """Start what is needed before the first member."""
        ...

    async def stop(self) -> None:
        """End everything."""
        ...

    async def create_journals(self, specs: Sequence[JournalSpec]) -> None:
        """Create journals, or update existing ones."""
        ...

    async def apply_shards(self, specs: Sequence[ShardSpec]) -> None:
        """Create shards, or update existing ones."""
        ...

    def shards(self) -> Mapping[str, ShardSpec]:
        """Return all shards, by id."""
        ...

    def primary_of(self, shard: str) -> LiveShard | None:
        """Return the live shard of the running process that is assigned to be its primary."""
        ...

    async def heads(self) -> Mapping[str, int]:
        """Return the write heads of all journals, bytes by name."""
        ...

    async def kill_primary(self, shard: str) -> None:
        """Kill the process of a shard's primary, and let another take the shard."""
        ...

    async def hand_over(self, shard: str) -> None:
        """Move a shard from its running primary to another process."""
        ...

    async def settle_deaths(self) -> None:
        """Let others take the shards of processes that were killed at a step."""
        ...
