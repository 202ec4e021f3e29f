"""A member's session in the cluster: lease, announced key, mirror and allocation.

    start    lease granted ──► predecessors revoked ──► announced under the lease ──► key space loaded at that revision
    run      keep-alive, watch, allocation, until drained or told to stop
    update   e.g. "exiting": the allocator moves everything away, then `run` returns
    revoke   the lease ends, and the member's keys with it

The steps are separate because the service acts between them: it must stop its shards after the drain and *before* the
lease is revoked.

Source: gazette/core allocator/alloc_session.go. Ours: the lease is revoked last.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from random import Random

import structlog
from tenacity import (
    AsyncRetrying,
    retry_if_exception_type,
    wait_random_exponential,
)

from broadsheet.allocator.announcement import (
    Announced,
    Predecessors,
    announce,
    revoke_predecessors,
    update,
)
from broadsheet.allocator.config import AllocationConfig, Offload, Runtime
from broadsheet.allocator.errors import (
    EtcdUnavailableError,
    RevisionCompactedError,
    TxnConflictError,
)
from broadsheet.allocator.etcd.api import Etcd
from broadsheet.allocator.etcd.lease import LeaseKeeper
from broadsheet.allocator.format_gate import FormatGate
from broadsheet.allocator.key_space import KeySpace
from broadsheet.allocator.keys import AuxiliaryKeys
from broadsheet.allocator.leader.election import LeadershipConfig
from broadsheet.allocator.leader.executor import Executor
from broadsheet.allocator.leader.leadership import Leadership
from broadsheet.allocator.leader.load_feed import DecodeReport, LoadFeed
from broadsheet.allocator.leader.loop import AllocationLoop, LeaderParts, Rounds
from broadsheet.allocator.leader.move_log import MoveLog
from broadsheet.allocator.leader.plan_store import PlanStore
from broadsheet.allocator.leader.state import Observation
from broadsheet.allocator.metrics import AllocatorMetrics
from broadsheet.allocator.model import Assignment, MemberId
from broadsheet.allocator.ops import LeaseId
from broadsheet.allocator.placement.problem import Solver
from broadsheet.allocator.placement.solver import FlowSolver
from broadsheet.allocator.placement.weighted import WeightedSolver
from broadsheet.allocator.state.alloc_state import Consistency
from broadsheet.runtime.clock import Clock, SystemClock
from broadsheet.runtime.task_group import TaskGroup

RENEWAL_AGE_SECONDS_MAX = 1.0
"""Oldest renewal of the lease when a plan is begun, so that nearly all of the TTL is left for it."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionConfig:
    """A member's identity and timeouts."""

    member_id: MemberId
    lease_ttl_seconds: float = 20.0
    """How long the member's keys outlive a crash."""
    announce_timeout_seconds: float = 60.0
    """How long to wait for a previous holder of the member's key; more than its TTL if it may have crashed."""
    predecessors: Predecessors | None = None
    """Earlier incarnations of this member, which are revoked."""
    allocation: AllocationConfig = field(default_factory=AllocationConfig)
    leadership: LeadershipConfig = field(default_factory=LeadershipConfig)


def _never_failed(_: Assignment) -> bool:
    return False


