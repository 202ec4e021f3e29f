"""Merges: the record of one in etcd.

    /broadsheet.v1{root}/merges/{survivor}      the merge: who is absorbed, its range, phase; gone when it is over
    /broadsheet.v1{root}/fork-hold/{absorbed}   the absorbed shard rests, for one attempt; its only arbiter, as of forks

The mark in the absorbed shard's log is that of forks, with other content: no shard continues from it in its own log.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

import msgspec

from broadsheet.allocator.keys import AuxiliaryKeys
from broadsheet.runtime.formats import Format
from broadsheet.wire.key_range import KeyRange

MERGE: Final = Format("the record of a merge", "let a member of that release finish it")


class MergePhase(StrEnum):
    """The state of a merge."""

    COPYING = "copying"
    """The survivor takes the rows of the other one into its own state; both serve their keys."""
    HOLDING = "holding"
    """Both stand at the same place of the sources, while the survivor takes the last rows and commits the merge."""


class MergeRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A merge that is not over."""

    absorbed: str
    begin: int
    """Groups of the absorbed shard."""
    end: int
    phase: MergePhase = MergePhase.COPYING
    reason: str = ""
    """Why it is delayed, if it is."""
    done_rows: int = 0
    """Of the absorbed shard, taken in."""
    left_rows: int = -1
    """About so many are left; negative: unknown."""
    rate: float = 0.0
    """Rows taken in a second, smoothed; 0: unknown, or nothing is done at present."""

    @property
    def given(self) -> KeyRange:
        """The groups that the survivor gets."""
        return KeyRange(self.begin, self.end)


def merges_prefix(root: str) -> bytes:
    """Return the prefix of the records of all merges."""
    return AuxiliaryKeys(root).prefix + b"merges/"


def merge_key(root: str, survivor: str) -> bytes:
    """Return the key of the record of a merge."""
    return merges_prefix(root) + survivor.encode()


def encode_merge(record: MergeRecord) -> bytes:
    """Return the value of a record."""
    return msgspec.json.encode(record)


def decode_merge(value: bytes) -> MergeRecord:
    """Decode a record.

    Raises:
        LaterFormatError: it needs a later reader.
        DocumentError: it is no record.
    """
    return MERGE.decode_json(value, MergeRecord)


def absorbed_mark(survivor_fqn: str) -> str:
    """Return the content of the mark in an absorbed shard's log: it makes no fork of the survivor."""
    return f"absorbed by {survivor_fqn}"
