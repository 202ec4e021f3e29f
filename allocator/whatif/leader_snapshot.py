"""A frozen snapshot of a leader's knowledge, the input of plans and explanations."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from broadsheet.allocator.keys import Keys
from broadsheet.allocator.model import Assignment, Item, ItemId, Member, MemberId
from broadsheet.allocator.placement.plan import Plan
from broadsheet.allocator.placement.problem import Problem, ProblemItem, Solver
from broadsheet.allocator.policy import AllocationPolicy
from broadsheet.allocator.state.alloc_state import AllocState, Consistency, FixedContents, Snapshot
from broadsheet.allocator.state.load import ItemWeights, declared_weight
from broadsheet.allocator.transition.membership_settling import Settling

Basis = tuple[int, int, int]
"""The leadership, and its derived state's versions: equal ones mean the same items, members and assignments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderSnapshot:
    """Everything that a leader knows at one moment."""

    snapshot: Snapshot
    """Whole."""
    plan: Plan | None
    """In force; None right after an election."""
    policy: AllocationPolicy
    settling: Settling
    now_monotonic_seconds: float
    quarantined: frozenset[str]
    """Items whose step was refused, and is retried at growing intervals."""
    epoch: int
    solver: Solver
    consistency: Consistency
    keys: Keys

    @property
    def basis(self) -> Basis:
        """The basis of a plan that is made on this snapshot."""
        return (self.epoch, *self.snapshot.basis)

    def state(self) -> AllocState:
        """Return the snapshot in the form that decisions use."""
        return self.snapshot.state()


@dataclass(frozen=True, slots=True, kw_only=True)
class Hypothesis:
    """Hypothetical differences from the current cluster."""

    drained: frozenset[MemberId] = frozenset()
    """Members that would be exiting."""
    joined: tuple[Member, ...] = ()
    """Members that would exist."""
    changed: tuple[Item, ...] = ()
    """Items as they would be, new ones included."""
    deleted: frozenset[ItemId] = frozenset()


@dataclass(frozen=True, slots=True)
class Exiting:
    """A member's value as if it were exiting."""

    limit: int
    cordoned: bool
    is_outdated: bool

    def item_limit(self) -> int:
        """Return the member's own limit."""
        return self.limit

    def is_exiting(self) -> bool:
        """Return True."""
        return True

    def is_cordoned(self) -> bool:
        """Return whether the member is cordoned, which an exit does not end."""
        return self.cordoned


def supposed(leader: LeaderSnapshot, hypothesis: Hypothesis) -> tuple[AllocState, Settling]:
    """Return the hypothetical state, and its settled membership.

    Settings that depend on time (`settle_seconds`, `drain_patience_seconds`) count with their immediate effect.
    """
    snapshot = leader.snapshot
    members = {m: _as_drained(member, hypothesis) for m, member in snapshot.members.items()}
    members |= {member.member_id: member for member in hypothesis.joined}
    members = dict(sorted(members.items()))
    items = {i: item for i, item in snapshot.items.items() if i not in hypothesis.deleted}
    items |= {item.item_id: item for item in hypothesis.changed}
    capacities = dict(snapshot.capacities)
    settling = leader.settling.observed(
        members, leader.now_monotonic_seconds, capacities=capacities
    )
    state = AllocState.observe(
        FixedContents.of(members.values(), items.values(), _assignments(snapshot)),
        revision=snapshot.revision,
        local_id=snapshot.local_id,
        unreadable_items=snapshot.unreadable_items,
        drains_waiting=settling.drains_waiting,
    )
    return (
        replace(
            state,
            avoided=snapshot.avoided,
            item_loads=_weights(snapshot.weights, hypothesis).loads(items),
            capacities=capacities | dict(settling.capacities),
            lags=snapshot.lags,
            objective=settling.objective(leader.policy.objective),
        ),
        settling,
    )


def as_planned(state: AllocState, plan: Plan) -> Problem:
    """Return the placement problem after the plan is carried out, to which balance is then applied."""
    problem = state.problem()
    items: list[ProblemItem] = []
    for item in problem.items:
        desired = plan.desired.get(item.item_id, item.current)
        avoided = tuple(m for m in desired if m in item.avoided)
        items.append(replace(item, current=desired, avoided=avoided))
    return replace(problem, items=tuple(items))


def _as_drained(member: Member, hypothesis: Hypothesis) -> Member:
    if member.member_id not in hypothesis.drained or member.value.is_exiting():
        return member
    return replace(
        member,
        value=Exiting(
            member.value.item_limit(), member.value.is_cordoned(), member.value.is_outdated
        ),
    )


def _weights(known: ItemWeights, hypothesis: Hypothesis) -> ItemWeights:
    touched = hypothesis.deleted | {item.item_id for item in hypothesis.changed}
    declared = {i: weight for i, weight in known.declared.items() if i not in touched}
    for item in hypothesis.changed:
        weight = declared_weight(item.value)
        if weight is not None:
            declared[item.item_id] = weight
    return replace(known, declared=declared)


def _assignments(snapshot: Snapshot) -> Iterable[Assignment]:
    for group in snapshot.groups.values():
        yield from group
