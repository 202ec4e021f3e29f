"""The allocation loop. Every member runs it; only the leader acts.

    wake (a change, or a timer) ──► under a new epoch: catch up, begin a term ──► rest ──► a round (`Rounds`)
         ▲                          an answer was lost: take leadership again                   │
         └────────── wait for a change, as long as the round said, and beat meanwhile ◄─────────┘

Invariants: a solve never blocks the event loop, and there are no locks: a decision is made on a frozen snapshot, and
every write compares the values that it was decided on and the epoch. A term begins only when the key space shows all
earlier writes, and ends with its epoch.

Source: gazette/core allocator/allocate.go (the loop); the rest is ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import structlog

from broadsheet.allocator.config import AllocationConfig, Runtime
from broadsheet.allocator.errors import EtcdError
from broadsheet.allocator.key_space import KeySpace, ObserverStage
from broadsheet.allocator.leader.decision import Decision, DecisionBasis, decide
from broadsheet.allocator.leader.executor import Executor
from broadsheet.allocator.leader.leadership import Fence, Leadership
from broadsheet.allocator.leader.load_feed import LoadFeed
from broadsheet.allocator.leader.move_log import MoveLog
from broadsheet.allocator.leader.move_records import Cause
from broadsheet.allocator.leader.plan_store import PlanStore
from broadsheet.allocator.leader.round_plan import (
    Ending,
    RoundFacts,
    RoundPlan,
    Scope,
    conclude_round,
    ending_of,
    plan_round,
)
from broadsheet.allocator.leader.state import LeaderState, Observation, PacingPolicy
from broadsheet.allocator.placement.plan import Plan, PlanRefused
from broadsheet.allocator.placement.problem import Solver
from broadsheet.allocator.whatif.leader_snapshot import Basis, LeaderSnapshot
from broadsheet.runtime.backoff import Backoff
from broadsheet.runtime.story import new_story, noting, story_text

CATCH_UP_SECONDS = 5.0
"""How long to wait until other members' writes are visible before reading the newest revision again."""
STEPS_TOLD_MAX = 4
"""Steps of a round that its story names."""
_STORY_FIELDS: Final = ("epoch", "plan_version", "answered", "open", "waiting", "crowded", "unsure")


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaderParts:
    """The parts that a member's allocation works with while it leads; they last from term to term."""

    observation: Observation
    """The derived state to decide on."""
    leadership: Leadership
    """The right to write, extended by progress."""
    executor: Executor
    """Performs the steps."""
    plan_store: PlanStore
    """Keeps the plan for the next leader."""
    loads: LoadFeed | None
    """Measured loads; None if there are none."""
    config: AllocationConfig
    runtime: Runtime

    def new_backoff(self) -> Backoff:
        """Return the delays between attempts of what failed."""
        return Backoff(max_seconds=self.config.retry_seconds_max, random=self.runtime.random)


