"""Carries a plan out in memory, step by step, as the leader would: to know what would happen, and what would wait.

Replicas are taken to catch up whenever nothing else can be done. Each round performs every step of one convergence.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from allocator.core.consistency import Consistency
from allocator.core.keys import AssignmentKey, Keys
from allocator.core.model import Assignment, Item, ItemId, MemberId
from allocator.core.ops import Delete, KeyValue, Put
from allocator.core.placement.primaries import wanted_hand_overs
from allocator.core.plan import Plan
from allocator.core.policy import AllocationPolicy
from allocator.core.state import PRIMARY_SLOT, AllocState
from allocator.core.transition.blocked import Blocked
from allocator.core.transition.converge import Convergence, Step, converge
from allocator.core.transition.settle import Settling

ROUNDS_MAX = 10_000
"""Far above what budgets of one move at a time need for thousands of moves; a rehearsal must end."""


class Kind(Enum):
    """What happens to a replica."""

    ADD = "add"
    REMOVE = "remove"
    PROMOTE = "promote"
    HAND_OVER = "hand-over"


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """One thing that a plan does."""

    round: int
    """Which pass of the schedule, from 0; between two passes replicas catch up."""
    kind: Kind
    item_id: ItemId
    member_id: MemberId
    """The member that gets the replica, loses it, or becomes primary."""
    from_member: MemberId | None = None
    """The former primary, of a promotion or hand-over."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """What would happen."""

    happenings: tuple[Happening, ...]
    waits: tuple[Blocked, ...]
    """What would have to wait at first."""
    stuck: tuple[Blocked, ...]
    """What would wait still when nothing more happens."""
    final: AllocState


class _CaughtUp:
    """Takes replicas as consistent that were, or that caught up in the rehearsal."""

    def __init__(self) -> None:
        self.replicas: set[tuple[ItemId, MemberId]] = set()

    def is_consistent(
        self, item: Item, assignment: Assignment, all_assignments: Sequence[Assignment]
    ) -> bool:
        return (item.item_id, assignment.member_id) in self.replicas


def rehearse(
    state: AllocState,
    plan: Plan,
    *,
    consistency: Consistency,
    keys: Keys,
    policy: AllocationPolicy,
    settling: Settling,
) -> Rehearsal:
    """Return what carrying out `plan` from `state` would do.

    Args:
        state: Whole.
        plan: Answers the state's demand.
        consistency: Tells which replicas may be relied upon now.
        keys: The syntax of the root.
        policy: An operator's choices.
        settling: Tells which drains wait.
    """
    caught_up = _CaughtUp()
    for item_id, group in state.assignments.items():
        item = state.items.get(item_id)
        if item is not None:
            caught_up.replicas.update(
                (item_id, a.member_id) for a in group if consistency.is_consistent(item, a, group)
            )
    happenings: list[Happening] = []
    waits: tuple[Blocked, ...] | None = None
    number = 0
    for _ in range(ROUNDS_MAX):
        convergence = _converged(state, plan, caught_up, keys, policy, settling)
        if waits is None:
            waits = convergence.blocked
        if convergence.steps:
            after = performed(state, convergence.steps, keys)
            happenings += _happenings(number, state, after, convergence.steps)
            state, number = after, number + 1
            continue
        everything = {(i, a.member_id) for i, group in state.assignments.items() for a in group}
        if everything <= caught_up.replicas:
            break
        caught_up.replicas |= everything
    return Rehearsal(
        happenings=tuple(happenings),
        waits=waits or (),
        stuck=convergence.blocked,
        final=state,
    )


def _converged(
    state: AllocState,
    plan: Plan,
    consistency: Consistency,
    keys: Keys,
    policy: AllocationPolicy,
    settling: Settling,
) -> Convergence:
    hand_overs = (
        wanted_hand_overs(state.problem(), plan.desired, policy=policy.primaries)
        if policy.primaries.hand_over_above_spread
        else ()
    )
    return converge(
        state,
        plan.desired,
        consistency=consistency,
        keys=keys,
        primaries=plan.primaries,
        policy=policy.transition,
        drains_waiting=settling.drains_waiting,
        hand_overs=hand_overs,
        hand_overs_allowed=policy.primaries.hand_overs_in_flight_max,
    )


def performed(state: AllocState, steps: Sequence[Step], keys: Keys) -> AllocState:
    """Return the state after steps."""
    groups = dict(state.assignments)
    for step in steps:
        item_id = ItemId(step.checkpoint.subject)
        by_key = {a.kv.key: a for a in groups.get(item_id, ())}
        values = {a.member_id: a for a in by_key.values()}
        for operation in step.checkpoint.operations:
            if isinstance(operation, Delete):
                by_key.pop(operation.key, None)
            elif isinstance(operation, Put):
                made = _made(operation, keys, values, state.revision + 1)
                by_key[operation.key] = made
        groups[item_id] = tuple(sorted(by_key.values(), key=lambda a: (a.member_id, a.slot)))
        if not groups[item_id]:
            del groups[item_id]
    remade = AllocState.observe(
        revision=state.revision + 1,
        local_id=state.local_id,
        members=state.members.values(),
        items=state.items.values(),
        assignments=(a for item_id in sorted(groups) for a in groups[item_id]),
        unreadable_items=state.unreadable_items,
    )
    # Limits follow from members and items, which a step does not change.
    return replace(
        state, revision=remade.revision, assignments=remade.assignments, loads=remade.loads
    )


def _made(put: Put, keys: Keys, values: Mapping[MemberId, Assignment], revision: int) -> Assignment:
    parsed = keys.parse(put.key)
    assert isinstance(parsed, AssignmentKey), "steps put assignments"
    known = values.get(parsed.member_id)
    return Assignment(
        item_id=parsed.item_id,
        member_id=parsed.member_id,
        slot=parsed.slot,
        value=known.value if known is not None else None,
        kv=KeyValue(
            key=put.key,
            value=put.value,
            create_revision=revision,
            mod_revision=revision,
            version=1,
            lease=put.lease,
        ),
    )


def _happenings(
    number: int, before: AllocState, after: AllocState, steps: Sequence[Step]
) -> Iterator[Happening]:
    for step in steps:
        item_id = ItemId(step.checkpoint.subject)
        old, new = before.assignments.get(item_id, ()), after.assignments.get(item_id, ())
        had, has = {a.member_id for a in old}, {a.member_id for a in new}
        was, now = _primary(old), _primary(new)
        for member_id in sorted(has - had):
            yield Happening(round=number, kind=Kind.ADD, item_id=item_id, member_id=member_id)
        for member_id in sorted(had - has):
            yield Happening(round=number, kind=Kind.REMOVE, item_id=item_id, member_id=member_id)
        if now is not None and now != was and now in had:
            yield Happening(
                round=number,
                kind=Kind.HAND_OVER if was in has else Kind.PROMOTE,
                item_id=item_id,
                member_id=now,
                from_member=was,
            )


def _primary(group: Sequence[Assignment]) -> MemberId | None:
    return next((a.member_id for a in group if a.slot == PRIMARY_SLOT), None)
