"""The state that the allocator derives from the key space, updated incrementally.

    changes of a step ──► Derived ──► partial()     the items that may need a step: converge
                             │   └──► whole()       everything: a new plan
                             └──────► plan_version  grows when a new plan must be made

An examination of everything costs time for every item, but a status write should only cost time for one. So sums are
maintained, and each item is *open* or not. Any change of an item's keys opens it. The caller examines the open items
and closes those that need nothing until they change again.

Invariants: the sums equal those that `AllocState.observe` would count from scratch. Objects that a snapshot refers to
are never changed afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from broadsheet.allocator.keys import AssignmentKey
from broadsheet.allocator.model import Assignment, Item, ItemId, Member, MemberId
from broadsheet.allocator.placement.primaries import primary_spread
from broadsheet.allocator.policy import LoadPolicy, Objective
from broadsheet.allocator.state.alloc_state import (
    PRIMARY_SLOT,
    Contents,
    Loads,
    Snapshot,
    drain_costs,
    problem_members,
)
from broadsheet.allocator.state.failed_replicas import FailedSince
from broadsheet.allocator.state.load import ItemWeights, Lags, declared_weight
from broadsheet.allocator.state.mirror import Changes

PART_KEYS = 1_024
"""Keys in one part: about 10 ms."""


@dataclass(slots=True)
class _Counts:
    """The replicas of a member; the member itself need not exist."""

    total: int = 0
    """Of items that exist."""
    primary: int = 0
    """Of items that exist."""
    orphaned: int = 0
    """Of items that do not exist or cannot be decoded: they take room until they are gone."""


@dataclass(slots=True)
class _Global:
    """State derived from members; rebuilt when they change."""

    members: Mapping[MemberId, Member] = field(default_factory=dict)
    limits: Mapping[MemberId, int] = field(default_factory=dict)
    drain_costs: Mapping[MemberId, int] = field(default_factory=dict)


class DerivedState:
    """Derived state of one key space. Not thread-safe: it is used on the thread where the changes arrive."""

    def __init__(
        self,
        contents: Contents,
        *,
        local_id: MemberId,
        failed: FailedSince,
        look: bool = True,
    ) -> None:
        """Derive the state of everything once.

        Args:
            contents: The keys that change; read again with each change.
            local_id: The member whose viewpoint it is.
            failed: The failed replicas, perhaps an earlier derived state's; kept, and changed with every observation.
            look: False starts empty; the caller then applies the contents as changes, in parts.
        """
        self._contents = contents
        self._local_id = local_id
        self._items: dict[ItemId, Item] = {}
        self._groups: dict[ItemId, tuple[Assignment, ...]] = {}
        self._counts: dict[MemberId, _Counts] = {}
        self._item_slots = 0
        self._failed = failed
        self._open: set[ItemId] = set()
        # Items with failed replicas may have changed, or may be gone, since the earlier state was dropped.
        self._unobserved: set[ItemId] = set(self._failed.item_ids)
        """Items that changed since the last check for failed replicas."""
        self._global: _Global | None = None
        self._declared: dict[ItemId, int] = {}
        self._measured: Mapping[ItemId, int] | None = None
        self._load_policy = LoadPolicy()
        self._weights: ItemWeights | None = None
        self._inherited: Mapping[MemberId, int] = {}
        self._drains_waiting: frozenset[MemberId] = frozenset()
        self._capacities: Mapping[MemberId, int] = {}
        self.lags: Lags = {}
        """Standbys that are behind; kept, and not to be changed afterwards."""
        self._objective = Objective()
        self._plan_version = 0
        self._shape = 0
        if look:
            for part in parts_of(contents):
                self.apply(part)

    @property
    def plan_version(self) -> int:
        """A number that changes with every change that needs a new plan."""
        return self._plan_version

    @property
    def basis(self) -> tuple[int, int]:
        """Versions that a plan made now rests on: of the demand, and of which items, members and assignments exist.

        A replica's status does not change them, because it is written all the time.
        """
        return (self._shape, self._plan_version)

    @property
    def members(self) -> Mapping[MemberId, Member]:
        """Every member, by id. Read only."""
        return self._overall().members

    @property
    def capacities(self) -> Mapping[MemberId, int]:
        """The load that members can carry, if it is not their limit. Read only."""
        return self._capacities

    @property
    def open_items(self) -> Collection[ItemId]:
        """Items that changed since they were closed, deleted ones included."""
        return self._open

    @property
    def item_count(self) -> int:
        """The number of items."""
        return len(self._items)

    @property
    def holds_anything(self) -> bool:
        """True if there is any replica."""
        return bool(self._counts)

    def holds_items(self, member_id: MemberId) -> bool:
        """Return whether the member has a replica of any existing item."""
        counts = self._counts.get(member_id)
        return counts is not None and counts.total > 0

    def primary_spread(self) -> int:
        """Return how unevenly primaries are spread, as in plans; takes time for each member."""
        overall = self._overall()
        capacities = {**self._capacities, **self._inherited}
        members = problem_members(overall.members, capacities, overall.drain_costs)
        return primary_spread(members, self._loads(overall.members).primary)

    def apply(self, changes: Changes) -> None:
        """Apply changes of the contents. Takes time for each change."""
        for item_id in changes.items:
            self._update_item(item_id)
        for key in changes.assignments:
            self._update_assignment(key)
        if changes.members:
            self._global = None
            # Any change of a member counts, because most concern its limit or its exit, and they are rare.
            self._plan_version += 1
        if changes.items or changes.members:
            self._shape += 1

    def observe_failures(self, now_monotonic_seconds: float) -> None:
        """Find failed replicas among the changed items, and those that have failed for too long."""
        while self.observe_some_failures(now_monotonic_seconds):
            continue
        if self._failed.expire(now_monotonic_seconds):
            self._plan_version += 1

    def observe_some_failures(self, now_monotonic_seconds: float) -> bool:
        """Find failed replicas among some of the changed items. True if others are left."""
        for _ in range(min(PART_KEYS, len(self._unobserved))):
            item_id = self._unobserved.pop()
            item = self._items.get(item_id)
            group = self._groups.get(item_id, ()) if item is not None else ()
            self._failed.observe(item_id, item, group, now_monotonic_seconds)
        return bool(self._unobserved)

    def set_loads(
        self,
        measured: Mapping[ItemId, int] | None,
        capacities: Mapping[MemberId, int],
        policy: LoadPolicy,
    ) -> None:
        """Set measured loads and members' capacities. Both are kept, and must not be changed afterwards.

        Args:
            measured: Loads in force, by item; None if measurements are not used.
            capacities: By member.
            policy: The value of a declared weight relative to them.
        """
        if (measured, capacities, policy) != (self._measured, self._capacities, self._load_policy):
            self._measured, self._capacities, self._load_policy = measured, capacities, policy
            self._weights = None
            self._plan_version += 1

    def set_inherited(self, capacities: Mapping[MemberId, int]) -> None:
        """Set the capacities of members that temporarily replace others; kept, and not to be changed."""
        if capacities != self._inherited:
            self._inherited = capacities
            self._plan_version += 1

    def set_drains_waiting(self, member_ids: frozenset[MemberId]) -> None:
        """Set the exiting members that keep their replicas for now."""
        if member_ids != self._drains_waiting:
            self._drains_waiting = member_ids
            self._global = None
            self._plan_version += 1

    def set_objective(self, objective: Objective) -> None:
        """Set the objective from now on."""
        if objective != self._objective:
            self._objective = objective
            self._plan_version += 1

    def next_failure_seconds(self, now_monotonic_seconds: float) -> float | None:
        """Return how long until the next failed replica has failed for too long; None if there is none."""
        return self._failed.next_seconds(now_monotonic_seconds)

    def take_open(self) -> frozenset[ItemId]:
        """Return the open items, and close them; the caller reopens those with remaining work."""
        taken, self._open = frozenset(self._open), set()
        return taken

    def open(self, item_ids: Iterable[ItemId]) -> None:
        """Open items, although they did not change."""
        self._open.update(item_ids)

    def whole(self, *, revision: int, unreadable_items: Iterable[ItemId] = ()) -> Snapshot:
        """Return a snapshot of everything."""
        return self._snapshot(revision, self._items, self._groups, unreadable_items, is_whole=True)

    def partial(
        self,
        item_ids: Iterable[ItemId],
        *,
        revision: int,
        unreadable_items: Iterable[ItemId] = (),
    ) -> Snapshot:
        """Return a snapshot of these items and all global state."""
        wanted = tuple(item_ids)
        return self._snapshot(
            revision,
            {i: self._items[i] for i in wanted if i in self._items},
            {i: self._groups[i] for i in wanted if i in self._groups},
            unreadable_items,
            is_whole=False,
        )

    def _snapshot(
        self,
        revision: int,
        items: Mapping[ItemId, Item],
        groups: Mapping[ItemId, tuple[Assignment, ...]],
        unreadable_items: Iterable[ItemId],
        *,
        is_whole: bool,
    ) -> Snapshot:
        overall = self._overall()
        return Snapshot(
            revision=revision,
            basis=self.basis,
            local_id=self._local_id,
            members=overall.members,
            items=dict(items),
            groups=dict(groups),
            limits=overall.limits,
            drain_costs=overall.drain_costs,
            loads=self._loads(overall.members),
            item_slots=self._item_slots,
            unreadable_items=frozenset(unreadable_items),
            avoided=self._failed.avoided,
            weights=self._item_weights(),
            # An heir has its predecessor's capacity until that one is gone.
            capacities={**self._capacities, **self._inherited},
            lags=self.lags,
            objective=self._objective,
            is_whole=is_whole,
        )

    def _loads(self, members: Iterable[MemberId]) -> Loads:
        none = _Counts()
        counts = {member_id: self._counts.get(member_id, none) for member_id in members}
        return Loads(
            {member_id: each.total + each.orphaned for member_id, each in counts.items()},
            {member_id: each.primary for member_id, each in counts.items()},
        )

    def _overall(self) -> _Global:
        if self._global is None:
            members = dict(sorted(self._contents.members.items()))
            self._global = _Global(
                members,
                {m: member.value.item_limit() for m, member in members.items()},
                drain_costs(members.values(), drains_waiting=self._drains_waiting),
            )
        return self._global

    def _item_weights(self) -> ItemWeights:
        if self._weights is None:
            self._weights = ItemWeights(
                declared=dict(self._declared), measured=self._measured, policy=self._load_policy
            )
        return self._weights

    def _update_weight(self, item_id: ItemId, item: Item | None) -> None:
        weight = None if item is None else declared_weight(item.value)
        if weight == self._declared.get(item_id):
            return
        if weight is None:
            del self._declared[item_id]
        else:
            self._declared[item_id] = weight
        self._weights = None
        self._plan_version += 1

    def _update_item(self, item_id: ItemId) -> None:
        old, new = self._items.get(item_id), self._contents.items.get(item_id)
        self._open.add(item_id)
        self._unobserved.add(item_id)
        self._update_weight(item_id, new)
        wanted_before = None if old is None else old.value.desired_replication()
        wanted = None if new is None else new.value.desired_replication()
        # The replicas of a missing item count as orphaned, so they change sides.
        if (old is None) != (new is None):
            for assignment in self._groups.get(item_id, ()):
                self._count(assignment, -1, exists=old is not None)
                self._count(assignment, 1, exists=new is not None)
        if new is not None:
            # By the item's own object, which every other place has.
            self._items[new.item_id] = new
        elif old is not None:
            del self._items[item_id]
        # A plan depends on an item only by its replication and its weight, which was compared above.
        if wanted == wanted_before:
            return
        self._plan_version += 1
        self._item_slots += (wanted or 0) - (wanted_before or 0)

    def _update_assignment(self, key: AssignmentKey) -> None:
        self._open.add(key.item_id)
        self._unobserved.add(key.item_id)
        group = self._groups.get(key.item_id, ())
        old: Assignment | None = None
        for each in group:
            if each.slot == key.slot and each.member_id == key.member_id:
                old = each
        new = self._contents.assignments.get((key.item_id, key.member_id, key.slot))
        if (old is None) != (new is None):
            self._count(new or old, -1 if new is None else 1, exists=key.item_id in self._items)
        # Not for a change of status, which is written all the time: it keeps the create revision.
        if old is None or new is None or old.kv.create_revision != new.kv.create_revision:
            self._shape += 1
        if old is not None and new is not None:
            self._groups[key.item_id] = tuple(new if a is old else a for a in group)
            return
        others = [a for a in group if a is not old]
        if new is not None:
            others.append(new)
            others.sort(key=_position)
        if others:
            self._groups[key.item_id] = tuple(others)
        else:
            self._groups.pop(key.item_id, None)

    def _count(self, assignment: Assignment | None, difference: int, *, exists: bool) -> None:
        assert assignment is not None, "what is counted is there, or was"
        counts = self._counts.setdefault(assignment.member_id, _Counts())
        if exists:
            counts.total += difference
            if assignment.slot == PRIMARY_SLOT:
                counts.primary += difference
        else:
            counts.orphaned += difference
        # `holds_anything` is true while any member is left here.
        if counts.total == counts.orphaned == 0:
            del self._counts[assignment.member_id]


def parts_of(contents: Contents) -> Iterator[Changes]:
    """Yield all contents as changes, in parts, as they are when this begins."""
    items, assignments = list(contents.items), list(contents.assignments)
    yield Changes(members=frozenset(contents.members))
    for begin in range(0, len(items), PART_KEYS):
        yield Changes(items=frozenset(items[begin : begin + PART_KEYS]))
    for begin in range(0, len(assignments), PART_KEYS):
        part = assignments[begin : begin + PART_KEYS]
        yield Changes(assignments=frozenset(AssignmentKey(*key) for key in part))


def _position(assignment: Assignment) -> tuple[MemberId, int]:
    return (assignment.member_id, assignment.slot)
