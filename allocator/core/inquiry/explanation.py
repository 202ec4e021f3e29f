"""Why an item is where it is, where it should be, and what keeps it from getting there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace

from allocator.core.inquiry.standing import Standing, as_planned
from allocator.core.load.lag import Lag
from allocator.core.model import Assignment, Item, ItemId, MemberId
from allocator.core.placement.primaries import wanted_hand_overs
from allocator.core.placement.trial import Trial, Verdict
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
    reasons = _Reasons(state, plan, item)
    return Explanation(
        item_id=item_id,
        revision=state.revision,
        replication=replicas.replication,
        replicas=tuple(
            _replica(standing, state, each, replicas, desired, reasons) for each in replicas.current
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
    reasons: _Reasons,
) -> ReplicaExplained:
    wanted = assignment.member_id in desired and assignment.kv.key not in replicas.surplus
    return ReplicaExplained(
        member_id=assignment.member_id,
        slot=assignment.slot,
        consistent=assignment.kv.key in replicas.consistent,
        lag=state.lag(assignment),
        desired=wanted,
        why=_why(standing, state, assignment, replicas, reasons, wanted=wanted),
    )


def _why(
    standing: Standing,
    state: AllocState,
    assignment: Assignment,
    replicas: Replicas,
    reasons: _Reasons,
    *,
    wanted: bool,
) -> str:
    member = state.members.get(assignment.member_id)
    if member is None:
        return "its member is gone"
    if assignment.kv.key in replicas.surplus:
        return "a second replica on one member is worth nothing"
    told = reasons.to_stay(assignment.member_id) if wanted else reasons.to_go(assignment.member_id)
    if (assignment.item_id, assignment.member_id) in state.avoided:
        return f"it has failed for too long; {told}"
    if member.value.is_exiting():
        if assignment.member_id in standing.settling.drains_waiting:
            return f"its member wishes to leave, and waits for a member that replaces it; {told}"
        return f"its member wishes to leave; {told}"
    return f"it is primary; {told}" if assignment.slot == PRIMARY_SLOT else told


class _Reasons:
    """What trying an item's replicas on other members says."""

    def __init__(self, state: AllocState, plan: Plan | None, item: Item) -> None:
        self._item_id = item.item_id
        self._replication = item.value.desired_replication()
        self._members = tuple(state.members)
        self._held = frozenset(each.member_id for each in state.assignments.get(item.item_id, ()))
        planned = plan.desired if plan is not None else {}
        # The plan in force may be older than the state: what is gone since counts nowhere.
        self._desired = {
            item_id: tuple(each for each in planned.get(item_id, ()) if each in state.members)
            for item_id in state.items
        }
        self._trial = Trial(state.problem(), self._desired)

    def to_stay(self, member_id: MemberId) -> str:
        """Return what keeps a planned replica from the other members, with their numbers."""
        others = [each for each in self._members if each != member_id]
        if not others:
            return "it stays: there is no other member"
        verdicts = Counter(self._trial.verdict(self._item_id, member_id, each) for each in others)
        told = ", ".join(f"{verdicts[each]} {each.value}" for each in Verdict if verdicts[each])
        return f"it stays; other members: {told}"

    def to_go(self, member_id: MemberId) -> str:
        """Return what keeps the replica from staying in the place of each planned one, of new ones if there are any."""
        planned = self._desired[self._item_id]
        if not self._replication:
            return "it goes: no replica is wanted"
        told = (
            f"instead of {each} this would be a member "
            f"{self._trial.verdict(self._item_id, each, member_id).value}"
            for each in [each for each in planned if each not in self._held] or planned
        )
        return (
            f"it goes; {len(planned)} of {self._replication} wanted replicas are planned, none of them here: "
            f"{'; '.join(told)}"
        )


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
