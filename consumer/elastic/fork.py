"""Forks: the record of a split in etcd, the hold of its parent, and the mark in the parent's recovery log.

    /broadsheet.v1{root}/forks/{child}          the split: parent, ranges, phase; gone when it is over
    /broadsheet.v1{root}/fork-hold/{parent}     the parent rests, for one attempt of one fork; its only arbiter
    /.broadsheet-fork.{attempt}                 property in the parent's log, behind all that the child takes over

An attempt has a number of its own, which comes once: a late answer of an earlier one decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from enum import StrEnum
from typing import Final

import msgspec

from broadsheet.allocator.keys import AuxiliaryKeys
from broadsheet.allocator.ops import KeyValue
from broadsheet.runtime.documents import DocumentError
from broadsheet.runtime.formats import Format
from broadsheet.wire.key_range import KeyRange
from broadsheet.wire.shard_pb2 import Checkpoint

FORK: Final = Format("the record of a split", "let a member of that release finish it")
_MARK: Final = "/.broadsheet-fork."


class ForkPhase(StrEnum):
    """The state of a split."""

    FOLLOWING = "following"
    """The child plays the parent's log; the parent serves all keys."""
    HOLDING = "holding"
    """The parent rests, while the child takes over its own log and commits the fork."""
    PURGING = "purging"
    """Both serve their keys, and remove the rows of others."""


class PurgeProgress(msgspec.Struct, frozen=True, array_like=True):
    """The removal of foreign rows from one shard, by groups of keys."""

    done: int
    left: int
    groups_per_second: float = 0.0
    """Smoothed; 0: not known as yet."""


class ForkRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A split that is not over."""

    parent: str
    begin: int
    """Groups of the child."""
    end: int
    phase: ForkPhase = ForkPhase.FOLLOWING
    reason: str = ""
    """Why it is delayed, if it is."""
    done_bytes: int = 0
    """Of the parent's log, played by the child."""
    behind_bytes: int = 0
    """Of the parent's log, still to play."""
    bytes_per_second: float = 0.0
    """At which the child plays, smoothed; 0: not known as yet."""
    purging: Mapping[str, PurgeProgress] = {}
    """By shard, while it removes the rows of others."""
    purged: tuple[str, ...] = ()
    """Shards that have removed the rows of others."""

    @property
    def owned(self) -> KeyRange:
        """The groups that the child owns in the end."""
        return KeyRange(self.begin, self.end)


class ForkHold(msgspec.Struct, frozen=True, kw_only=True):
    """The rest of a parent."""

    child: str
    attempt: str


def forks_prefix(root: str) -> bytes:
    """Return the prefix of the records of all splits."""
    return AuxiliaryKeys(root).prefix + b"forks/"


def fork_key(root: str, child: str) -> bytes:
    """Return the key of the record of a split."""
    return forks_prefix(root) + child.encode()


def hold_key(root: str, parent: str) -> bytes:
    """Return the key of a parent's hold."""
    return AuxiliaryKeys(root).prefix + f"fork-hold/{parent}".encode()


def encode_fork(record: ForkRecord) -> bytes:
    """Return the value of a record."""
    return msgspec.json.encode(record)


def decode_fork(value: bytes) -> ForkRecord:
    """Decode a record.

    Raises:
        LaterFormatError: it needs a later reader.
        DocumentError: it is no record.
    """
    return FORK.decode_json(value, ForkRecord)


def read_forks(
    kvs: Iterable[KeyValue], root: str
) -> Iterator[tuple[str, KeyValue, ForkRecord | DocumentError]]:
    """Yield the splits below `forks_prefix`: child, key and value, and record.

    In place of a record that cannot be read comes the error that says so, because it holds up its own split alone.
    """
    prefix = forks_prefix(root)
    for kv in kvs:
        child = kv.key[len(prefix) :].decode(errors="replace")
        try:
            yield child, kv, decode_fork(kv.value)
        except DocumentError as error:
            yield child, kv, error


def encode_hold(hold: ForkHold) -> bytes:
    """Return the value of a hold; equal holds have equal values, which transactions compare."""
    return msgspec.json.encode(hold, order="deterministic")


def mark_of(attempt: str) -> str:
    """Return the path of the property by which a parent marks its log for an attempt."""
    return _MARK + attempt


def drop_parents_intents(checkpoint: Checkpoint) -> None:
    """Make a parent's checkpoint the first of a fork.

    All that the parent committed was acknowledged before the fork, and acknowledgements are its own: what it sent
    elsewhere would be sent twice.
    """
    checkpoint.ClearField("ack_intents")


def attempt_of_fork(properties: Mapping[str, str], fqn: str) -> str:
    """Return the attempt by which a shard was made a fork of another one; empty if it was none.

    Args:
        properties: Of the recovery log, with those that came with its parent's.
        fqn: The shard's full name.
    """
    found = [path for path, content in properties.items() if content == fqn]
    marks = [path for path in found if path.startswith(_MARK)]
    # A shard is made once: what failed before left its mark in the parent's log only, behind which it goes on.
    return max(marks, default="").removeprefix(_MARK)
