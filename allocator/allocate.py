"""The allocation loop: every member runs it, the one that leads acts.

    wake (a change, or a timer) ──► snapshot of what is open ──► off the loop: plan if the demand changed, next steps
         ▲                                                              │
         └── wait for our own writes to show ◄── transactions, each fenced by the epoch ◄┘

Invariants: the event loop is never held for a solve, and no lock is held at all: a decision is made on a frozen
snapshot, and every write compares what it was decided upon. A refused step, an unreachable etcd or a defective plan is
tried again on a timer, never only when something unrelated changes; until a plan is good, the last good one is kept to.
What is looked at is what changed, or what could not be done yet; everything only for a new plan, and now and then.

Source: gazette/core allocator/allocate.go (the loop); the rest is ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from random import Random
from typing import Protocol, TypeVar

import structlog

from allocator.core.consistency import Consistency
from allocator.core.decision import Decision, Question, decide
from allocator.core.inquiry.standing import Standing
from allocator.core.keys import ItemKey
from allocator.core.model import Assignment, ItemId, MemberId
from allocator.core.placement.problem import Solver
from allocator.core.plan import Plan, PlanRefused
from allocator.core.policy import AllocationPolicy
from allocator.core.snapshot import Snapshot
from allocator.core.tracker import Tracker
from allocator.errors import EtcdError, KeyDecodeError, MemberKeyLostError
from allocator.etcd.api import Etcd
from allocator.execute import Executor
from allocator.key_space import KeySpace
from allocator.leadership.leadership import Fence, Leadership
from allocator.leadership.plan_store import PlanStore
from allocator.load_feed import LoadFeed
from allocator.metrics import AllocatorMetrics
from allocator.runtime.backoff import Backoff
from allocator.runtime.clock import Clock
from allocator.steering import Steering
from allocator.term import Term

REST_PER_WORK = 1.0
"""Rest after a decision, as a multiple of the time it took: replicas that report one by one must not keep the leader
busy deciding. After a quiet time a change is still acted on at once."""
REST_SECONDS_MAX = 1.0

CATCH_UP_SECONDS = 5.0
"""How long to wait for what others wrote to show before asking again what the newest is."""

_log = structlog.get_logger()
T = TypeVar("T")


class Offload(Protocol):
    """Runs a function elsewhere than on the event loop, and returns its result."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]:
        """Run `work`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationConfig:
    """Times of the loop, and an operator's choices."""

    recheck_seconds: float = 30.0
    """Longest pause between two looks of a leader, with up to a tenth of jitter."""
    audit_seconds: float = 300.0
    """Longest time between two looks at everything, changed or not."""
    retry_seconds_max: float = 5.0
    """Longest delay before a round that an error ended is tried again."""
    replace_failed_after_seconds: float = 60.0
    """How long a standby may stay failed before it is placed elsewhere."""
    decide_seconds_max: float = 600.0
    """A decision that takes longer is given up and made again. Another member, if there is one, leads long before."""
    policy: AllocationPolicy = field(default_factory=AllocationPolicy)


