"""A frozen snapshot of the key space, with the state that the allocator derives from it.

Invariants: everything is sorted by id; nothing changes after construction, so a snapshot may go to a thread or cross an
`await`. A snapshot may hold only some of the items with their assignments; members, limits, loads and sums still cover
all of them.

Source: gazette/core allocator/alloc_state.go (derived state).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Protocol

from broadsheet.allocator.model import Assignment, Item, ItemId, Member, MemberId
from broadsheet.allocator.placement.problem import Problem, ProblemItem, ProblemMember
from broadsheet.allocator.policy import Objective
from broadsheet.allocator.state.load import CAUGHT_UP, ItemWeights, Lag, Lags

PRIMARY_SLOT = 0
"""The slot whose holder serves the item."""
Avoided = frozenset[tuple[ItemId, MemberId]]
"""Replicas that have failed for too long."""


class Contents(Protocol):
    """The decoded keys of a root; provided by `broadsheet.allocator.key_space.KeySpace` and
    `broadsheet.allocator.state.mirror.Mirror`, which keep them current, and by `FixedContents`.
    """

    @property
    def items(self) -> Mapping[ItemId, Item]:
        """Items by id."""
        ...

    @property
    def members(self) -> Mapping[MemberId, Member]:
        """Members by id."""
        ...

    @property
    def assignments(self) -> Mapping[tuple[ItemId, MemberId, int], Assignment]:
        """Assignments by item, member and slot."""
        ...


@dataclass(frozen=True, slots=True)
class FixedContents:
    """Contents of one moment."""

    members: Mapping[MemberId, Member]
    items: Mapping[ItemId, Item]
    assignments: Mapping[tuple[ItemId, MemberId, int], Assignment]

    @classmethod
    def of(
        cls,
        members: Iterable[Member],
        items: Iterable[Item],
        assignments: Iterable[Assignment],
    ) -> FixedContents:
        """Return contents with these objects, in any order."""
        by_place = {(a.item_id, a.member_id, a.slot): a for a in assignments}
        return cls(
            members=dict(sorted((member.member_id, member) for member in members)),
            items=dict(sorted((item.item_id, item) for item in items)),
            assignments=dict(sorted(by_place.items())),
        )


@dataclass(frozen=True, slots=True)
class Loads:
    """Replicas and primaries on each member."""

    total: Mapping[MemberId, int]
    """Includes replicas of deleted items, because their members run them until they are gone."""
    primary: Mapping[MemberId, int]
    """Of items that exist."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The inputs of the desired placement except current placements; a new demand needs a new solve.

    Current placements are left out on purpose: they change while a plan is carried out, and a new plan at every step
    could reverse decisions half way.
    """

    members: tuple[ProblemMember, ...]
    """Members that may hold anything; others do not affect the placement."""
    items: tuple[tuple[ItemId, int], ...]
    avoided: Avoided
    objective: Objective = field(default_factory=Objective)
    loads: tuple[tuple[ItemId, int], ...] = ()
    """The loads of items that weigh more than 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocState:
    """Members, items and assignments as of one revision, from the viewpoint of one member."""

    revision: int
    local_id: MemberId
    """The member whose view this is."""
    members: Mapping[MemberId, Member]
    items: Mapping[ItemId, Item]
    assignments: Mapping[ItemId, tuple[Assignment, ...]]
    """By item, each sorted by key; items without any are absent, dead items are present."""
    limits: Mapping[MemberId, int]
    """Most replicas that each member may hold."""
    loads: Loads
    """Counts only assignments whose member exists."""
    item_slots: int
    """Replicas wanted, over all items."""
    member_slots: int
    """Replicas that members take, without drained members."""
    unreadable_items: frozenset[ItemId] = frozenset()
    """Items whose key is there but cannot be decoded: unknown, but not deleted."""
    avoided: Avoided = frozenset()
    """Replicas that have failed for too long: better placed elsewhere."""
    item_loads: Mapping[ItemId, int] = field(default_factory=dict)
    """The load of one replica on its member, from 1; absent items weigh 1."""
    lags: Lags = field(default_factory=dict)
    """Standbys that are behind."""
    capacities: Mapping[MemberId, int] = field(default_factory=dict)
    """Load that each member can carry, in units of its own against other members; absent ones: their limit."""
    drain_costs: Mapping[MemberId, int] = field(default_factory=dict)
    """Drained members, and the cost of each replica on them; see `ProblemMember.drain_cost`."""
    objective: Objective = field(default_factory=Objective)
    """The current objective."""
    is_whole: bool = True
    """Whether all items are included; only then are there a demand and a problem."""

    @classmethod
    def observe(
        cls,
        contents: Contents,
        *,
        revision: int,
        local_id: MemberId,
        unreadable_items: Iterable[ItemId] = (),
        drains_waiting: Collection[MemberId] = (),
    ) -> AllocState:
        """Derive a snapshot.

        Args:
            contents: The decoded keys, each mapping in the order of its keys.
            revision: Etcd revision that they are as of.
            local_id: The member whose viewpoint it is.
            unreadable_items: Items that exist but cannot be decoded.
            drains_waiting: Exiting members that keep their replicas for now.
        """
        member_by_id, item_by_id = dict(contents.members), dict(contents.items)
        replications = [item.value.desired_replication() for item in item_by_id.values()]
        limits = {m: member.value.item_limit() for m, member in member_by_id.items()}
        drained = drain_costs(member_by_id.values(), drains_waiting=drains_waiting)
        by_item = {
            item_id: tuple(group)
            for item_id, group in groupby(
                contents.assignments.values(), key=lambda assignment: assignment.item_id
            )
        }
        loads = _count_loads(member_by_id, item_by_id, by_item)
        return cls(
            revision=revision,
            local_id=local_id,
            members=member_by_id,
            items=item_by_id,
            assignments=by_item,
            limits=limits,
            loads=loads,
            item_slots=sum(replications),
            member_slots=member_slots(limits, drained, member_by_id.values(), loads),
            drain_costs=drained,
            unreadable_items=frozenset(unreadable_items),
        )

    @property
    def zones(self) -> tuple[str, ...]:
        """Zones with a member that takes replicas; a drained member keeps its zone until it is gone."""
        return tuple(
            sorted({m.zone for m, member in self.members.items() if member.value.item_limit() > 0})
        )

    @property
    def leader(self) -> Member | None:
        """The oldest member."""
        return next(iter(leadership_order(self.members.values())), None)

    @property
    def local(self) -> Member | None:
        """The local member, if its key exists."""
        return self.members.get(self.local_id)

    @property
    def is_leader(self) -> bool:
        """True if the local member leads."""
        leader = self.leader
        return leader is not None and leader.member_id == self.local_id

    @property
    def local_items(self) -> tuple[Assignment, ...]:
        """The local member's assignments of items that exist."""
        return tuple(
            assignment
            for item_id, group in self.assignments.items()
            if item_id in self.items
            for assignment in group
            if assignment.member_id == self.local_id
        )

    @property
    def should_exit(self) -> bool:
        """True if the local member is exiting and holds nothing any more."""
        local = self.local
        return local is not None and local.value.is_exiting() and not self.local_items

    def lag(self, assignment: Assignment) -> Lag:
        """Return how far a replica is behind."""
        return self.lags.get((assignment.item_id, assignment.member_id), CAUGHT_UP)

    def is_leaving(self, member_id: MemberId) -> bool:
        """Return whether a member is gone, exiting, or takes nothing, and so is not reliable."""
        member = self.members.get(member_id)
        return member is None or member.value.is_exiting() or self.limits[member_id] <= 0

    def demand(self) -> Demand:
        """Return the demand that a plan must answer."""
        assert self.is_whole, "some items are not here"
        return Demand(
            members=tuple(member for member in self.problem_members() if member.limit > 0),
            items=tuple((i, item.value.desired_replication()) for i, item in self.items.items()),
            avoided=self.avoided,
            objective=self.objective,
            loads=tuple((i, self.item_loads[i]) for i in self.items if self._load(i) != 1),
        )

    def problem(self) -> Problem:
        """Return the placement problem for the solver."""
        assert self.is_whole, "some items are not here"
        return Problem(
            members=self.problem_members(),
            items=tuple(self._problem_item(item) for item in self.items.values()),
            objective=self.objective,
        )

    def problem_members(self) -> tuple[ProblemMember, ...]:
        """Return the members for the solver."""
        return problem_members(self.members, self.capacities, self.drain_costs)

    def _problem_item(self, item: Item) -> ProblemItem:
        item_id, members, avoided = item.item_id, self.members, self.avoided
        # Sorted by member, so that a second replica on a member is next to the first.
        current: list[MemberId] = []
        primary: MemberId | None = None
        for assignment in self.assignments.get(item_id, ()):
            member_id = assignment.member_id
            if member_id not in members:
                continue
            if assignment.slot == PRIMARY_SLOT and primary is None:
                primary = member_id
            if not current or current[-1] != member_id:
                current.append(member_id)
        return ProblemItem(
            item_id=item_id,
            replication=item.value.desired_replication(),
            current=tuple(current),
            primary=primary,
            avoided=tuple(m for m in current if (item_id, m) in avoided) if avoided else (),
            load=self._load(item_id),
        )

    def _load(self, item_id: ItemId) -> int:
        return self.item_loads.get(item_id, 1)


