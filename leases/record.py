"""The record behind every lease: its holder, and how far its shard is processed.

Every write is a compare-and-swap of the whole record. Three numbers tell its history:

* `epoch` counts acquisitions. It is the fencing token: sinks that remember the greatest epoch they saw refuse a paused
  owner whose write comes late. It also tells "lost and taken again" from "never lost".
* `counter` counts the holder's writes and every change of owner. Where a store cannot tell which workers live, its
  movement is the heartbeat.
* `write_id` names the last write that moved `counter`, so that a writer whose answer was lost recognises its own.

Source: awslabs/amazon-kinesis-client leases.Lease (fields, hand-off), vmware/vmware-go-kcl-v2 (claim),
Azure event-processor-host (epoch).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NewType

from broadsheet.leases.errors import LeasingError
from broadsheet.leases.position import Position
from broadsheet.runtime.errors import ValidationError

KEY_CHARACTERS_MAX = 255
"""Longest lease key or worker name; every supported SQL database can index a column of this length."""
Version = NewType("Version", str)
"""Version of a record, opaque to all but its store; versions have no order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HashRange:
    """The part of a stream's hash space that a shard covers."""

    first: str
    """Lowest hash key, decimal digits."""
    last: str
    """Highest hash key, inclusive, decimal digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseRecord:
    """A lease, its checkpoint, and its place among other shards."""

    key: str
    """The shard."""
    epoch: int = 0
    """Acquisitions so far; never used twice."""
    counter: int = 0
    """Writes of holders and changes of owner so far."""
    owner: str | None = None
    """The worker entitled to the lease; during a hand-off, the next one."""
    handoff_from: str | None = None
    """During a hand-off: the worker that still processes, and may commit until it passes the lease on."""
    claim: str | None = None
    """The worker that asks the holder to let go."""
    checkpoint: Position | None = None
    """The committed position. None: nothing was ever stored, the record only makes room for it."""
    pending: Position | None = None
    """The prepared position, not yet committed: records up to it may have had their side effects."""
    pending_state: bytes | None = None
    """The application's own note with `pending`."""
    owner_switches: int = 0
    """Changes of owner since the last commit; the same records may have been processed as often."""
    write_id: str = ""
    """Names the last write that moved `counter`."""
    parents: frozenset[str] = frozenset()
    """Keys of the shards that this one was split or merged from."""
    children: frozenset[str] = frozenset()
    """Keys of the shards that this one was split or merged into, once known."""
    hash_range: HashRange | None = None
    """The hash range that it covers, where known."""
    attrs: Mapping[str, str] = field(default_factory=dict)
    """Fields of the layout it was read from that we do not know, in that layout's notation; kept by every write."""

    def __post_init__(self) -> None:
        _check_name("lease.key", self.key)
        for name in ("owner", "handoff_from", "claim"):
            if getattr(self, name) is not None:
                _check_name(f"lease.{name}", getattr(self, name))
        if self.epoch < 0 or self.counter < 0 or self.owner_switches < 0:
            raise ValidationError(
                "lease", "expected epoch, counter and owner_switches of at least 0"
            )
        if self.pending is None and self.pending_state is not None:
            raise ValidationError("lease.pending_state", "expected a pending position with it")
        if self.handoff_from is not None and self.owner is None:
            raise ValidationError("lease.handoff_from", "expected an owner to hand off to")

    @property
    def holder(self) -> str | None:
        """The worker that processes the shard: the owner, or during a hand-off the one before it."""
        return self.owner if self.handoff_from is None else self.handoff_from

    @property
    def is_finished(self) -> bool:
        """True if the whole shard is processed."""
        return self.checkpoint is not None and self.checkpoint.is_end


@dataclass(frozen=True, slots=True, kw_only=True)
class Versioned:
    """A record with the version and the fence that its store had at some moment."""

    record: LeaseRecord
    version: Version
    """The version that the next write compares."""
    fence: int
    """Fence of one acquisition, never used again; 0 while the lease has no known holder."""


def _check_name(field_path: str, text: str) -> None:
    if not 1 <= len(text) <= KEY_CHARACTERS_MAX or "\x00" in text:
        raise ValidationError(
            field_path,
            f"expected 1 to {KEY_CHARACTERS_MAX} characters and no NUL, got {text!r:.80}",
        )


class RecordConflictError(LeasingError):
    """A compare-and-swap found another record than expected; `current` is the one found, None if it is gone."""

    def __init__(self, key: str, current: Versioned | None) -> None:
        now = "is gone" if current is None else f"is at version {current.version}"
        super().__init__(f"lease {key} was changed by another writer: it {now}")
        self.key = key
        self.current = current
