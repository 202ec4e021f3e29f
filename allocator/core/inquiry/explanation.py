"""Why an item is where it is, where it should be, and what keeps it from getting there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from allocator.core.inquiry.standing import Standing, as_planned
from allocator.core.load.lag import Lag
from allocator.core.model import Assignment, Item, ItemId, MemberId
from allocator.core.placement.primaries import wanted_hand_overs
from allocator.core.plan import Plan, PlanRefused, plan_for
from allocator.core.state import PRIMARY_SLOT, AllocState
from allocator.core.transition.blocked import Blocked, Reason
from allocator.core.transition.converge import converge
from allocator.core.transition.replicas import Replicas
from allocator.core.transition.settle import waits_to_settle


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaExplained:
    """One replica."""

    member_id: MemberId
    slot: int
    consistent: bool
    desired: bool
    """It should be there."""
    lag: Lag
    """What it has yet to play."""
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """All there is to say about an item's placement."""

    item_id: ItemId
    revision: int
    replication: int
    replicas: tuple[ReplicaExplained, ...]
    desired: tuple[MemberId, ...]
    planned_primary: MemberId | None
    risk: str
    """What is at stake, if anything is to be done."""
    blocked: tuple[Blocked, ...]
    notes: tuple[str, ...]


def explain(standing: Standing, item_id: ItemId) -> Explanation | None:
    """Return the explanation of an item; None if there is no such item."""
    state = standing.state()
    item = state.items.get(item_id)
    if item is None:
        return None
    plan = standing.plan
    if plan is None or item_id not in plan.desired:
        policy = replace(standing.policy, objective=state.objective)
        made = plan_for(state, plan, standing.solver, policy)
        plan = None if isinstance(made, PlanRefused) else made
    desired = plan.desired.get(item_id, ()) if plan is not None else ()
    replicas = Replicas.sort_out(state, item, desired=desired, consistency=standing.consistency)
    blocked = tuple(_blocked(standing, state, item, plan)) if plan is not None else ()
    return Explanation(
        item_id=item_id,
        revision=state.revision,
        replication=replicas.replication,
        replicas=tuple(
            _replica(standing, state, each, replicas, desired) for each in replicas.current
        ),
        desired=tuple(desired),
        planned_primary=plan.primaries.get(item_id) if plan is not None else None,
        risk=replicas.risk(state).name.lower().replace("_", "-"),
        blocked=blocked,
        notes=tuple(_notes(standing, state, plan)),
    )


def _blocked(standing: Standing, state: AllocState, item: Item, plan: Plan) -> Iterator[Blocked]:
    """Yield what the item waits for: of the schedule, of settling, and of quarantine."""
    hand_overs = wanted_hand_overs(state.problem(), plan.desired, policy=standing.policy.primaries)
    convergence = converge(
        state,
        plan.desired,
        consistency=standing.consistency,
        keys=standing.keys,
        primaries=plan.primaries,
        policy=standing.policy.transition,
        drains_waiting=standing.settling.drains_waiting,
        hand_overs=hand_overs,
    )
    yield from (each for each in convergence.blocked if each.item_id == item.item_id)
    if item.item_id in standing.quarantined:
        yield Blocked(
            item_id=item.item_id,
            reason=Reason.QUARANTINED,
            detail="etcd refused its last step: somebody else writes its keys; it is tried again ever more rarely",
        )
    if not standing.settling.is_settled:
        balanced = standing.solver.solve(
            replace(as_planned(state, plan), objective=standing.policy.objective)
        )
        for each in waits_to_settle(plan.desired, balanced, standing.settling.describe()):
            if each.item_id == item.item_id:
                yield each


def _replica(
    standing: Standing,
    state: AllocState,
    assignment: Assignment,
    replicas: Replicas,
    desired: tuple[MemberId, ...],
) -> ReplicaExplained:
    wanted = assignment.member_id in desired and assignment.kv.key not in replicas.surplus
    return ReplicaExplained(
        member_id=assignment.member_id,
        slot=assignment.slot,
        consistent=assignment.kv.key in replicas.consistent,
        lag=state.lag(assignment),
        desired=wanted,
        why=_why(standing, state, assignment, replicas, wanted=wanted),
    )


def _why(
    standing: Standing,
    state: AllocState,
    assignment: Assignment,
    replicas: Replicas,
    *,
    wanted: bool,
) -> str:
    member = state.members.get(assignment.member_id)
    if member is None:
        return "its member is gone"
    if assignment.kv.key in replicas.surplus:
        return "a second replica on one member is worth nothing"
    if (assignment.item_id, assignment.member_id) in state.avoided:
        return "it has failed for too long, " + (
            "but nobody else can take it" if wanted else "and is better placed elsewhere"
        )
    if member.value.is_exiting():
        if not wanted:
            return "its member wishes to leave"
        if assignment.member_id in standing.settling.drains_waiting:
            return "its member wishes to leave, and waits for a member that replaces it"
        return (
            "its member wishes to leave, but no member that stays can take it yet "
            "without a loss of its replicas or zones"
        )
    if not wanted:
        return (
            "it should be elsewhere: for zones, for balance, or because fewer replicas are wanted"
        )
    if assignment.slot == PRIMARY_SLOT:
        return "it is primary, and stays: moving it would gain nothing"
    return "it stays: moving it would gain nothing"


def _notes(standing: Standing, state: AllocState, plan: Plan | None) -> Iterator[str]:
    if plan is None:
        yield "there is no plan: the leader refused its solver's answer; see its log"
    if not standing.settling.is_settled:
        yield f"membership has not settled: {standing.settling.describe()} (settle_seconds)"
    for member_id in sorted(standing.settling.drains_waiting):
        yield f"the drain of {member_id} waits for a member that replaces it (drain_patience_seconds)"
    if state.member_slots < state.item_slots:
        yield (
            f"members that are not drained take {state.member_slots} replicas, "
            f"items want {state.item_slots}"
        )