def problem_members(
    members: Mapping[MemberId, Member],
    capacities: Mapping[MemberId, int],
    drained: Mapping[MemberId, int],
) -> tuple[ProblemMember, ...]:
    """Return members for the solver.

    Args:
        members: Every member.
        capacities: The load that they can carry, if it is not their limit.
        drained: Drained members, and the cost of each replica on them.
    """
    return tuple(
        ProblemMember(
            member_id=member_id,
            limit=member.value.item_limit(),
            exiting=member.value.is_exiting(),
            cordoned=member.value.is_cordoned(),
            capacity=capacities.get(member_id, 0),
            drain_cost=drained.get(member_id, 0),
        )
        for member_id, member in members.items()
    )


def member_slots(
    limits: Mapping[MemberId, int],
    drained: Collection[MemberId],
    members: Iterable[Member],
    loads: Loads,
) -> int:
    """Return how many replicas all members take, without the drained ones.

    Args:
        limits: The limit of every member.
        drained: The drained members.
        members: Every member. A cordoned one takes no more than it has.
        loads: The current replicas of members.
    """
    return sum(
        min(limits[m.member_id], loads.total[m.member_id])
        if m.value.is_cordoned()
        else limits[m.member_id]
        for m in members
        if m.member_id not in drained
    )


def _count_loads(
    members: Mapping[MemberId, Member],
    items: Mapping[ItemId, Item],
    assignments: Mapping[ItemId, tuple[Assignment, ...]],
) -> Loads:
    total = dict.fromkeys(members, 0)
    primary = dict.fromkeys(members, 0)
    for item_id, group in assignments.items():
        exists = item_id in items
        for assignment in group:
            if assignment.member_id in total:
                total[assignment.member_id] += 1
                primary[assignment.member_id] += exists and assignment.slot == PRIMARY_SLOT
    return Loads(total, primary)