class Rounds:
    """Performs a leader's rounds, as `broadsheet.allocator.leader.round_plan` decides them.

        facts ──► plan_round ──► snapshot ──► decide ──► conclude_round ──► perform steps ──► ending_of ──► delay
                                                └── refused: report, and retry soon

    A refused step, an unreachable etcd or a defective plan is retried on a timer, never only after an unrelated
    change; until a new plan is valid, the last valid one stays in force.
    """

    def __init__(
        self,
        parts: LeaderParts,
        *,
        solver: Solver,
        before_planning: Callable[[], Awaitable[None]],
    ) -> None:
        """Prepare the rounds.

        Args:
            parts: What a leader works with.
            solver: Decides placements.
            before_planning: Awaited before a decision that may take long.
        """
        self._observation = parts.observation
        self._leadership = parts.leadership
        self._executor = parts.executor
        self._plan_store = parts.plan_store
        self._loads = parts.loads
        self._config = parts.config
        self._runtime = parts.runtime
        self._clock = parts.runtime.clock
        self._metrics = parts.runtime.metrics
        self._solver = solver
        self._before_planning = before_planning
        self._backoff = parts.new_backoff()
        self._story = new_story()
        self._story.append((0.0, "created", (), (None, 0, -1, 0, 0, False, False), ()))

    def story(self) -> str:
        """Return the recent rounds with what each changed; a failed assertion of a decision has it as a note."""
        return story_text("the leader's rounds", self._story, _STORY_FIELDS)

    def snapshot(self, leader: LeaderState) -> LeaderSnapshot:
        """Return the leader's snapshot, for plans and explanations."""
        return LeaderSnapshot(
            snapshot=self._observation.whole(),
            plan=leader.plan,
            policy=self._config.policy,
            settling=leader.pacing.settling,
            now_monotonic_seconds=self._clock.monotonic_seconds(),
            quarantined=self._executor.quarantined,
            epoch=leader.fence.epoch,
            solver=self._solver,
            consistency=self._observation.consistency,
            keys=self._observation.keys,
        )

    async def perform(self, leader: LeaderState) -> float:
        """Decide and act once. Return the longest time to wait for a change."""
        await self._update_loads()
        facts = self._look(leader)
        plan = plan_round(facts)
        if plan.scope is Scope.NOTHING:
            # Pruning of the move log is also due by time, so a cluster at rest must not skip it.
            await self._executor.tidy(leader.fence)
            return self._wait_seconds(leader, Ending.AT_REST, retry_seconds=None)
        if plan.hand_overs:
            leader.pacing.on_hand_overs_asked(facts.now_monotonic_seconds)
        decision = await self._decision(leader, plan)
        decided = self._clock.monotonic_seconds()
        result = conclude_round(plan, facts, decision, decided_monotonic_seconds=decided)
        # Taken out by `_look`, so that a change during the decision opens its item again.
        self._observation.derived.open(result.open_items)
        leader.remember(result)
        self._tell_story(decided, leader, plan, decision)
        if isinstance(decision, PlanRefused):
            ending = ending_of(decision, answered=True, right_lost=False)
            return self._wait_seconds(leader, ending, retry_seconds=self._refuse(decision))
        if result.adopts_plan:
            seconds = decided - facts.now_monotonic_seconds
            await self._adopt(leader, decision, plan.plan_version, seconds)
        item_count = self._observation.derived.item_count
        self._metrics.on_decided(decision.state, decision.convergence, items=item_count)
        return await self._act(leader, decision)

    def _tell_story(
        self, now: float, leader: LeaderState, plan: RoundPlan, decision: Decision | PlanRefused
    ) -> None:
        """Record a round before its steps are performed, because one of them may break an invariant."""
        details: tuple[object, ...] = ("refused",)
        if not isinstance(decision, PlanRefused):
            steps = decision.convergence.steps
            named = [
                f"{each.checkpoint.subject} {each.counts.text}" for each in steps[:STEPS_TOLD_MAX]
            ]
            details = (f"{len(steps)} steps", *named)
        state = (
            leader.fence.epoch,
            plan.plan_version,
            leader.answered_version,
            len(plan.items),
            len(leader.waiting),
            leader.is_crowded,
            leader.is_unsure,
        )
        self._story.append((now, plan.scope.value, details, state, ()))

    async def _update_loads(self) -> None:
        if self._loads is None:
            return
        # For very many shards this may take as long as a solve.
        with self._leadership.long_computation():
            await self._loads.update(self._observation.derived)

    def _look(self, leader: LeaderState) -> RoundFacts:
        """Observe the clock and the members, close the open items, and return the facts."""
        derived, now = self._observation.derived, self._clock.monotonic_seconds()
        derived.observe_failures(now)
        leader.pacing.observe(derived, now)
        leader.is_informed = True
        open_items = derived.take_open()
        transition = self._config.policy.transition
        return RoundFacts(
            now_monotonic_seconds=now,
            audited_monotonic_seconds=leader.audited_monotonic_seconds,
            audit_seconds=self._config.audit_seconds,
            plan_version=derived.plan_version,
            answered_version=leader.answered_version,
            open_items=open_items,
            waiting_items=leader.waiting,
            is_crowded=leader.is_crowded,
            has_move_budget=bool(transition.moves_max or transition.moves_per_member_max),
            # The spread costs time for every member, and is not used while an item is open.
            hand_overs_allowed=0 if open_items else leader.pacing.hand_overs_allowed(derived, now),
        )

    async def _decision(self, leader: LeaderState, plan: RoundPlan) -> Decision | PlanRefused:
        is_whole = plan.scope is Scope.EVERYTHING
        snapshot = self._observation.whole() if is_whole else self._observation.partial(plan.items)
        question = DecisionBasis(
            snapshot=snapshot,
            plan=leader.plan,
            stored=leader.stored,
            ordered=leader.ordered,
            solver=self._solver,
            policy=self._config.policy,
            consistency=self._observation.consistency,
            keys=self._observation.keys,
            drains_waiting=leader.pacing.drains_waiting,
            hand_overs_allowed=plan.hand_overs,
            sees_all_pending=plan.sees_all_pending,
        )
        # Only such a decision may solve, and a solver may block the keep-alive of the lease.
        if is_whole:
            await self._before_planning()
        try:
            with noting(self.story), self._leadership.long_computation():
                async with asyncio.timeout(self._config.decide_seconds_max):
                    return await self._runtime.offload(lambda: decide(question))
        except Exception as error:
            # Any error, and a decision that takes too long, is reported and retried: a leader that died of it would
            # pass it on to the next one, until no member is left.
            return PlanRefused(error=error)

    async def _adopt(
        self, leader: LeaderState, decision: Decision, version: int, seconds: float
    ) -> None:
        # The plan in force answers the new demand as well: it is stored and reported already.
        if not leader.take_up(decision.plan, version=version):
            return
        self._metrics.on_solved(seconds, gap=decision.plan.gap)
        placed = sum(map(len, decision.plan.desired.values()))
        log = _log.warning if placed < decision.state.item_slots else _log.info
        log(
            "allocation.plan_continued" if decision.continued else "allocation.solved",
            revision=decision.state.revision,
            epoch=leader.fence.epoch,
            items=len(decision.state.items),
            members=len(decision.state.members),
            replicas_wanted=decision.state.item_slots,
            replicas_placed=placed,
            solve_seconds=round(seconds, 4),
        )
        # Before the first step, because a successor can continue a stored plan that is half carried out.
        if decision.packed is not None:
            await self._plan_store.store(decision.packed, leader.fence)

    async def _act(self, leader: LeaderState, decision: Decision) -> float:
        """Perform the steps, and return the longest time to wait for a change."""
        # A refused plan and an unreachable etcd are two failures: each makes the retry delay grow.
        retry_seconds = None if decision.refused is None else self._refuse(decision.refused)
        right_lost, error = False, None
        try:
            right_lost = await self._executor.perform(
                decision.convergence.steps, leader.fence, cause=leader.cause
            )
            await self._executor.tidy(leader.fence)
        except EtcdError as caught:
            # A step may still be on its way to etcd. The next turn renews the epoch, so that etcd refuses it.
            error = caught
        ending = ending_of(decision, answered=error is None, right_lost=right_lost)
        if ending is Ending.UNANSWERED:
            self._metrics.on_round_failed()
            leader.is_unsure = True
            retry_seconds = self._backoff.next_seconds()
            _log.warning("allocation.round_failed", cause=str(error), retry_seconds=retry_seconds)
        elif ending.retries and retry_seconds is None:
            retry_seconds = self._backoff.next_seconds()
        elif ending is Ending.DONE:
            self._backoff.reset()
        return self._wait_seconds(leader, ending, retry_seconds=retry_seconds)

    def _refuse(self, refused: PlanRefused) -> float:
        """Report a defective plan and return when to retry; running items keep running."""
        self._metrics.on_plan_invalid()
        _log.error(
            "allocation.plan_invalid",
            violations=[str(each) for each in refused.violations],
            exc_info=refused.error,
        )
        return self._backoff.next_seconds()

    def _wait_seconds(
        self, leader: LeaderState, ending: Ending, *, retry_seconds: float | None
    ) -> float:
        waits = [] if retry_seconds is None else [retry_seconds]
        if ending.waits_for_deadline:
            waits.append(self._deadline_seconds(leader))
        return min(waits)

    def _deadline_seconds(self, leader: LeaderState) -> float:
        """Return how long until time alone may change the decision."""
        now = self._clock.monotonic_seconds()
        random = self._runtime.random
        pauses = [self._config.recheck_seconds * random.uniform(0.9, 1.1)]
        pauses += leader.pacing.next_seconds(now)
        retry = self._executor.next_try_seconds(now)
        if retry is not None:
            pauses.append(retry + random.uniform(0.0, 0.05))
        failure = self._observation.derived.next_failure_seconds(now)
        if failure is not None:
            pauses.append(failure)
        return min(pauses)


