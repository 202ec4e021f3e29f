"""Bounds on a leaving process's wait for the hand-over of its shards.

A hand-over needs another member. With other members staying, a long wait is worthwhile: one may be full now and have
room later. Alone, or with every other member leaving or cordoned, only a short wait is, in which a replacement may
come up. Between the two: if each shard left here has a ready replica on a member that stays, leaving costs redundancy
and no service, so a full cluster does not keep a process for long.

A bound counts only while its state lasts. A bound of 0 does not wait in that state; it says nothing about others.

Source: the model never gives up and so never exits alone; the three bounds are ours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum

from broadsheet.allocator.model import Assignment, ItemId, Member, MemberId
from broadsheet.consumer.registry.key_space import status_of
from broadsheet.wire.shard_pb2 import ReplicaStatus

_READY = (ReplicaStatus.STANDBY, ReplicaStatus.PRIMARY)


class DrainVerdict(Enum):
    """Next step of a leaving process."""

    WAIT = "wait"
    GIVE_UP_ALONE = "no other member stays and takes shards, so no member can take them over"
    GIVE_UP_COVERED = (
        "every shard left has a ready replica on a member that stays, but none took another in time"
    )
    GIVE_UP_LATE = "no other member took the shards in time"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainBounds:
    """Longest waits of a drain, seconds; 0: no wait."""

    total_seconds: float
    """In any case."""
    alone_seconds: float
    """While no other member stays, or those that do are cordoned and have no ready replica of some shard left here."""
    covered_seconds: float
    """While every shard left has a ready replica on a member that stays."""


class Drain:
    """Decides on one departure; fed with the time and the key space at each look."""

    def __init__(self, bounds: DrainBounds, *, began_monotonic_seconds: float) -> None:
        self._bounds = bounds
        self._began = began_monotonic_seconds
        self._alone_since = began_monotonic_seconds
        self._covered_since = began_monotonic_seconds

    def look(
        self,
        members: Mapping[MemberId, Member],
        assignments: Iterable[Assignment],
        *,
        leaving: MemberId,
        now_monotonic_seconds: float,
    ) -> DrainVerdict:
        """Return whether to go on waiting.

        Args:
            members: Live processes.
            assignments: Every replica.
            leaving: This process.
            now_monotonic_seconds: By the clock of `began_monotonic_seconds`.
        """
        staying = _staying(members, leaving)
        covered = _is_covered(assignments, staying, leaving)
        # A cordoned member accepts no new replicas, but it can become primary of those that it has.
        takers = staying if covered else {m for m in staying if not members[m].value.is_cordoned()}
        alone = not takers
        if not alone:
            self._alone_since = now_monotonic_seconds
        if not covered:
            self._covered_since = now_monotonic_seconds
        if now_monotonic_seconds - self._began >= self._bounds.total_seconds:
            return DrainVerdict.GIVE_UP_LATE
        # The states are checked, too: no time has passed since a look at the same moment, and a
        # bound may be 0.
        if alone and now_monotonic_seconds - self._alone_since >= self._bounds.alone_seconds:
            return DrainVerdict.GIVE_UP_ALONE
        if covered and now_monotonic_seconds - self._covered_since >= self._bounds.covered_seconds:
            return DrainVerdict.GIVE_UP_COVERED
        return DrainVerdict.WAIT


def _staying(members: Mapping[MemberId, Member], leaving: MemberId) -> set[MemberId]:
    return {
        member_id
        for member_id, member in members.items()
        if member_id != leaving and not member.value.is_exiting() and member.value.item_limit() > 0
    }


def _is_covered(
    assignments: Iterable[Assignment], staying: set[MemberId], leaving: MemberId
) -> bool:
    ours: set[ItemId] = set()
    ready: set[ItemId] = set()
    for assignment in assignments:
        if assignment.member_id == leaving:
            ours.add(assignment.item_id)
        elif assignment.member_id in staying and status_of(assignment).code in _READY:
            ready.add(assignment.item_id)
    return ours <= ready
