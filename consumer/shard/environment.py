"""Environment of a process's shards: the application, the services around it, and the limits.

One `ShardEnvironment` serves every shard of the process.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Protocol

from broadsheet.allocator.etcd.api import Etcd
from broadsheet.allocator.keys import Keys
from broadsheet.allocator.leader.move_log import MoveLog
from broadsheet.consumer.application import Application
from broadsheet.consumer.direct.record_intents import INTENT_BYTES_MAX
from broadsheet.consumer.elastic.flip import Rest
from broadsheet.consumer.shard.crash_loop import CrashHistory
from broadsheet.consumer.shard.input_queue import ReadAhead
from broadsheet.consumer.shard.metrics import ShardMetrics
from broadsheet.consumer.shard.rollback.records import RollbackRecords
from broadsheet.consumer.shard.supervision import RestartPolicy
from broadsheet.consumer.shard.worker import ShardThread, ShardWorker
from broadsheet.journals.append_fence import WriterEpochRegister
from broadsheet.journals.append_service import AppendService
from broadsheet.journals.client import JournalClient
from broadsheet.journals.guard import HEAD_PATIENCE_SECONDS
from broadsheet.journals.message.clock_watch import CLOCK_AHEAD_SECONDS
from broadsheet.journals.message.publisher import CARRIED_BYTES_MAX
from broadsheet.journals.message.sequencer import PRODUCERS_BYTES_MAX
from broadsheet.journals.pipelining import TokenSource
from broadsheet.runtime.clock import Clock
from broadsheet.wire.elastic_pb2 import PrepareForkRequest


class RevisionWaiter(Protocol):
    """The part of the key space that lets a shard read its own writes."""

    async def wait_for_revision(self, revision: int) -> None:
        """Return once the mirror has applied `revision` or a later one."""
        ...


class WriteReader(RevisionWaiter, Protocol):
    """The part of the key space that lets a shard read writes for which others wait."""

    async def read_back(self, revision: int) -> None:
        """Return once the mirror has applied our own write at `revision`, which is not held back with others."""
        ...


class ParentCaller(Protocol):
    """Reaches the primary of a shard that is split or absorbed, wherever it is."""

    async def prepare(self, request: PrepareForkRequest, *, timeout_seconds: float) -> Rest:
        """Have it rest; return its assignment, and where it stands.

        Raises:
            SplitDelayedError: it does not rest now, or has no primary.
            EndpointError: its member cannot be reached.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardConfig:
    """Limits of every shard of a process."""

    stop_grace_seconds: float = 10.0
    """A stopping shard may finish its transaction for so long; then it is aborted."""
    hand_over_seconds: float = 5.0
    """A primary whose successor is named serves on until that has fenced it, for so long at most."""
    teardown_seconds: float = 15.0
    """Longest wait for holders, a running callback and the store's destruction, each."""
    restart_delay_seconds: float = 0.5
    """Upper bound of the delay before the second attempt; it doubles with each failure."""
    restart_delay_seconds_max: float = 30.0
    healthy_seconds: float = 60.0
    """A primary that served for so long has its restart delay reset."""
    attempts_max: int = 12
    """Failures of the application in a row after which a shard is quarantined; 0: never."""
    poison_attempts: int = 3
    """Failures in a row at one message after which it goes to the shard's dead-letter journal, if it has one."""
    quarantine_seconds: float = 900.0
    """A quarantined shard is tried again after this; 0: only once its spec changes or it is assigned again. A promotion
    is an assignment, too."""
    young_deaths_max: int = 3
    """A shard whose last so many primaries died with their process before `healthy_seconds` is held back; 0: never."""
    hold_seconds: float = 5.0
    """For how long, at first; it doubles with each further death. Short, because machines die in rows, too."""
    stall_seconds: float = 300.0
    """A primary with work that stands still for so long is reported as stalled; 0: never."""
    stall_hand_over: bool = False
    """Whether a stalled primary gives its assignment up, so that another member takes the shard."""
    unavailable_seconds: float = 2.5
    """A primary whose broker does not answer, or not its appends, for so long says UNAVAILABLE, and gives its shard to
    a standby that reaches the broker; 0: never. More than a restart of the broker takes."""
    hints_seconds: float = 300.0
    """Age at which a primary replaces the hints of its recovery log, if it recorded anything since."""
    hints_bytes: int = 64 << 20
    """Recorded bytes after which it does so before that time: what a recovery reads in vain is bounded by this."""
    rollback_again_seconds: float = 60.0
    """How long after its start a primary undoes what former ones left a second time: longer than a lease lasts, for a
    process that slept may publish before it learns that its lease is over."""
    head_patience_seconds: float = HEAD_PATIENCE_SECONDS
    """How long a source's write head may be below what the shard has read before the source counts as having gone back.
    It must outlast the lease of a crashed broker (20 s for Gazette's by default), because until then a replica that was
    assigned in its place shows an old head."""
    publish_clock_delta_seconds: float = 0.0
    """Added to the wall clock that stamps published messages. Only tests and recoveries of old data change it."""
    clock_ahead_seconds: float = CLOCK_AHEAD_SECONDS
    """A message that is stamped with a time so far ahead of this process's clock is told of: its producer's clock is
    wrong."""
    refuse_clocks_ahead: bool = False
    """Whether it is refused, too, like a message at which the application fails."""
    input_bytes_max: int = 32 << 20
    """What a shard may read ahead, bytes of journal; the spec's `read_channel_size` bounds the messages."""
    member_input_bytes_max: int = 256 << 20
    """What all shards of the process together may read ahead, in equal parts, bytes of journal; each may hold one batch
    (at most 1 MiB, or one message) whatever its part."""
    publish_bytes_max: int = 64 << 20
    """Published bytes that wait for the broker; above it the application is not called."""
    producers_bytes_max: int = PRODUCERS_BYTES_MAX
    """Memory of the producers that a shard knows, in all its sources, bytes: 384 each. Above it those longest silent
    are forgotten, unless they have a transaction open: a message that such a one repeats then counts a second time."""
    file_open_transactions: bool = False
    """Whether checkpoints file producers with open transactions as they file silent ones, so that a commit costs what
    changed, however many transactions are open. Only if no Gazette member ever takes over a shard of this root: it
    would lose the messages of those transactions."""
    carried_bytes_max: int = CARRIED_BYTES_MAX
    """A transaction that publishes less, in bytes of frames, commits its messages with its checkpoint and appends them
    afterwards: one append less to wait for. 0: all are appended before it commits."""

    intent_bytes_max: int = INTENT_BYTES_MAX
    """A transaction takes no more input once it has published so many bytes of records straight into other systems,
    such as Kafka: its commit holds them. It fails at eight times as many."""

    @property
    def restarts(self) -> RestartPolicy:
        """Restart policy of a failed shard."""
        return RestartPolicy(
            delay_seconds=self.restart_delay_seconds,
            delay_seconds_max=self.restart_delay_seconds_max,
            attempts_max=self.attempts_max,
            poison_attempts=self.poison_attempts,
            quarantine_seconds=self.quarantine_seconds,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardEnvironment:
    """Services and limits that all shards of a process use."""

    # The store's type is known to the application only; the runtime passes the store through.
    application: Application[Any]
    journals: JournalClient
    etcd: Etcd
    keys: Keys
    key_space: WriteReader
    clock: Clock
    metrics: ShardMetrics
    deaths: CrashHistory
    rollbacks: RollbackRecords
    state_directory: Path
    """Of this process: where shards with a recovery log keep their files. What is below may be lost at any time."""
    parents: ParentCaller | None = None
    """Reaches the primaries of shards that are split; without one no split goes on here."""
    move_log: MoveLog | None = None
    """Where it is noted that a shard gives its assignment up; nowhere, without one."""
    config: ShardConfig = field(default_factory=ShardConfig)
    new_random: Callable[[], Random] = Random
    """Makes the source of jitter of a shard's back-off."""
    new_worker: Callable[[str], ShardWorker] = ShardThread
    """Makes where an attempt's callbacks run, of the shard's id."""
    random_bytes: Callable[[int], bytes] = os.urandom
    """Draws so many bytes: for producers, authors and directories, none of which may come twice."""
    read_ahead: ReadAhead = field(init=False)
    """What the shards have read ahead together."""

    def __post_init__(self) -> None:
        """Open the account of what is read ahead, and let the metrics tell of it."""
        read_ahead = ReadAhead(self.config.member_input_bytes_max)
        object.__setattr__(self, "read_ahead", read_ahead)
        self.metrics.read_ahead.observe(read_ahead.by_shard)

    def new_plain_appends(self) -> AppendService:
        """Return the service that repeats appends of former producers: other appends do not depend on them."""
        return AppendService(self.journals, room_bytes=self.config.publish_bytes_max)

    def new_appends(self, fqn: str) -> AppendService:
        """Return the append service of an attempt: bounded, pipelined, and fenced against duplicates.

        Args:
            fqn: The shard's full name, which is its register's in every journal.
        """
        return AppendService(
            self.journals,
            room_bytes=self.config.publish_bytes_max,
            copies=WriterEpochRegister.of(fqn, self.random_bytes),
            turns=TokenSource(self.random_bytes),
        )