_log = structlog.get_logger()


class AllocationLoop:
    """Allocates while the local member leads; ends when the member is exiting and holds nothing."""

    def __init__(self, key_space: KeySpace, parts: LeaderParts, rounds: Rounds) -> None:
        """Prepare the loop.

        Args:
            key_space: Wakes the loop with every change.
            parts: What a leader works with.
            rounds: Its work.
        """
        self._key_space = key_space
        self._observation = parts.observation
        self._leadership = parts.leadership
        self._executor = parts.executor
        self._plan_store = parts.plan_store
        self._clock = parts.runtime.clock
        self._rounds = rounds
        self._backoff = parts.new_backoff()
        self._wake = asyncio.Event()
        self._leader: LeaderState | None = None
        self._pacing = PacingPolicy(parts.config.policy)
        key_space.observe(ObserverStage.WAKE, self._wake.set)
        parts.leadership.observe(self._wake.set)

    async def run(self) -> None:
        """Allocate until the local member is exiting and holds nothing.

        Raises:
            MemberKeyLostError: the local member's key is gone.
        """
        while True:
            await self._prepare_exit()
            if self._observation.is_drained():
                return
            # Before anything is read, so that a change during this turn wakes the next one.
            self._wake.clear()
            pause_seconds: float | None = None
            fence = self._leadership.fence
            self._leadership.report_progress()
            if fence is None:
                self._end_term()
            else:
                leader = await self._leader_under(fence)
                if leader.is_unsure:
                    pause_seconds = await self._renew(leader)
                else:
                    await self._rest(leader)
                    await self._prepare()
                    pause_seconds = await self._rounds.perform(leader)
            await self._wait(pause_seconds)

    async def _prepare_exit(self) -> None:
        # An exiting member checks in each turn whether it holds anything, also if another member leads.
        if self._observation.is_exiting():
            await self._observation.prepare(self._clock)

    async def _prepare(self) -> None:
        # For very many shards this may take as long as a solve.
        with self._leadership.long_computation():
            await self._observation.prepare(self._clock)

    @property
    def move_log(self) -> MoveLog:
        """The log of the leaders' moves."""
        return self._executor.move_log

    def snapshot(self) -> LeaderSnapshot | None:
        """Return the leader's snapshot, for plans and explanations; None if we do not lead, or only just started to."""
        leader = self.leader_state
        return None if leader is None else self._rounds.snapshot(leader)

    def story(self) -> str:
        """Return the recent rounds of this member as leader, as text."""
        return self._rounds.story()

    def basis(self) -> Basis | None:
        """Return the basis of a plan made now; None if we do not lead, or only just started to."""
        leader = self.leader_state
        return None if leader is None else (leader.fence.epoch, *self._observation.derived.basis)

    @property
    def leader_state(self) -> LeaderState | None:
        """The state of this member as the leader; None if it does not lead, or only just started to."""
        leader = self._leader
        # The fence may be gone already while a turn of the loop is still under way.
        is_known = leader is not None and leader.is_informed and self._leadership.fence is not None
        return leader if is_known else None

    def order(self, plan: Plan, cause: Cause) -> LeaderState | None:
        """Adopt `plan` as soon as the demand is the one that it answers; None if there is no `leader_state`.

        Args:
            plan: The plan to follow.
            cause: Logged with every move that results from it.

        Returns:
            The leadership, whose fence must guard the writes that bring that demand about.
        """
        leader = self.leader_state
        if leader is not None:
            leader.order(plan, cause)
            self._wake.set()
        return leader

    async def _leader_under(self, fence: Fence) -> LeaderState:
        """Return the state of this term; a new term begins with its predecessor's stored plan."""
        # What was learned in another epoch is void: another leader may have acted in between.
        if self._leader is None or self._leader.fence.epoch != fence.epoch:
            self._end_term()
            await self._catch_up()
            found = await self._plan_store.load()
            self._leader = LeaderState(fence, self._pacing, None if found is None else found.plan)
            self._backoff.reset()
        self._leader.fence = fence
        return self._leader

    async def _catch_up(self) -> None:
        """Wait until the key space shows everything written before our claim.

        Leadership is watched separately from the root, and may become visible first. A leader that decided then would
        not know its predecessor's last additions: the result would be a second primary, or a member above its limit.
        """
        while True:
            try:
                if await self._key_space.catch_up(timeout_seconds=CATCH_UP_SECONDS):
                    return
                _log.warning("allocation.catching_up", cause="the watch is behind")
            except EtcdError as error:
                _log.warning("allocation.catching_up", cause=str(error))
            await self._backoff.sleep()

    def _end_term(self) -> None:
        if self._leader is not None:
            self._leader.settle_order()
            self._leader = None
            self._executor.forget()
            self._observation.forget()

    async def _renew(self, leader: LeaderState) -> float:
        """Have etcd refuse our unanswered requests. Return when to retry, unless the new term begins."""
        try:
            await self._leadership.renew(leader.fence)
        except EtcdError as error:
            _log.warning("allocation.renewal_failed", cause=str(error))
        return self._backoff.next_seconds()

    async def _rest(self, leader: LeaderState) -> None:
        rest_seconds = leader.rests_until_monotonic_seconds - self._clock.monotonic_seconds()
        if rest_seconds > 0.0:
            await asyncio.sleep(rest_seconds)

    async def _wait(self, pause_seconds: float | None) -> None:
        """Wait for a change; meanwhile a leader reports its progress."""
        # We do not lead, so time alone changes nothing: a change of leadership wakes the loop.
        if pause_seconds is None:
            await self._wake.wait()
            return
        deadline = self._clock.monotonic_seconds() + pause_seconds
        while not self._wake.is_set():
            left = deadline - self._clock.monotonic_seconds()
            if left <= 0.0:
                return
            # To wait is progress, too: a leader at rest must not stop beating.
            self._leadership.report_progress()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left, self._leadership.config.beat_seconds)):
                    await self._wake.wait()
