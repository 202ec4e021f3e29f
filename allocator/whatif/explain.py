"""Explanation of an item: its current and desired places, and the reasons that keep it from getting there."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from broadsheet.allocator.model import Assignment, Item, ItemId, MemberId
from broadsheet.allocator.placement.plan import Plan, PlanRefused, plan_for
from broadsheet.allocator.placement.primaries import wanted_hand_overs
from broadsheet.allocator.state.alloc_state import PRIMARY_SLOT, AllocState
from broadsheet.allocator.state.load import Lag
from broadsheet.allocator.transition.capacity import Blocked, WaitReason
from broadsheet.allocator.transition.converge import converge
from broadsheet.allocator.transition.membership_settling import Settling, waits_to_settle
from broadsheet.allocator.transition.replicas import ItemReplicas
from broadsheet.allocator.transition.schedule import Targets
from broadsheet.allocator.whatif.causes import CauseFinder, told
from broadsheet.allocator.whatif.leader_snapshot import LeaderSnapshot, as_planned


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaExplained:
    """One replica."""

    member_id: MemberId
    slot: int
    consistent: bool
    desired: bool
    """Whether the replica should be there."""
    lag: Lag
    """The replay that remains."""
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """The explanation of an item's placement."""

    item_id: ItemId
    revision: int
    replication: int
    replicas: tuple[ReplicaExplained, ...]
    desired: tuple[MemberId, ...]
    planned_primary: MemberId | None
    risk: str
    """The risk that a pending change addresses, if there is one."""
    blocked: tuple[Blocked, ...]
    notes: tuple[str, ...]


def explain(leader: LeaderSnapshot, item_id: ItemId) -> Explanation | None:
    """Return the explanation of an item; None if there is no such item."""
    state = leader.state()
    item = state.items.get(item_id)
    if item is None:
        return None
    plan = leader.plan
    # The item is newer than the plan in force: tell what the next plan would do.
    if plan is None or item_id not in plan.desired:
        policy = replace(leader.policy, objective=state.objective)
        made = plan_for(state, plan, leader.solver, policy)
        plan = None if isinstance(made, PlanRefused) else made
    desired = plan.desired.get(item_id, ()) if plan is not None else ()
    replicas = ItemReplicas.sort_out(state, item, desired=desired, consistency=leader.consistency)
    blocked = tuple(_blocked(leader, state, item, plan)) if plan is not None else ()
    causes = CauseFinder(state.problem(), plan.desired if plan is not None else {})
    explainer = _ReplicaExplainer(
        state, replicas, desired=desired, causes=causes, settling=leader.settling
    )
    return Explanation(
        item_id=item_id,
        revision=state.revision,
        replication=replicas.replication,
        replicas=tuple(map(explainer.explain, replicas.current)),
        desired=tuple(desired),
        planned_primary=plan.primaries.get(item_id) if plan is not None else None,
        risk=replicas.risk(state).name.lower().replace("_", "-"),
        blocked=causes.explained(blocked),
        notes=tuple(_notes(leader, state, plan)),
    )


def _blocked(
    leader: LeaderSnapshot, state: AllocState, item: Item, plan: Plan
) -> Iterator[Blocked]:
    """Yield the reasons for which the item waits: from the schedule, settling, and quarantine."""
    hand_overs = wanted_hand_overs(state.problem(), plan.desired, policy=leader.policy.primaries)
    targets = Targets(
        desired=plan.desired,
        primaries=plan.primaries,
        policy=leader.policy.transition,
        drains_waiting=leader.settling.drains_waiting,
        hand_overs=hand_overs,
    )
    convergence = converge(state, targets, consistency=leader.consistency, keys=leader.keys)
    yield from (each for each in convergence.blocked if each.item_id == item.item_id)
    if item.item_id in leader.quarantined:
        yield Blocked(
            item_id=item.item_id,
            reason=WaitReason.QUARANTINED,
            detail="etcd refused its last step: another process writes its keys; it is retried at growing intervals",
        )
    if not leader.settling.is_settled:
        balanced = leader.solver.solve(
            replace(as_planned(state, plan), objective=leader.policy.objective)
        )
        for each in waits_to_settle(plan.desired, balanced, leader.settling.describe()):
            if each.item_id == item.item_id:
                yield each


