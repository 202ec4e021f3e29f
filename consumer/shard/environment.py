"""What a member process gives each of its shards: the application, the services around it, and the limits.

One `ShardEnvironment` serves every shard of the process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol

from allocator.core.keys import Keys
from allocator.etcd.api import Etcd
from allocator.runtime.clock import Clock
from consumer.application import Application
from consumer.journal.client import JournalClient
from consumer.shard.metrics import ShardMetrics


class RevisionWaiter(Protocol):
    """The part of the key space that a shard needs: to read back what it wrote."""

    async def wait_for_revision(self, revision: int) -> None:
        """Return once the mirror has applied `revision` or a later one."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardConfig:
    """Limits of every shard of a process."""

    stop_grace_seconds: float = 10.0
    """A stopping shard may finish its transaction for so long; then it is aborted."""
    teardown_seconds: float = 15.0
    """Longest wait for holders, a running callback and the store's destruction, each."""
    restart_delay_seconds: float = 0.5
    """Upper bound of the delay before the second attempt; it doubles with each failure."""
    restart_delay_seconds_max: float = 30.0
    healthy_seconds: float = 60.0
    """A primary that served for so long has its restart delay reset."""
    publish_clock_delta_seconds: float = 0.0
    """Added to the wall clock that stamps published messages. Only tests and recoveries of old data change it."""
    input_bytes_max: int = 32 << 20
    """What a shard may read ahead, bytes of journal; the spec's `read_channel_size` bounds the messages."""
    publish_bytes_max: int = 64 << 20
    """Published bytes that wait for the broker; above it the application is not called."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardEnvironment:
    """What a shard runs in."""

    # The application's store type is its own business; the runtime passes the store back and forth unseen.
    application: Application[Any]
    journals: JournalClient
    etcd: Etcd
    keys: Keys
    key_space: RevisionWaiter
    clock: Clock
    metrics: ShardMetrics
    config: ShardConfig = field(default_factory=ShardConfig)
    new_random: Callable[[], Random] = Random
    """Makes the source of jitter of a shard's back-off."""
