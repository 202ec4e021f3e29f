"""An item's assignments, classified: which are wanted, which count, and how urgent a change is.

A replica is *live* if its member exists, if it is not a second one on that member, and if it has not failed for too
long. Otherwise it is *lost*: it protects nothing, and its replacement does not count as balance.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from enum import IntEnum

from broadsheet.allocator.model import Assignment, Item, MemberId
from broadsheet.allocator.placement.problem import ZONES_WANTED, zones_spanned
from broadsheet.allocator.state.alloc_state import PRIMARY_SLOT, AllocState, Consistency


class Risk(IntEnum):
    """The risk that an item's pending change addresses, most urgent first."""

    UNCOVERED = 0
    """No live replica serves it."""
    UNDER_REPLICATED = 1
    """It has fewer live replicas than it wants."""
    SINGLE_ZONE = 2
    """All of its live replicas would be lost with one zone, and that can be helped."""
    DRAINING = 3
    """A replica is on a member that is leaving or gone."""
    BALANCE = 4
    """It is safe where it is."""


_NO_KEYS: frozenset[bytes] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemReplicas:
    """An item's assignments, classified."""

    replication: int
    current: tuple[Assignment, ...]
    desired: tuple[MemberId, ...]
    """Existing members that should hold the item."""
    missing: tuple[MemberId, ...]
    """Those of them that do not hold it."""
    unwanted: frozenset[bytes]
    """Keys of assignments that should go."""
    surplus: frozenset[bytes]
    """Keys of assignments beside another of the same member: not legal, and worth nothing."""
    live: frozenset[bytes]
    """Keys of assignments, surplus ones and long failed ones apart, whose member is there."""
    consistent: frozenset[bytes]
    """Keys of live assignments that may be relied upon."""
    ready: frozenset[bytes]
    """Those of them that may be relied upon whatever becomes of the others: where all fail, a failed one counts beside
    another, but it cannot take over from one that has caught up."""

    @classmethod
    def sort_out(
        cls,
        state: AllocState,
        item: Item,
        *,
        desired: Collection[MemberId],
        consistency: Consistency,
    ) -> ItemReplicas:
        """Classify the assignments of an item."""
        current = state.assignments.get(item.item_id, ())
        members, avoided = state.members, state.avoided
        holders = {a.member_id for a in current}
        surplus = frozenset(_surplus_keys(current)) if len(holders) < len(current) else _NO_KEYS
        unwanted: list[bytes] = []
        live: list[bytes] = []
        consistent: list[bytes] = []
        for assignment in current:
            key, member_id = assignment.kv.key, assignment.member_id
            is_surplus = key in surplus
            if is_surplus or member_id not in desired:
                unwanted.append(key)
            if is_surplus or member_id not in members:
                continue
            # It has failed for too long, so it protects nothing.
            if avoided and (assignment.item_id, member_id) in avoided:
                continue
            live.append(key)
            if consistency.is_consistent(item, assignment, current):
                consistent.append(key)
        present = tuple(m for m in desired if m in members)
        reliable = frozenset(consistent)
        ready = reliable
        stays = any(
            a.slot == PRIMARY_SLOT and a.kv.key in live and a.kv.key not in unwanted
            for a in current
        )
        if not stays and len(reliable) > 1:
            # Another replica is made primary only in this case.
            ready = frozenset(
                a.kv.key
                for a in current
                if a.kv.key in reliable and consistency.is_consistent(item, a, (a,))
            )
        return cls(
            replication=item.value.desired_replication(),
            current=current,
            desired=present,
            missing=tuple(m for m in present if m not in holders),
            unwanted=frozenset(unwanted),
            surplus=surplus,
            live=frozenset(live),
            consistent=reliable,
            ready=ready,
        )

    @property
    def lost(self) -> int:
        """The number of missing live replicas: this many additions replace lost ones."""
        return max(0, self.replication - len(self.live))

    @property
    def catching_up(self) -> list[Assignment]:
        """Live desired replicas that are not consistent yet."""
        return [
            a
            for a in self.current
            if a.kv.key in self.live
            and a.kv.key not in self.consistent
            and a.kv.key not in self.unwanted
        ]

    @property
    def moving(self) -> Iterator[MemberId]:
        """Members to which a move is in progress: a replica catches up there while the replaced one is kept.

        A replica that catches up in place of a lost one is not a move; one that is not wanted any more still is.
        """
        # Replicas up to the wanted number replace lost ones; only those beyond it are moves.
        moves = len(self.live) - self.replication
        if moves <= 0 or len(self.consistent) == len(self.live):
            return
        behind = [a for a in self.current if a.kv.key in self.live - self.consistent]
        behind.sort(key=lambda a: (-a.kv.create_revision, a.member_id))
        yield from (a.member_id for a in behind[:moves])

    def risk(self, state: AllocState) -> Risk:
        """Return the urgency of the item's pending change."""
        live = [a for a in self.current if a.kv.key in self.live]
        if self.replication and PRIMARY_SLOT not in [a.slot for a in live]:
            return Risk.UNCOVERED
        if len(live) < self.replication:
            return Risk.UNDER_REPLICATED
        zones_wanted = min(ZONES_WANTED, self.replication)
        if zones_spanned(a.member_id for a in live) < zones_wanted <= zones_spanned(self.desired):
            return Risk.SINGLE_ZONE
        for assignment in self.current:
            if assignment.kv.key in self.unwanted and state.is_leaving(assignment.member_id):
                return Risk.DRAINING
        return Risk.BALANCE


def _surplus_keys(current: Sequence[Assignment]) -> list[bytes]:
    """Return all but the lowest slot of each member."""
    seen: set[MemberId] = set()
    found: list[bytes] = []
    # The lowest slot stays, so a primary is never the surplus one.
    for assignment in sorted(current, key=lambda a: (a.member_id, a.slot)):
        if assignment.member_id in seen:
            found.append(assignment.kv.key)
        seen.add(assignment.member_id)
    return found


def is_settled(current: Sequence[Assignment], desired: Sequence[MemberId]) -> bool:
    """Return whether an item is as desired, slots included: the usual case, checked cheaply.

    Args:
        current: The assignments, sorted by member.
        desired: The members, sorted.
    """
    size = len(current)
    if size != len(desired):
        return False
    slots = 0
    for assignment, member_id in zip(current, desired, strict=True):
        if assignment.member_id != member_id or assignment.slot >= size:
            return False
        slots |= 1 << assignment.slot
    return slots == (1 << size) - 1