@dataclass(frozen=True, slots=True)
class _ReplicaExplainer:
    """Explains the replicas of one item."""

    state: AllocState
    replicas: ItemReplicas
    desired: tuple[MemberId, ...] = field(kw_only=True)
    """The members that the plan gives the item."""
    causes: CauseFinder = field(kw_only=True)
    settling: Settling = field(kw_only=True)

    def explain(self, assignment: Assignment) -> ReplicaExplained:
        """Return the explanation of one replica."""
        key = assignment.kv.key
        wanted = assignment.member_id in self.desired and key not in self.replicas.surplus
        return ReplicaExplained(
            member_id=assignment.member_id,
            slot=assignment.slot,
            consistent=key in self.replicas.consistent,
            lag=self.state.lag(assignment),
            desired=wanted,
            why=self._why(assignment, wanted=wanted),
        )

    def _why(self, assignment: Assignment, *, wanted: bool) -> str:
        member = self.state.members.get(assignment.member_id)
        if member is None:
            return "its member is gone"
        if assignment.kv.key in self.replicas.surplus:
            return "a second replica on one member protects nothing"
        item_id, member_id = assignment.item_id, assignment.member_id
        why = self._to_stay(item_id, member_id) if wanted else self._to_go(item_id, member_id)
        if (item_id, member_id) in self.state.avoided:
            return f"it has failed for too long; {why}"
        if member.value.is_exiting():
            if member_id in self.settling.drains_waiting:
                return f"its member is exiting, and waits for a member that replaces it; {why}"
            return f"its member is exiting; {why}"
        return f"it is primary; {why}" if assignment.slot == PRIMARY_SLOT else why

    def _to_stay(self, item_id: ItemId, member_id: MemberId) -> str:
        """Return the reasons that keep a planned replica from the other members, with their numbers."""
        found = self.causes.of_replica(item_id, member_id)
        if not found:
            return "it stays: there is no other member"
        return f"it stays; other members: {told(found)}"

    def _to_go(self, item_id: ItemId, member_id: MemberId) -> str:
        """Return the reasons against the replica staying in place of each planned one, or each new one if any."""
        causes, replication = self.causes, self.replicas.replication
        planned = causes.planned(item_id)
        if not replication:
            return "it goes: no replica is wanted"
        tried = [
            f"instead of {each} this would be a member {causes.verdict(item_id, each, member_id).value}"
            for each in self.replicas.missing or planned
        ]
        if len(planned) < replication:
            # Not even a missing replica may be here, so the member must be full.
            more = causes.verdict(item_id, None, member_id)
            tried.append(f"for one more this would be a member {more.value}")
        return (
            f"it goes; {len(planned)} of {replication} wanted replicas are planned, none of them here: "
            f"{'; '.join(tried)}"
        )


def _notes(leader: LeaderSnapshot, state: AllocState, plan: Plan | None) -> Iterator[str]:
    if plan is None:
        yield "there is no plan: the leader refused its solver's answer; see its log"
    if not leader.settling.is_settled:
        yield f"membership has not settled: {leader.settling.describe()} (settle_seconds)"
    for member_id in sorted(leader.settling.drains_waiting):
        yield f"the drain of {member_id} waits for a member that replaces it (drain_patience_seconds)"
    for member_id, member in state.members.items():
        if member.value.is_cordoned():
            yield f"{member_id} is cordoned: it keeps its replicas, and gets no others"
    if state.member_slots < state.item_slots:
        yield (
            f"members that are neither drained nor cordoned take {state.member_slots} replicas, "
            f"items want {state.item_slots}"
        )