class Session:
    """Runs one member. `start`, then `run`; `update_member` and `stop` at any time; `revoke` last."""

    def __init__(
        self,
        etcd: Etcd,
        key_space: KeySpace,
        config: SessionConfig,
        consistency: Consistency,
        *,
        is_failed: Callable[[Assignment], bool] = _never_failed,
        solver: Solver | None = None,
        clock: Clock | None = None,
        metrics: AllocatorMetrics | None = None,
        random: Random | None = None,
        offload: Offload = asyncio.to_thread,
        decode_load: DecodeReport | None = None,
        formats: FormatGate | None = None,
    ) -> None:
        """Prepare the session; nothing is sent yet.

        Args:
            etcd: Shared with the key space.
            key_space: Not yet loaded; the session loads and watches it.
            config: Identity and times.
            consistency: Tells which replicas may be relied upon.
            is_failed: Tells which replicas have failed; those that stay so are placed elsewhere.
            solver: Decides placements; the quickest one available, if none is given.
            clock: Time.
            metrics: Where to count; a new registry if none is given.
            random: Source of jitter.
            offload: Runs long computations away from the event loop.
            decode_load: Decodes the loads that members report; without it there are no reports.
            formats: Says whether this release may join; without it any may.
        """
        self._etcd = etcd
        self._key_space = key_space
        self._config = config
        self._runtime = Runtime(
            clock=clock or SystemClock(),
            random=random or Random(),
            offload=offload,
            metrics=metrics or AllocatorMetrics(),
        )
        self._clock = self._runtime.clock
        self.metrics = self._runtime.metrics
        self._formats = formats
        self._keeper: LeaseKeeper | None = None
        self._announced: Announced | None = None
        self._stopping = asyncio.Event()
        self.leadership = Leadership(
            etcd,
            key_space,
            member_id=config.member_id,
            config=config.leadership,
            runtime=self._runtime,
        )
        self._allocation = self._allocation_loop(
            consistency=consistency,
            is_failed=is_failed,
            solver=WeightedSolver(solver or FlowSolver()),
            loads=None if decode_load is None else self._load_feed(decode_load),
        )

    @property
    def allocation(self) -> AllocationLoop:
        """The member's allocation loop, which provides plans and explanations while it leads."""
        return self._allocation

    def story(self) -> str:
        """Return the recent events of the member's election and of its rounds as leader, for the report of a defect."""
        return f"{self.leadership.story()}\n{self._allocation.story()}"

    @property
    def lease(self) -> LeaseId:
        """The lease of the member and its assignments; available after `start`."""
        return self._started_keeper().lease

    async def start(self, member_value: bytes) -> None:
        """Take a lease, announce the member, and load the key space as of the announcement.

        Call `run` soon after, because the lease is not renewed between the two. On failure the lease is revoked.

        Args:
            member_value: The encoded member.

        Raises:
            AnnounceConflictError: another live process holds the member's key.
            FormatLevelError: this release cannot read the cluster's stored formats.
            EtcdUnavailableError: etcd did not answer.
            LeaseLostError: the lease was lost while waiting.
        """
        assert self._keeper is None, "a session starts once"
        keeper: LeaseKeeper = await self._retrying()(
            LeaseKeeper.grant, self._etcd, self._config.lease_ttl_seconds, self._clock
        )
        self._keeper = keeper
        try:
            async with TaskGroup() as group:
                # The wait for a predecessor may outlast our own lease, so it is renewed meanwhile.
                group.start_soon(keeper.run(), name="session keep-alive")
                await self._announce(keeper.lease, member_value)
                group.stop()
        except BaseException:
            # Also when cancelled, because an abandoned start must not leave its key behind. The revoke is bounded.
            await keeper.revoke()
            raise

    async def run(self, *, wind_down: Callable[[], Awaitable[None]] | None = None) -> None:
        """Keep the lease alive, follow etcd and allocate, until drained or stopped.

        Args:
            wind_down: Awaited once drained or stopped, while the lease is still renewed and etcd still followed: the
                place to finish work that relies on either.

        Raises:
            LeaseLostError: the lease could not be renewed in time.
            MemberKeyLostError: the member's key is gone.
        """
        keeper = self._started_keeper()
        async with TaskGroup() as group:
            group.start_soon(keeper.run(), name="session keep-alive")
            group.start_soon(self._key_space.watch(), name="session watch")
            group.start_soon(self.leadership.run(), name="session leadership")
            if self._formats is not None:
                group.start_soon(self._formats.watch(), name="session formats")
            group.start_soon(self._stop_when_drained(), name="session allocate")
            await self._stopping.wait()
            if wind_down is not None:
                # The wind-down may take long, and the other members need not wait for our lease to end.
                group.start_soon(self.leadership.resign(), name="session resign")
                await wind_down()
            group.stop()

    async def update_member(self, value: bytes) -> None:
        """Write a new value to the member's key, which stays on its lease.

        Raises:
            MemberKeyLostError: the key is gone.
            TxnConflictError: another process wrote to our key; calling again overwrites that.
            EtcdUnavailableError: whether it was written is unknown; calling again is safe.
        """
        assert self._announced is not None, "start before update_member"
        updated = await update(self._etcd, self._announced, value)
        self._announced = updated
        if updated.value != value:
            raise TxnConflictError((updated.key,))

    async def revoke(self) -> bool:
        """End the lease, and with it the member and its assignments. Bounded in time.

        Returns:
            False if etcd did not answer; the lease then expires by itself.
        """
        return await self._started_keeper().revoke()

    def stop(self) -> None:
        """Make `run` return promptly, drained or not. Idempotent, and safe before `run`."""
        self._stopping.set()

    async def _announce(self, lease: LeaseId, member_value: bytes) -> None:
        keys, member_id = self._key_space.keys, self._config.member_id
        if self._config.predecessors is not None:
            await self._retrying()(
                revoke_predecessors,
                self._etcd,
                keys,
                member_id,
                self._config.predecessors,
                own_lease=lease,
            )
        self._announced = await announce(
            self._etcd,
            keys.member(member_id),
            member_value,
            lease=lease,
            timeout_seconds=self._config.announce_timeout_seconds,
            admit=None if self._formats is None else self._formats.admit,
        )
        await self._retrying()(self._load, self._announced.mod_revision)
        _log.info(
            "member.announced",
            member=str(member_id),
            lease=f"{lease:x}",
            revision=self._announced.mod_revision,
        )

    async def _load(self, revision: int) -> None:
        try:
            await self._key_space.load(revision=revision)
        except RevisionCompactedError:
            # The revision was compacted since our write, so there is a newer one, which has our key too.
            await self._key_space.load()

    def _allocation_loop(
        self,
        *,
        consistency: Consistency,
        is_failed: Callable[[Assignment], bool],
        solver: Solver,
        loads: LoadFeed | None,
    ) -> AllocationLoop:
        config = self._config.allocation
        observation = Observation(
            self._key_space,
            member_id=self._config.member_id,
            consistency=consistency,
            is_failed=is_failed,
            replace_failed_after_seconds=config.replace_failed_after_seconds,
        )
        parts = LeaderParts(
            observation=observation,
            leadership=self.leadership,
            executor=self._executor(),
            plan_store=PlanStore(self._etcd, AuxiliaryKeys(self._key_space.keys.root)),
            loads=loads,
            config=config,
            runtime=self._runtime,
        )
        rounds = Rounds(parts, solver=solver, before_planning=self._refresh_before_solve)
        return AllocationLoop(self._key_space, parts, rounds)

    def _executor(self) -> Executor:
        move_log = MoveLog(
            self._etcd,
            self._key_space.keys,
            member_id=self._config.member_id,
            policy=self._config.allocation.policy.move_log,
            clock=self._clock,
        )
        return Executor(
            self._etcd,
            self._key_space,
            move_log=move_log,
            runtime=self._runtime,
            on_progress=self.leadership.report_progress,
        )

    def _load_feed(self, decode: DecodeReport) -> LoadFeed:
        return LoadFeed(
            self._etcd,
            self._key_space,
            policy=self._config.allocation.policy.loads,
            decode=decode,
            runtime=self._runtime,
        )

    async def _refresh_before_solve(self) -> None:
        """Renew the lease and beat, because a solver may hold the interpreter and so block the keep-alive."""
        await self._started_keeper().refresh(older_than_seconds=RENEWAL_AGE_SECONDS_MAX)
        await self.leadership.beat()

    async def _stop_when_drained(self) -> None:
        await self._allocation.run()
        _log.info("member.drained", member=str(self._config.member_id))
        self._stopping.set()

    def _retrying(self) -> AsyncRetrying:
        """Retry a call while etcd does not answer, up to the time that an announcement may take."""
        clock = self._clock
        ends_monotonic_seconds = clock.monotonic_seconds() + self._config.announce_timeout_seconds
        return AsyncRetrying(
            retry=retry_if_exception_type(EtcdUnavailableError),
            stop=lambda _: clock.monotonic_seconds() >= ends_monotonic_seconds,
            wait=wait_random_exponential(multiplier=0.1, max=1.0),
            reraise=True,
        )

    def _started_keeper(self) -> LeaseKeeper:
        assert self._keeper is not None, "start the session first"
        return self._keeper