class Consistency(Protocol):
    """The application's rules for when a replica has caught up, and for the value of one that hands over.

    It must be pure, because it is called off the event loop, on frozen values.
    """

    def is_consistent(
        self, item: Item, assignment: Assignment, all_assignments: Sequence[Assignment]
    ) -> bool:
        """Return whether a replica counts towards its item's replication.

        Args:
            item: The item.
            assignment: One of its assignments.
            all_assignments: All of its assignments, by member and slot.
        """
        ...

    def standby_value(self, primary: Assignment) -> bytes:
        """Return the value of a primary's assignment once it has handed over and stands by.

        Its member may write another only later, or, in a mixed cluster, may never lower what the primary said.
        """
        ...


def leadership_order(members: Iterable[Member]) -> list[Member]:
    """Return members oldest first; those created in one transaction are ordered by key.

    The first leads, and the first of the exiting ones drains first.
    """
    return sorted(members, key=lambda member: (member.kv.create_revision, member.member_id))


def drain_costs(
    members: Iterable[Member], *, drains_waiting: Collection[MemberId] = ()
) -> Mapping[MemberId, int]:
    """Return the cost of a replica on each draining member: 1 on the youngest, more on each older one.

    Each replica is decided separately: one on a draining member leaves if another member can take it without a loss of
    coverage or of zones, and stays otherwise (`placement`). So one item that needs every member holds back its own
    replica and no other. If there is no room for the replicas of all draining members, the oldest member is emptied
    first.

    Source: gazette/core allocator/alloc_state.go (the shed-capacity pass of its observer, whose order is kept). Ours:
    replicas are decided one by one, in place of a quota of members for the whole cluster, and a drain may wait.

    Args:
        members: Every member, exiting or not.
        drains_waiting: Exiting members that keep their replicas for now.
    """
    draining = [
        member.member_id
        for member in leadership_order(members)
        if member.value.is_exiting() and member.member_id not in drains_waiting
    ]
    return {member_id: cost for cost, member_id in enumerate(reversed(draining), start=1)}


# Values of one moment, on their way from the event loop to the thread that decides on them.


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Values of one moment, not yet sorted: cheap to take, so that the rest can be done in a thread."""

    revision: int
    basis: tuple[int, int] = field(compare=False)
    """The basis of the derived state at that moment."""
    local_id: MemberId
    members: Mapping[MemberId, Member]
    items: Mapping[ItemId, Item]
    groups: Mapping[ItemId, tuple[Assignment, ...]]
    limits: Mapping[MemberId, int]
    drain_costs: Mapping[MemberId, int]
    loads: Loads
    item_slots: int
    unreadable_items: frozenset[ItemId]
    avoided: Avoided
    weights: ItemWeights
    capacities: Mapping[MemberId, int]
    lags: Lags
    objective: Objective
    is_whole: bool

    def state(self) -> AllocState:
        """Return the snapshot as sorted state."""
        return AllocState(
            revision=self.revision,
            local_id=self.local_id,
            members=self.members,
            items=dict(sorted(self.items.items())),
            assignments=dict(sorted(self.groups.items())),
            limits=self.limits,
            loads=self.loads,
            item_slots=self.item_slots,
            member_slots=member_slots(
                self.limits, self.drain_costs, self.members.values(), self.loads
            ),
            drain_costs=self.drain_costs,
            unreadable_items=self.unreadable_items,
            avoided=self.avoided,
            # Only plans use loads.
            item_loads=self.weights.loads(self.items) if self.is_whole else {},
            capacities=self.capacities,
            lags=self.lags,
            objective=self.objective,
            is_whole=self.is_whole,
        )