class AllocationLoop:
    """Allocates while the local member leads; ends when it is exiting and holds nothing."""

    def __init__(
        self,
        etcd: Etcd,
        key_space: KeySpace,
        *,
        member_id: MemberId,
        leadership: Leadership,
        plan_store: PlanStore,
        consistency: Consistency,
        is_failed: Callable[[Assignment], bool],
        solver: Solver,
        clock: Clock,
        metrics: AllocatorMetrics,
        config: AllocationConfig,
        random: Random,
        offload: Offload = asyncio.to_thread,
        before_planning: Callable[[], Awaitable[None]] | None = None,
        loads: LoadFeed | None = None,
    ) -> None:
        self._etcd = etcd
        self._key_space = key_space
        self._member_id = member_id
        self._leadership = leadership
        self._plan_store = plan_store
        self._consistency = consistency
        self._is_failed = is_failed
        self._solver = solver
        self._clock = clock
        self._metrics = metrics
        self._config = config
        self._random = random
        self._offload = offload
        self._before_planning = before_planning
        self._loads = loads
        self._backoff = Backoff(max_seconds=config.retry_seconds_max, random=random)
        self._wake = asyncio.Event()
        self._tracker: Tracker | None = None
        self._term: Term | None = None
        key_space.observe(self._on_update)
        leadership.observe(self._wake.set)

    async def run(self) -> None:
        """Allocate until the local member is exiting and holds nothing.

        Raises:
            MemberKeyLostError: the local member's key is gone.
        """
        while not self._is_drained():
            self._wake.clear()
            pause_seconds: float | None = None
            fence = self._leadership.fence
            self._vouch_for_a_turn()
            if fence is None:
                self._end_term()
            else:
                term = await self._term_under(fence)
                if term.is_unsure:
                    pause_seconds = await self._renew(term)
                else:
                    await self._rest(term)
                    pause_seconds = await self._round(term)
            await self._wait(pause_seconds)

    def standing(self) -> Standing | None:
        """Return what we know as the leader, for plans and explanations; None if we do not lead, or only just do."""
        term = self.term
        if term is None:
            return None
        return Standing(
            snapshot=self._snapshot(frozenset(), is_whole=True),
            plan=term.plan,
            policy=self._config.policy,
            settling=term.steering.settling,
            now_monotonic_seconds=self._clock.monotonic_seconds(),
            quarantined=term.executor.quarantined,
            epoch=term.fence.epoch,
            solver=self._solver,
            consistency=self._consistency,
            keys=self._key_space.keys,
        )

    @property
    def term(self) -> Term | None:
        """What we remember as the leader; None if we do not lead."""
        return self._term if self._leadership.fence is not None else None

    def order(self, plan: Plan) -> Term | None:
        """Have `plan` taken as it is once the demand is the one that it answers; None if we do not lead.

        Returns:
            The leadership, whose fence must guard whatever brings that demand about.
        """
        term = self.term
        if term is not None:
            term.order(plan)
            self._wake.set()
        return term

    async def offload(self, work: Callable[[], T]) -> T:
        """Run what takes long away from the event loop."""
        return await self._offload(work)

    def _on_update(self) -> None:
        if self._tracker is not None:
            self._tracker.apply(self._key_space.changes)
        self._wake.set()

    def _is_drained(self) -> bool:
        key_space = self._key_space
        member = key_space.members.get(self._member_id)
        if member is None:
            key = key_space.keys.member(self._member_id)
            if key_space.kv_or_none(key) is None:
                raise MemberKeyLostError(key.decode())
            return False
        return member.value.is_exiting() and not self._tracked().holds_items(self._member_id)

    def _tracked(self) -> Tracker:
        """Return what is derived of the key space; members that neither lead nor leave need not derive anything."""
        if self._tracker is None:
            self._tracker = Tracker(
                self._key_space,
                local_id=self._member_id,
                is_failed=self._is_failed,
                consistency=self._consistency,
                replace_failed_after_seconds=self._config.replace_failed_after_seconds,
            )
        return self._tracker

    async def _term_under(self, fence: Fence) -> Term:
        """Return what is remembered of this leadership; a new one begins with the plan that its predecessor stored."""
        if self._term is None or self._term.fence.epoch != fence.epoch:
            self._end_term()
            await self._catch_up()
            found = await self._plan_store.load()
            executor = Executor(
                self._etcd,
                self._key_space,
                clock=self._clock,
                metrics=self._metrics,
                on_progress=self._vouch_for_a_turn,
            )
            self._term = Term(
                fence,
                executor,
                Steering(self._config.policy),
                None if found is None else found.plan,
            )
        self._term.fence = fence
        return self._term

    async def _catch_up(self) -> None:
        """Wait until the key space shows what was written before our claim.

        Leadership is watched apart from the root, and may show first. Who decided then would not know the
        predecessor's last additions: a second primary, or a member above its limit.
        """
        prefix = self._key_space.keys.watched_prefix
        while True:
            try:
                newest = await self._etcd.newest_revision(prefix)
                async with asyncio.timeout(CATCH_UP_SECONDS):
                    return await self._key_space.wait_for_revision(newest)
            except (EtcdError, TimeoutError) as error:
                _log.warning("allocation.catching_up", cause=str(error))
            await self._backoff.sleep()

    def _end_term(self) -> None:
        if self._term is not None:
            self._term.settle_order()
            self._term = None
            self._tracker = None

    def _vouch_for_a_turn(self) -> None:
        self._leadership.vouch(self._leadership.config.turn_seconds_max)

    async def _renew(self, term: Term) -> float:
        """Have etcd refuse what we sent and got no answer to. Return when to try again, unless the new term begins."""
        try:
            await self._leadership.renew(term.fence)
        except EtcdError as error:
            _log.warning("allocation.renewal_failed", cause=str(error))
        return self._backoff.next_seconds()

    async def _rest(self, term: Term) -> None:
        rest_seconds = term.rests_until_monotonic_seconds - self._clock.monotonic_seconds()
        if rest_seconds > 0.0:
            await asyncio.sleep(rest_seconds)

    async def _wait(self, pause_seconds: float | None) -> None:
        """Wait for a change; a leader vouches for itself meanwhile."""
        if pause_seconds is None:
            await self._wake.wait()
            return
        deadline = self._clock.monotonic_seconds() + pause_seconds
        while not self._wake.is_set():
            left = deadline - self._clock.monotonic_seconds()
            if left <= 0.0:
                return
            self._vouch_for_a_turn()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left, self._leadership.config.beat_seconds)):
                    await self._wake.wait()

    async def _round(self, term: Term) -> float:
        """Decide and act once. Return how long to wait at most for a change."""
        tracker = self._tracked()
        if self._loads is not None:
            await self._loads.update(tracker)
        started = self._clock.monotonic_seconds()
        tracker.observe_failures(started)
        term.steering.observe(tracker, started)
        demand = tracker.demand
        opened = tracker.take_open()
        hand_overs = 0 if opened else term.steering.hand_overs_allowed(tracker, started)
        if hand_overs:
            term.steering.on_hand_overs_asked(started)
        is_whole = (
            demand != term.planned_demand or self._audit_is_due(term, started) or bool(hand_overs)
        )
        if not opened and not is_whole:
            return self._pause_seconds(term)
        if term.is_crowded or self._has_budgets():
            opened |= term.waiting
        snapshot = self._snapshot(opened, is_whole=is_whole)
        decision = await self._decision(term, snapshot, hand_overs)
        seconds = self._clock.monotonic_seconds() - started
        term.rests_until_monotonic_seconds = (
            started + seconds + min(REST_SECONDS_MAX, REST_PER_WORK * seconds)
        )
        if isinstance(decision, PlanRefused):
            tracker.open(opened)
            return self._refuse(decision)
        tracker.open(decision.open)
        term.waiting = decision.waiting | (frozenset() if is_whole else term.waiting - opened)
        term.is_crowded = decision.is_crowded
        retry_seconds = None if decision.refused is None else self._refuse(decision.refused)
        if is_whole:
            term.audited_monotonic_seconds = started
        await self._adopt(term, decision, demand, seconds)
        self._metrics.on_decided(decision.state, decision.convergence, items=tracker.item_count)
        try:
            lost = await term.executor.perform(decision.convergence.steps, term.fence)
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

    def _has_budgets(self) -> bool:
        transition = self._config.policy.transition
        return bool(transition.moves_max or transition.moves_per_member_max)

    def _audit_is_due(self, term: Term, now: float) -> bool:
        return now - term.audited_monotonic_seconds >= self._config.audit_seconds

    def _snapshot(self, opened: frozenset[ItemId], *, is_whole: bool) -> Snapshot:
        tracker, revision = self._tracked(), self._key_space.header.revision
        unreadable = self._unreadable_items()
        if is_whole:
            return tracker.whole(revision=revision, unreadable_items=unreadable)
        return tracker.partial(opened, revision=revision, unreadable_items=unreadable)

    def _unreadable_items(self) -> list[ItemId]:
        found: list[ItemId] = []
        for key in self._key_space.undecodable:
            with suppress(KeyDecodeError):
                parsed = self._key_space.keys.parse(key)
                if isinstance(parsed, ItemKey):
                    found.append(parsed.item_id)
        return found

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
            keys=self._key_space.keys,
            drains_waiting=term.steering.drains_waiting,
            hand_overs_allowed=hand_overs,
            sees_all_pending=term.is_crowded or self._has_budgets(),
        )
        if snapshot.is_whole and self._before_planning is not None:
            await self._before_planning()
        self._leadership.vouch(self._leadership.config.solve_seconds_max)
        try:
            async with asyncio.timeout(self._config.decide_seconds_max):
                decision = await self._offload(lambda: decide(question))
        except TimeoutError as error:
            return PlanRefused(error=error)
        self._vouch_for_a_turn()
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

    def _refuse(self, refused: PlanRefused) -> float:
        """Report a defective plan and return when to look again; what runs goes on running."""
        self._metrics.on_plan_invalid()
        _log.error(
            "allocation.plan_invalid",
            violations=[str(each) for each in refused.violations],
            exc_info=refused.error,
        )
        return self._backoff.next_seconds()

    def _pause_seconds(self, term: Term) -> float:
        now = self._clock.monotonic_seconds()
        pauses = [self._config.recheck_seconds * self._random.uniform(0.9, 1.1)]
        pauses += term.steering.next_seconds(now)
        retry = term.executor.next_try_seconds(now)
        if retry is not None:
            pauses.append(retry + self._random.uniform(0.0, 0.05))
        failure = self._tracked().next_failure_seconds(now)
        if failure is not None:
            pauses.append(failure)
        return min(pauses)
