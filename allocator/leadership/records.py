"""What the keys of an election say, as JSON.

    leader       {"member": "zone#suffix", "epoch": 7, "beat": 42}     on the leader's lease
    epoch        {"member": "zone#suffix", "epoch": 7}                 stays
    candidate    {"may_lead": true}                                    on the member's lease

Fields that are unknown are ignored, so that a later version may add some. A value that cannot be read counts as absent,
but its revision still counts: it can be replaced by a claim.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from allocator.documents import DocumentError, decode_json
from allocator.model import MemberId


class LeaderRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Who leads, and a number that grows as long as the leader gets on."""

    member: str
    epoch: int
    beat: int


class EpochRecord(msgspec.Struct, frozen=True, kw_only=True):
    """Which leadership is in force: it begins with a claim, and ends with the next one's."""

    member: str
    epoch: int


class CandidateRecord(msgspec.Struct, frozen=True, kw_only=True):
    """A member that knows of elections."""

    may_lead: bool = True
    """False once it is about to leave: it is known to keep out of the way."""


RecordT = TypeVar("RecordT", LeaderRecord, EpochRecord, CandidateRecord)


def encoded(record: LeaderRecord | EpochRecord | CandidateRecord) -> bytes:
    """Return the value to store."""
    return msgspec.json.encode(record)


def decoded_or_none(value: bytes, kind: type[RecordT]) -> RecordT | None:
    """Return what a stored value says, if it can be read."""
    try:
        return decode_json(value, kind)
    except DocumentError:
        return None


def name_of(member_id: MemberId) -> str:
    """Return how records name a member."""
    return str(member_id)
