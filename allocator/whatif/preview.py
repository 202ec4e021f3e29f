"""Preview of a change's moves: planned and simulated without any write, and adopted unchanged on request."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from hashlib import blake2b

from broadsheet.allocator.model import MemberId
from broadsheet.allocator.placement.plan import Plan, PlanRefused, plan_for
from broadsheet.allocator.state.alloc_state import AllocState
from broadsheet.allocator.transition.membership_settling import waits_to_settle
from broadsheet.allocator.whatif.causes import CauseFinder
from broadsheet.allocator.whatif.dry_run import DryRun, perform_dry_run
from broadsheet.allocator.whatif.leader_snapshot import (
    Basis,
    Hypothesis,
    LeaderSnapshot,
    as_planned,
    supposed,
)

ID_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberLoad:
    """A member's replicas before and after."""

    member_id: MemberId
    limit: int
    replicas_before: int
    primaries_before: int
    replicas_after: int
    primaries_after: int


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanPreview:
    """A plan for a hypothetical state."""

    id: str
    """Unique id of this plan, even among plans for the same change."""
    basis: Basis
    """The basis of the plan: the plan is valid while this is unchanged."""
    revision: int
    hypothesis: Hypothesis
    plan: Plan
    dry_run: DryRun
    loads: tuple[MemberLoad, ...]

    @property
    def can_be_applied(self) -> bool:
        """True if the hypothesis can be made true: members cannot be created."""
        return not self.hypothesis.joined


def preview_plan(
    leader: LeaderSnapshot,
    hypothesis: Hypothesis,
    *,
    is_wanted: Callable[[], bool] = lambda: True,
) -> PlanPreview | PlanRefused:
    """Return the result if `hypothesis` came true now; a refusal if the solver's placement breaks a rule.

    Args:
        leader: The leader's snapshot.
        hypothesis: The differences from the current cluster.
        is_wanted: Called at intervals; False abandons the preview.

    Raises:
        DryRunAbandonedError: the preview is not wanted any more.
    """
    state, settling = supposed(leader, hypothesis)
    policy = replace(leader.policy, objective=state.objective)
    plan = plan_for(state, leader.plan, leader.solver, policy)
    if isinstance(plan, PlanRefused):
        return plan
    dry_run = perform_dry_run(state, plan, leader, settling=settling, is_wanted=is_wanted)
    # Balance waits until then, so the moves that it will make are shown as waiting.
    if not settling.is_settled:
        problem = replace(as_planned(state, plan), objective=leader.policy.objective)
        balanced = leader.solver.solve(problem)
        delayed = tuple(waits_to_settle(plan.desired, balanced, settling.describe()))
        dry_run = replace(dry_run, waits=(*dry_run.waits, *delayed))
    # The plan answers the state before the dry run, so causes are looked for in that state.
    causes = CauseFinder(state.problem(), plan.desired)
    dry_run = replace(
        dry_run,
        waits=causes.explained(dry_run.waits),
        stuck=causes.explained(dry_run.stuck),
    )
    return PlanPreview(
        id=_id_of(leader.basis, plan),
        basis=leader.basis,
        revision=leader.snapshot.revision,
        hypothesis=hypothesis,
        plan=plan,
        dry_run=dry_run,
        loads=_loads(state, dry_run.final),
    )


def _id_of(basis: Basis, plan: Plan) -> str:
    digest = blake2b(repr(basis).encode(), digest_size=ID_BYTES)
    for member in plan.demand.members:
        digest.update(
            f"m {member.member_id} {member.limit} {member.exiting} {member.cordoned} {member.drain_cost}\n".encode()
        )
    for item_id, members in plan.desired.items():
        digest.update(f"i {item_id} {' '.join(map(str, members))}\n".encode())
    return digest.hexdigest()


def _loads(before: AllocState, after: AllocState) -> tuple[MemberLoad, ...]:
    def count(loads: Mapping[MemberId, int], member_id: MemberId) -> int:
        return loads.get(member_id, 0)

    return tuple(
        MemberLoad(
            member_id=member_id,
            limit=before.limits[member_id],
            replicas_before=count(before.loads.total, member_id),
            primaries_before=count(before.loads.primary, member_id),
            replicas_after=count(after.loads.total, member_id),
            primaries_after=count(after.loads.primary, member_id),
        )
        for member_id in before.members
    )
