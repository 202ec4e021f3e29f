"""What a leader remembers. But for its sense of time, that begins and ends with its leadership."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field

from allocator.core.ledger import Cause
from allocator.core.model import ItemId
from allocator.core.plan import Plan
from allocator.core.stored_plan import StoredPlan
from allocator.execute import Executor
from allocator.leadership.leadership import Fence
from allocator.round_plan import RoundResult
from allocator.steering import Steering


@dataclass(slots=True)
class Term:
    """One leadership."""

    fence: Fence
    executor: Executor
    steering: Steering
    stored: StoredPlan | None
    """What the leader before left behind, until there is a plan."""
    plan: Plan | None = None
    """In force."""
    planned_demand: int = -1
    """The tracker's demand that `plan` answers."""
    ordered: Plan | None = None
    """What an operator ordered, until a plan is made after it."""
    cause: Cause = field(default_factory=Cause)
    """On whose behalf `plan` is in force."""
    waiting: set[ItemId] = field(default_factory=set)
    """Items that wait for their own replicas: not looked at until those change, unless others wait for them."""
    is_crowded: bool = False
    """Whether something waits for moves that are in flight."""
    is_informed: bool = False
    """Whether loads, and what time makes of membership, are known: before that nobody should ask what would happen."""
    is_unsure: bool = False
    """Whether something that we sent may still be on its way to etcd: nothing more is decided in this term."""
    audited_monotonic_seconds: float = 0.0
    rests_until_monotonic_seconds: float = 0.0
    _ordered_cause: Cause = field(default_factory=Cause)
    _order_settled: asyncio.Event = field(default_factory=asyncio.Event)

    def order(self, plan: Plan, cause: Cause) -> None:
        """Have `plan` taken as it is once the demand is the one that it answers, on somebody's behalf."""
        self.ordered, self._ordered_cause = plan, cause
        self.planned_demand = -1
        self._order_settled.clear()

    def settle_order(self) -> None:
        """The order was followed, overtaken, or taken back: whoever waits for it need not wait longer."""
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

    def take_up(self, plan: Plan, *, demand: int) -> bool:
        """Note that a plan was found to answer the demand; return whether it is another one than before."""
        is_new, self.stored, self.planned_demand = plan is not self.plan, None, demand
        is_ordered = self.ordered is not None and plan.desired == self.ordered.desired
        if is_new or is_ordered:
            self.cause = self._ordered_cause if is_ordered else Cause()
        if self.ordered is not None and (is_new or plan is self.ordered):
            self.settle_order()
        self.plan = plan
        return is_new
