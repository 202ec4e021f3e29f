"""A leader's state: what it remembers between rounds. Except for pacing, it begins and ends with the term."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from allocator.core.ledger import Cause
from allocator.core.stored_plan import StoredPlan
from allocator.execute import Executor
from allocator.leadership.leadership import Fence
from allocator.model import ItemId
from allocator.placement.plan import Plan
from allocator.round_plan import RoundResult
from allocator.steering import PacingPolicy


@dataclass(slots=True)
class LeaderState:
    """A leader's memory of one term."""

    fence: Fence
    executor: Executor
    pacing: PacingPolicy
    stored: StoredPlan | None
    """The plan that the leader before stored, until there is a plan."""
    plan: Plan | None = None
    """In force."""
    answered_version: int = -1
    """The tracker's plan version that `plan` answers."""
    ordered: Plan | None = None
    """The plan that an operator ordered, until a plan is made after it."""
    cause: Cause = field(default_factory=Cause)
    """On whose behalf `plan` is in force."""
    waiting: set[ItemId] = field(default_factory=set)
    """Items that wait for their own replicas: not looked at until those change, unless others wait for them."""
    is_crowded: bool = False
    """Whether something waits for moves that are in flight."""
    is_informed: bool = False
    """Whether loads, and what time makes of membership, are known: before that, a preview would mislead."""
    is_unsure: bool = False
    """Whether something that we sent may still be on its way to etcd: nothing more is decided in this term."""
    audited_monotonic_seconds: float = 0.0
    rests_until_monotonic_seconds: float = 0.0
    _ordered_cause: Cause = field(default_factory=Cause)
    _order_settled: asyncio.Event = field(default_factory=asyncio.Event)

    def order(self, plan: Plan, cause: Cause) -> None:
        """Take `plan` as it is in the next round whose demand it answers, on somebody's behalf."""
        self.ordered, self._ordered_cause = plan, cause
        self.answered_version = -1
        self._order_settled.clear()

    def settle_order(self) -> None:
        """End the wait for an order, because it was followed, overtaken, or taken back."""
        self.ordered = None
        self._order_settled.set()

    async def order_settled(self) -> None:
        """Wait until no order stands."""
        await self._order_settled.wait()

    def remember(self, result: RoundResult) -> None:
        """Take over what a round found out; its plan is apart (`take_up`)."""
        if result.waiting_removed is None:
            self.waiting.clear()
        else:
            self.waiting -= result.waiting_removed
        self.waiting |= result.waiting_added
        self.is_crowded = result.is_crowded
        self.audited_monotonic_seconds = result.audited_monotonic_seconds
        self.rests_until_monotonic_seconds = result.rests_until_monotonic_seconds

    def take_up(self, plan: Plan, *, version: int) -> bool:
        """Take over the plan that answers a plan version. Return whether it is another one than before."""
        is_new, self.stored, self.answered_version = plan is not self.plan, None, version
        is_ordered = self.ordered is not None and plan.desired == self.ordered.desired
        if is_new or is_ordered:
            self.cause = self._ordered_cause if is_ordered else Cause()
        if self.ordered is not None and (is_new or plan is self.ordered):
            self.settle_order()
        self.plan = plan
        return is_new
