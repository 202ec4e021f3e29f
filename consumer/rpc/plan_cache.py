"""The cache of plans that a leader remembers until one is applied.

Invariants: the cache is bounded, and keeps of a plan only the data to apply it, because a placement of every shard is
large. A plan whose basis is gone can never be applied, because a basis does not return; only its existence is kept.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from broadsheet.allocator.model import MemberId
from broadsheet.allocator.placement.plan import Plan
from broadsheet.allocator.whatif.leader_snapshot import Basis
from broadsheet.allocator.whatif.preview import PlanPreview
from broadsheet.wire.allocation_pb2 import PlanRequest

PLANS_KEPT_MAX = 16
"""Maximum plans that a leader remembers; the oldest are forgotten."""
PLACEMENTS_KEPT_MAX = 1_000_000
"""Maximum shards whose placements are remembered, over all plans; the newest plan is kept, however large."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CachedPlan:
    """The data to apply a plan."""

    id: str
    basis: Basis
    plan: Plan
    drained: frozenset[MemberId]
    can_be_applied: bool
    asked: PlanRequest
    """The requested changes."""

    @classmethod
    def of(cls, proposal: PlanPreview, asked: PlanRequest) -> CachedPlan:
        """Return the data to keep of a plan's preview."""
        return cls(
            id=proposal.id,
            basis=proposal.basis,
            plan=proposal.plan,
            drained=proposal.hypothesis.drained,
            can_be_applied=proposal.can_be_applied,
            asked=asked,
        )


class PlanCache:
    """The remembered plans, by id."""

    def __init__(self, *, placements_max: int = PLACEMENTS_KEPT_MAX) -> None:
        self._placements_max = placements_max
        self._plans: OrderedDict[str, CachedPlan | None] = OrderedDict()

    def keep(self, kept: CachedPlan, *, basis: Basis | None) -> None:
        """Remember a plan.

        Args:
            kept: The plan.
            basis: The basis of a plan made now; None if no plan can be made any more.
        """
        self._plans[kept.id] = kept
        self._plans.move_to_end(kept.id)
        for plan_id, each in self._plans.items():
            # Its basis does not return, so only the fact that there was such a plan is kept.
            if each is not None and each.basis != basis:
                self._plans[plan_id] = None
        while len(self._plans) > 1 and (
            len(self._plans) > PLANS_KEPT_MAX or self._placements() > self._placements_max
        ):
            self._plans.popitem(last=False)

    def __contains__(self, plan_id: object) -> bool:
        """Return whether there was such a plan, valid or not."""
        return plan_id in self._plans

    def find(self, plan_id: str, *, basis: Basis | None) -> CachedPlan | None:
        """Return a plan that is still valid; None if there was none, or its basis has changed.

        Args:
            plan_id: Its id.
            basis: The basis of a plan made now; None if no plan can be made any more.
        """
        kept = self._plans.get(plan_id)
        return kept if kept is not None and kept.basis == basis else None

    def _placements(self) -> int:
        return sum(len(each.plan.desired) for each in self._plans.values() if each is not None)
