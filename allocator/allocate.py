"""The allocation loop. Every member runs it; only the leader acts.

    wake (a change, or a timer) ──► under a new epoch: catch up, begin a term ──► rest ──► a round (`rounds`)
         ▲                          an answer was lost: take leadership again                   │
         └────────── wait for a change, as long as the round said, and beat meanwhile ◄─────────┘

Invariants: the event loop is never held for a solve, and no lock is held at all: a decision is made on a frozen
snapshot, and every write compares what it was decided upon and the epoch. A term begins only where the key space shows
all that was written before it, and ends with its epoch.

Source: gazette/core allocator/allocate.go (the loop); the rest is ours.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from random import Random

import structlog

from allocator.config import AllocationConfig
from allocator.core.ledger import Cause
from allocator.errors import EtcdError
from allocator.etcd.api import Etcd
from allocator.execute import Executor
from allocator.key_space import KeySpace
from allocator.leadership.leadership import Fence, Leadership
from allocator.leadership.plan_store import PlanStore
from allocator.ledger import Ledger
from allocator.metrics import AllocatorMetrics
from allocator.observation import Observation
from allocator.placement.plan import Plan
from allocator.rounds import Rounds
from allocator.runtime.backoff import Backoff
from allocator.runtime.clock import Clock
from allocator.steering import PacingPolicy
from allocator.term import LeaderState
from allocator.whatif.leader_snapshot import Basis, Standing

CATCH_UP_SECONDS = 5.0
"""How long to wait for what others wrote to show before asking again what the newest is."""

_log = structlog.get_logger()


class AllocationLoop:
    """Allocates while the local member leads; ends when it is exiting and holds nothing."""

    def __init__(
        self,
        etcd: Etcd,
        key_space: KeySpace,
        *,
        observation: Observation,
        rounds: Rounds,
        leadership: Leadership,
        plan_store: PlanStore,
        ledger: Ledger,
        clock: Clock,
        metrics: AllocatorMetrics,
        config: AllocationConfig,
        random: Random,
    ) -> None:
        """Prepare; construct it after what it observes, for it wakes when they have looked.

        Args:
            etcd: Where steps are performed.
            key_space: Where they show.
            observation: Whether the local member may go.
            rounds: What a leader does.
            leadership: Whether the local member leads.
            plan_store: What the leader before left behind.
            ledger: Where steps are noted.
            clock: Time.
            metrics: Counts what is done.
            config: Times, and an operator's choices.
            random: Source of jitter.
        """
        self._etcd = etcd
        self._key_space = key_space
        self._observation = observation
        self._rounds = rounds
        self._leadership = leadership
        self._plan_store = plan_store
        self.ledger = ledger
        self._clock = clock
        self._metrics = metrics
        self._config = config
        self._backoff = Backoff(max_seconds=config.retry_seconds_max, random=random)
        self._wake = asyncio.Event()
        self._leader: LeaderState | None = None
        self._pacing = PacingPolicy(config.policy)
        key_space.observe(self._wake.set)
        leadership.observe(self._wake.set)

    async def run(self) -> None:
        """Allocate until the local member is exiting and holds nothing.

        Raises:
            MemberKeyLostError: the local member's key is gone.
        """
        while True:
            await self._prepare_exit()
            if self._observation.is_drained():
                return
            self._wake.clear()
            pause_seconds: float | None = None
            fence = self._leadership.fence
            self._extend_deadline()
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
        # Whether a member that leaves holds anything is asked in each turn, also where another member leads.
        if self._observation.is_exiting():
            await self._observation.prepare(self._clock)

    async def _prepare(self) -> None:
        # Of very many shards it may take as long as a solve.
        self._leadership.extend_deadline(self._leadership.config.solve_seconds_max)
        await self._observation.prepare(self._clock)
        self._extend_deadline()

    def standing(self) -> Standing | None:
        """Return what we know as the leader, for plans and explanations; None if we do not lead, or only just do."""
        leader = self.leader_state
        return None if leader is None else self._rounds.standing(leader)

    def basis(self) -> Basis | None:
        """Return what a plan that is made now would rest on; None if we do not lead, or only just do."""
        leader = self.leader_state
        return None if leader is None else (leader.fence.epoch, *self._observation.tracker.basis)

    @property
    def leader_state(self) -> LeaderState | None:
        """The state of this member as the leader; None if it does not lead, or only just does."""
        leader = self._leader
        is_known = leader is not None and leader.is_informed and self._leadership.fence is not None
        return leader if is_known else None

    def order(self, plan: Plan, cause: Cause) -> LeaderState | None:
        """Take `plan` as it is once the demand is the one that it answers; None if there is no `leader_state`.

        Args:
            plan: To go by.
            cause: Noted with every move that it leads to.

        Returns:
            The leadership, whose fence must guard whatever brings that demand about.
        """
        leader = self.leader_state
        if leader is not None:
            leader.order(plan, cause)
            self._wake.set()
        return leader

    async def _leader_under(self, fence: Fence) -> LeaderState:
        """Return the state of this term; a new one begins with the plan that its predecessor stored."""
        if self._leader is None or self._leader.fence.epoch != fence.epoch:
            self._end_term()
            await self._catch_up()
            found = await self._plan_store.load()
            executor = Executor(
                self._etcd,
                self._key_space,
                clock=self._clock,
                metrics=self._metrics,
                on_progress=self._extend_deadline,
                ledger=self.ledger,
            )
            self._leader = LeaderState(
                fence,
                executor,
                self._pacing,
                None if found is None else found.plan,
            )
            self._backoff.reset()
        self._leader.fence = fence
        return self._leader

    async def _catch_up(self) -> None:
        """Wait until the key space shows what was written before our claim.

        Leadership is watched apart from the root, and may show first. A leader that decided then would not know its
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
        if self._leader is not None:
            self._leader.settle_order()
            self._leader = None
            self._observation.forget()

    def _extend_deadline(self) -> None:
        self._leadership.extend_deadline(self._leadership.config.turn_seconds_max)

    async def _renew(self, leader: LeaderState) -> float:
        """Have etcd refuse what we sent and got no answer to. Return when to try again, unless the new term begins."""
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
        """Wait for a change; a leader shows that it makes progress meanwhile."""
        if pause_seconds is None:
            await self._wake.wait()
            return
        deadline = self._clock.monotonic_seconds() + pause_seconds
        while not self._wake.is_set():
            left = deadline - self._clock.monotonic_seconds()
            if left <= 0.0:
                return
            self._extend_deadline()
            with suppress(TimeoutError):
                async with asyncio.timeout(min(left, self._leadership.config.beat_seconds)):
                    await self._wake.wait()
