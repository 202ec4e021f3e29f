"""Trial of a single move: the reason for a replica's place on one member and not on another.

The objectives of a placement have an order (`problem`), so the first one that a move changes decides. A move that
changes none of them makes no difference.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from enum import Enum

from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.placement.problem import (
    ZONES_WANTED,
    Desired,
    Problem,
    ProblemItem,
    kept_zones,
    zones_spanned,
)
from broadsheet.allocator.placement.shares import Totals, capacity_of, is_weighted, load_windows


class Verdict(Enum):
    """The reason against a replica on another member; the value is for people, and follows "a member"."""

    HOLDS_ANOTHER = "with another replica of it"
    FULL = "at the limit"
    LEAVING = "leaving"
    CORDONED = "cordoned"
    ZONES = "where it would span fewer zones"
    DRAINED = "drained before this one"
    BALANCE = "where loads would be less even"
    FAILED = "where it failed for too long"
    MOVE = "where it would be as good, at the price of a move"
    PRIMARY = "where its primary would not stay"
    AS_GOOD = "where it would be as good"
    BETTER = "where it would be better, as far as one move tells"


class Trial:
    """Tries moves on a placement, one at a time."""

    def __init__(self, problem: Problem, desired: Desired) -> None:
        """Count what the placement puts on each member.

        Args:
            problem: The problem that the placement answers.
            desired: The placement. It need not be optimal.
        """
        self._desired = desired
        self._members = {member.member_id: member for member in problem.members}
        self._items = {item.item_id: item for item in problem.items}
        self._moves_first = problem.objective.moves_before_balance
        self._kept = kept_zones(problem.members)
        self._counts = Counter(m for placed in desired.values() for m in placed)
        self._windows = load_windows(problem.members, Totals.of(problem), problem.objective)
        self._loads: Counter[MemberId] | None = None
        if is_weighted(problem):
            self._loads = Counter()
            for item_id, placed in desired.items():
                self._loads.update(dict.fromkeys(placed, self._items[item_id].load))

    def verdict(self, item_id: ItemId, source: MemberId | None, target: MemberId) -> Verdict:
        """Return the first objective that a move of an item's replica to another member would worsen.

        Args:
            item_id: The item.
            source: The member where the replica is planned; None tries one more replica of an item that lacks some.
            target: The member to try.

        Raises:
            KeyError: the problem has no such item or member.
        """
        item, placed = self._items[item_id], self._desired[item_id]
        if target in placed:
            return Verdict.HOLDS_ANOTHER
        member = self._members[target]
        if member.closed and target not in item.current:
            return Verdict.LEAVING if member.exiting else Verdict.CORDONED
        if self._counts[target] >= member.limit:
            return Verdict.FULL
        if source is None:
            # Coverage has the highest priority.
            return Verdict.BETTER
        for loss, verdict in self._losses(item, source, target):
            if loss:
                return verdict if loss > 0 else Verdict.BETTER
        return Verdict.AS_GOOD

    def _losses(
        self, item: ProblemItem, source: MemberId, target: MemberId
    ) -> Iterator[tuple[float, Verdict]]:
        before = self._zones(item, source, source)
        after = self._zones(item, source, target)
        yield min(ZONES_WANTED, before) - min(ZONES_WANTED, after), Verdict.ZONES
        members = self._members
        yield members[target].drain_cost - members[source].drain_cost, Verdict.DRAINED
        balance = (self._unevenness(item, source, target), Verdict.BALANCE)
        failed, new = (
            2 * ((target in item.avoided) - (source in item.avoided)),
            (target not in item.current) - (source not in item.current),
        )
        moves = (failed + new, Verdict.FAILED if failed > 0 else Verdict.MOVE)
        yield from (moves, balance) if self._moves_first else (balance, moves)
        yield (source == item.primary) - (target == item.primary), Verdict.PRIMARY
        yield before - after, Verdict.ZONES

    def _zones(self, item: ProblemItem, source: MemberId, target: MemberId) -> int:
        """Return the zones that count if one replica of the item moved: with a single zone or replica, none does."""
        # As the solver has it: a single replica is lost with its zone, wherever it is.
        if len(self._kept) < ZONES_WANTED or item.replication < ZONES_WANTED:
            return 0
        others = [m for m in self._desired[item.item_id] if m != source]
        return zones_spanned(m for m in (*others, target) if m.zone in self._kept)

    def _unevenness(self, item: ProblemItem, source: MemberId, target: MemberId) -> float:
        """Return what the move adds to overload: replicas beyond fair shares, or the fuller member's load if items
        weigh.
        """
        if self._loads is None:
            count = self._counts
            return (
                self._overload(target, count[target] + 1)
                - self._overload(target, count[target])
                - (
                    self._overload(source, count[source])
                    - self._overload(source, count[source] - 1)
                )
            )
        full = max(self._utilisation(source, 0), self._utilisation(target, 0))
        return (
            max(self._utilisation(source, -item.load), self._utilisation(target, item.load)) - full
        )

    def _overload(self, member_id: MemberId, count: int) -> int:
        window = self._windows.get(member_id)
        return (
            0 if window is None else max(0, count - window.floor) + max(0, count - window.ceiling)
        )

    def _utilisation(self, member_id: MemberId, more: int) -> float:
        assert self._loads is not None
        return (self._loads[member_id] + more) / capacity_of(self._members[member_id])
