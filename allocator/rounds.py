"""One round of a leader: look at what is open, decide off the loop, act, and say when to look again.

    snapshot of what is open, or of everything ──► decide ──► keep the plan, store it ──► perform ──► seconds to wait
                                                     └── refused: report, and look again soon

What is looked at is what changed, or what could not be done yet; everything only for a new plan, for hand-overs, and
now and then. A refused step, an unreachable etcd or a defective plan is tried again on a timer, never only when
something unrelated changes; until a plan is good, the last good one is kept to.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import structlog

from allocator.config import AllocationConfig, Offload
from allocator.core.consistency import Consistency
from allocator.core.decision import Decision, Question, decide
from allocator.core.inquiry.standing import Standing
from allocator.core.keys import Keys
from allocator.core.placement.problem import Solver
from allocator.core.plan import PlanRefused
from allocator.core.snapshot import Snapshot
from allocator.errors import EtcdError
from allocator.leadership.leadership import Leadership
from allocator.leadership.plan_store import PlanStore
from allocator.load_feed import LoadFeed
from allocator.metrics import AllocatorMetrics
from allocator.observation import Observation
from allocator.runtime.backoff import Backoff
from allocator.runtime.clock import Clock
from allocator.term import Term

REST_PER_WORK = 1.0
"""Rest after a decision, as a multiple of the time it took: replicas that report one by one must not keep the leader
busy deciding. After a quiet time a change is still acted on at once."""
REST_SECONDS_MAX = 1.0

_log = structlog.get_logger()


class Rounds:
    """Decides and acts for whoever leads. What is remembered from one round to the next is the term's."""

    def __init__(
        self,
        observation: Observation,
        *,
        leadership: Leadership,
        plan_store: PlanStore,
        keys: Keys,
        consistency: Consistency,
        solver: Solver,
        clock: Clock,
        metrics: AllocatorMetrics,
        config: AllocationConfig,
        random: Random,
        offload: Offload,
        before_planning: Callable[[], Awaitable[None]],
        loads: LoadFeed | None,
    ) -> None:
        """Prepare.

        Args:
            observation: What there is to decide on.
            leadership: Told that the allocation gets on.
            plan_store: Where a new plan is kept for the next leader.
            keys: The syntax of the root.
            consistency: Tells which replicas may be relied upon.
            solver: Decides placements.
            clock: Time.
            metrics: Counts what was decided.
            config: Times, and an operator's choices.
            random: Source of jitter.
            offload: Runs decisions, away from the event loop.
            before_planning: Awaited before a decision that may take long.
            loads: Measured loads; without it there are none.
        """
        self._observation = observation
        self._leadership = leadership
        self._plan_store = plan_store
        self._keys = keys
        self._consistency = consistency
        self._solver = solver
        self._clock = clock
        self._metrics = metrics
        self._config = config
        self._random = random
        self._offload = offload
        self._before_planning = before_planning
        self._loads = loads
        self._backoff = Backoff(max_seconds=config.retry_seconds_max, random=random)

    def standing(self, term: Term) -> Standing:
        """Return what is known in a term, for plans and explanations."""
        return Standing(
            snapshot=self._observation.whole(),
            plan=term.plan,
            policy=self._config.policy,
            settling=term.steering.settling,
            now_monotonic_seconds=self._clock.monotonic_seconds(),
            quarantined=term.executor.quarantined,
            epoch=term.fence.epoch,
            solver=self._solver,
            consistency=self._consistency,
            keys=self._keys,
        )

    async def perform(self, term: Term) -> float:
        """Decide and act once. Return how long to wait at most for a change."""
        tracker = self._observation.tracker
        times = self._leadership.config
        if self._loads is not None:
            # Of very many shards it may take as long as a solve.
            self._leadership.vouch(times.solve_seconds_max)
            await self._loads.update(tracker)
            self._leadership.vouch(times.turn_seconds_max)
        started = self._clock.monotonic_seconds()
        tracker.observe_failures(started)
        term.steering.observe(tracker, started)
        term.is_informed = True
        demand = tracker.demand
        opened = tracker.take_open()
        hand_overs = 0 if opened else term.steering.hand_overs_allowed(tracker, started)
        if hand_overs:
            term.steering.on_hand_overs_asked(started)
        is_whole = (
            demand != term.planned_demand or self._audit_is_due(term, started) or bool(hand_overs)
        )
        if not opened and not is_whole:
            await term.executor.tidy(term.fence)
            return self._pause_seconds(term)
        if term.is_crowded or self._has_budgets():
            opened |= term.waiting
        snapshot = self._observation.whole() if is_whole else self._observation.partial(opened)
        decision = await self._decision(term, snapshot, hand_overs)
        seconds = self._clock.monotonic_seconds() - started
        term.rests_until_monotonic_seconds = (
            started + seconds + min(REST_SECONDS_MAX, REST_PER_WORK * seconds)
        )
        if isinstance(decision, PlanRefused):
            tracker.open(opened)
            return self._refuse(decision)
        tracker.open(decision.open)
        if is_whole:
            term.waiting.clear()
        term.waiting -= opened
        term.waiting |= decision.waiting
        term.is_crowded = decision.is_crowded
        if is_whole:
            term.audited_monotonic_seconds = started
        await self._adopt(term, decision, demand, seconds)
        self._metrics.on_decided(decision.state, decision.convergence, items=tracker.item_count)
        return await self._act(term, decision)

    async def _decision(
        self, term: Term, snapshot: Snapshot, hand_overs: int
    ) -> Decision | PlanRefused:
        question = Question(
            snapshot=snapshot,
            plan=term.plan,
            stored=term.stored,
            ordered=term.ordered,
            solver=self._solver,
            policy=self._config.policy,
            consistency=self._consistency,
            keys=self._keys,
            drains_waiting=term.steering.drains_waiting,
            hand_overs_allowed=hand_overs,
            sees_all_pending=term.is_crowded or self._has_budgets(),
        )
        if snapshot.is_whole:
            await self._before_planning()
        times = self._leadership.config
        self._leadership.vouch(times.solve_seconds_max)
        try:
            async with asyncio.timeout(self._config.decide_seconds_max):
                decision = await self._offload(lambda: decide(question))
        except Exception as error:
            # Whatever it is, and a decision that takes too long as well: reported, and tried again. A leader that dies
            # of it hands it on to the next, until no member is left.
            return PlanRefused(error=error)
        self._leadership.vouch(times.turn_seconds_max)
        return decision

    async def _adopt(self, term: Term, decision: Decision, demand: int, seconds: float) -> None:
        if decision.refused is not None or not decision.state.is_whole:
            return
        if not term.take_up(decision.plan, demand=demand):
            return
        self._metrics.on_solved(seconds, gap=decision.plan.gap)
        placed = sum(map(len, decision.plan.desired.values()))
        log = _log.warning if placed < decision.state.item_slots else _log.info
        log(
            "allocation.plan_continued" if decision.continued else "allocation.solved",
            revision=decision.state.revision,
            epoch=term.fence.epoch,
            items=len(decision.state.items),
            members=len(decision.state.members),
            replicas_wanted=decision.state.item_slots,
            replicas_placed=placed,
            solve_seconds=round(seconds, 4),
        )
        if decision.packed is not None:
            await self._plan_store.store(decision.packed, term.fence)

    async def _act(self, term: Term, decision: Decision) -> float:
        """Perform the steps, and return how long to wait at most for a change."""
        retry_seconds = None if decision.refused is None else self._refuse(decision.refused)
        try:
            lost = await term.executor.perform(
                decision.convergence.steps, term.fence, cause=term.cause
            )
            await term.executor.tidy(term.fence)
        except EtcdError as error:
            self._metrics.on_round_failed()
            term.is_unsure = True
            pause_seconds = self._backoff.next_seconds()
            _log.warning("allocation.round_failed", cause=str(error), retry_seconds=pause_seconds)
            return pause_seconds
        if lost or retry_seconds is not None:
            return min(retry_seconds or self._backoff.next_seconds(), self._pause_seconds(term))
        self._backoff.reset()
        return self._pause_seconds(term)

    def _refuse(self, refused: PlanRefused) -> float:
        """Report a defective plan and return when to look again; what runs goes on running."""
        self._metrics.on_plan_invalid()
        _log.error(
            "allocation.plan_invalid",
            violations=[str(each) for each in refused.violations],
            exc_info=refused.error,
        )
        return self._backoff.next_seconds()

    def _has_budgets(self) -> bool:
        transition = self._config.policy.transition
        return bool(transition.moves_max or transition.moves_per_member_max)

    def _audit_is_due(self, term: Term, now: float) -> bool:
        return now - term.audited_monotonic_seconds >= self._config.audit_seconds

    def _pause_seconds(self, term: Term) -> float:
        now = self._clock.monotonic_seconds()
        pauses = [self._config.recheck_seconds * self._random.uniform(0.9, 1.1)]
        pauses += term.steering.next_seconds(now)
        retry = term.executor.next_try_seconds(now)
        if retry is not None:
            pauses.append(retry + self._random.uniform(0.0, 0.05))
        failure = self._observation.tracker.next_failure_seconds(now)
        if failure is not None:
            pauses.append(failure)
        return min(pauses)
