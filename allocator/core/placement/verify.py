"""An independent check of a placement, made before it is used.

It knows nothing of flows: it looks at the answer and tries to do better by the simplest means. A placement that breaks
a bound, or that one plain step would improve in a higher objective, is refused.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from allocator.core.model import ItemId, MemberId
from allocator.core.placement.problem import (
    ZONES_WANTED,
    Desired,
    Problem,
    ProblemItem,
    ProblemMember,
    zones_spanned,
)

VIOLATIONS_REPORTED_MAX = 10
"""Enough to see what is wrong; a broken solver may break every item."""


@dataclass(frozen=True, slots=True)
class Violation:
    """What is wrong with a placement, and where."""

    item_id: ItemId | None
    member_id: MemberId | None
    problem: str

    def __str__(self) -> str:
        where = " on ".join(
            str(part) for part in (self.item_id, self.member_id) if part is not None
        )
        return f"{where}: {self.problem}"


def verify(problem: Problem, desired: Desired) -> tuple[Violation, ...]:
    """Return what is wrong with `desired`, at most `VIOLATIONS_REPORTED_MAX` findings; empty if nothing is."""
    check = _Check(problem, desired)
    found: list[Violation] = []
    for violation in check.violations():
        found.append(violation)
        if len(found) == VIOLATIONS_REPORTED_MAX:
            break
    return tuple(found)


class _Check:
    def __init__(self, problem: Problem, desired: Desired) -> None:
        self._problem = problem
        self._desired = desired
        self._members = {member.member_id: member for member in problem.members}
        self._loads = Counter(m for placed in desired.values() for m in placed)
        self._room = [
            member for member in problem.members if self._loads[member.member_id] < member.limit
        ]

    def violations(self) -> Iterator[Violation]:
        for member_id, load in self._loads.items():
            if member_id not in self._members:
                yield Violation(None, member_id, "is no member")
            elif load > self._members[member_id].limit:
                limit = self._members[member_id].limit
                yield Violation(None, member_id, f"holds {load}, its limit is {limit}")
        if unknown := self._desired.keys() - {item.item_id for item in self._problem.items}:
            yield Violation(min(unknown), None, "is no item")
        for item in self._problem.items:
            yield from self._item_violations(item)

    def _item_violations(self, item: ProblemItem) -> Iterator[Violation]:
        placed = self._desired.get(item.item_id)
        if placed is None:
            yield Violation(item.item_id, None, "has no answer")
            return
        if len(set(placed)) != len(placed):
            yield Violation(item.item_id, None, "has a member twice")
        if list(placed) != sorted(placed):
            yield Violation(item.item_id, None, "has members out of order")
        if len(placed) > item.replication:
            yield Violation(item.item_id, None, f"has {len(placed)} of {item.replication} replicas")
        others = [member for member in self._room if member.member_id not in placed]
        if len(placed) < item.replication and others:
            yield Violation(item.item_id, others[0].member_id, "is short of a replica that fits")
        if len(placed) >= ZONES_WANTED and zones_spanned(placed) < ZONES_WANTED:
            yield from self._zone_violations(item, placed, others)
        yield from self._target_violations(item, placed, others)

    def _zone_violations(
        self, item: ProblemItem, placed: tuple[MemberId, ...], others: list[ProblemMember]
    ) -> Iterator[Violation]:
        elsewhere = [member for member in others if member.member_id.zone != placed[0].zone]
        if elsewhere:
            yield Violation(
                item.item_id, elsewhere[0].member_id, "stands in one zone, another has room"
            )

    def _target_violations(
        self, item: ProblemItem, placed: tuple[MemberId, ...], others: list[ProblemMember]
    ) -> Iterator[Violation]:
        """Find new replicas on exiting members for which a member of the same zone that stays has room."""
        for member_id in placed:
            member = self._members.get(member_id)
            if member is None or not member.exiting or member_id in item.current:
                continue
            staying = [m for m in others if not m.exiting and m.member_id.zone == member_id.zone]
            if staying:
                yield Violation(
                    item.item_id,
                    member_id,
                    f"is new on an exiting member, {staying[0].member_id} stays",
                )
