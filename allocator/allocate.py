"""The allocation loop: every member runs it, the oldest one acts.

    wake (a change, or a timer) ──► snapshot ──► in a thread: plan if the demand changed, verify, next steps
         ▲                                                              │
         └── wait for our own writes to show ◄── transactions, each fenced by our member key ◄┘

Invariants: the event loop is never held for a solve, and no lock is held at all: a decision is made on a frozen
snapshot, and every write compares what it was decided upon. A refused step, an unreachable etcd or a defective plan is
tried again on a timer, never only when something unrelated changes; until a plan is good, the last good one is kept to.

Source: gazette/core allocator/allocate.go (the loop); threads, quarantine and timers are ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from random import Random

import structlog

from allocator.core.consistency import Consistency
from allocator.core.keys import ItemKey
from allocator.core.model import Assignment, Item, ItemId, Member, MemberId
from allocator.core.ops import Compare
from allocator.core.placement.problem import Solver
from allocator.core.plan import Plan, PlanRefused, plan_for
from allocator.core.state import AllocState
from allocator.core.transition.converge import Convergence, Step, Tally, converge
from allocator.core.transition.failures import FailedReplicas
from allocator.core.transition.quarantine import Quarantine
from allocator.errors import EtcdError, KeyDecodeError, MemberKeyLostError
from allocator.etcd.api import Etcd
from allocator.etcd.txn_batch import BatchReport, apply_checkpoints
from allocator.key_space import KeySpace
from allocator.metrics import AllocatorMetrics
from allocator.runtime.backoff import Backoff
from allocator.runtime.clock import Clock

OWN_WRITE_WAIT_SECONDS = 5.0
"""How long to wait for our own writes to show before looking again regardless: longer than a watch takes to resume."""

REST_PER_WORK = 4.0
"""Rest after a decision, as a multiple of the time it took: replicas that report one by one must not keep the leader
busy deciding. After a quiet time a change is still acted on at once."""
REST_SECONDS_MAX = 1.0

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocationConfig:
    """Times of the loop."""

    recheck_seconds: float = 30.0
    """Longest pause between two looks of a leader, with up to a tenth of jitter."""
    retry_seconds_max: float = 5.0
    """Longest delay before a round that an error ended is tried again."""
    replace_failed_after_seconds: float = 60.0
    """How long a standby may stay failed before it is placed elsewhere."""


@dataclass(frozen=True, slots=True)
class _Inputs:
    """The key space's values at one revision, unsorted; taking them is cheap, deriving from them is not."""

    revision: int
    members: tuple[Member, ...]
    items: tuple[Item, ...]
    assignments: tuple[Assignment, ...]
    unreadable_items: tuple[ItemId, ...]


@dataclass(frozen=True, slots=True)
class _Decision:
    """What a thread made of the inputs."""

    state: AllocState
    failed: FailedReplicas
    plan: Plan
    plan_seconds: float
    convergence: Convergence
    refused: PlanRefused | None = None
    """Why `plan` is still the one before, made for another demand."""


class AllocationLoop:
    """Leads while the local member is the oldest; ends when it is exiting and holds nothing."""

    def __init__(
        self,
        etcd: Etcd,
        key_space: KeySpace,
        *,
        member_id: MemberId,
        consistency: Consistency,
        is_failed: Callable[[Assignment], bool],
        solver: Solver,
        clock: Clock,
        metrics: AllocatorMetrics,
        config: AllocationConfig,
        random: Random,
    ) -> None:
        self._etcd = etcd
        self._key_space = key_space
        self._member_id = member_id
        self._consistency = consistency
        self._is_failed = is_failed
        self._solver = solver
        self._clock = clock
        self._metrics = metrics
        self._config = config
        self._random = random
        self._backoff = Backoff(max_seconds=config.retry_seconds_max, random=random)
        self._plan: Plan | None = None
        self._failed = FailedReplicas()
        self._quarantine = Quarantine()
        self._rests_until_monotonic_seconds = 0.0

    async def run(self) -> None:
        """Allocate until the local member is exiting and holds nothing.

        Raises:
            MemberKeyLostError: the local member's key is gone.
        """
        while not self._is_drained():
            seen = self._key_space.header.revision
            pause_seconds: float | None = None
            if self._leads():
                await self._rest()
                seen, pause_seconds = await self._round()
            with suppress(TimeoutError):
                async with asyncio.timeout(pause_seconds):
                    await self._key_space.wait_for_update(after_revision=seen)

    def _is_drained(self) -> bool:
        key_space = self._key_space
        member = key_space.members.get(self._member_id)
        if member is None:
            key = key_space.keys.member(self._member_id)
            if key_space.kv_or_none(key) is None:
                raise MemberKeyLostError(key.decode())
            return False
        return member.value.is_exiting() and not any(
            member_id == self._member_id and item_id in key_space.items
            for item_id, member_id, _ in key_space.assignments
        )

    def _leads(self) -> bool:
        oldest = min(
            self._key_space.members.values(),
            key=lambda member: (member.kv.create_revision, member.member_id),
            default=None,
        )
        return oldest is not None and oldest.member_id == self._member_id

    async def _rest(self) -> None:
        rest_seconds = self._rests_until_monotonic_seconds - self._clock.monotonic_seconds()
        if rest_seconds > 0.0:
            await asyncio.sleep(rest_seconds)

    async def _round(self) -> tuple[int, float]:
        """Decide and act once. Return the revision acted upon, and how long to wait at most for a newer one."""
        inputs = self._inputs()
        started = self._clock.monotonic_seconds()
        decision = await asyncio.to_thread(self._decide, inputs, self._plan, self._failed)
        ended = self._clock.monotonic_seconds()
        self._rests_until_monotonic_seconds = ended + min(
            REST_SECONDS_MAX, REST_PER_WORK * (ended - started)
        )
        if isinstance(decision, PlanRefused):
            return inputs.revision, self._refuse(decision)
        retry_seconds = None if decision.refused is None else self._refuse(decision.refused)
        self._failed = decision.failed
        if decision.plan is not self._plan:
            self._adopt(decision)
        self._metrics.on_decided(decision.state, decision.convergence)
        try:
            await self._act(decision.convergence.steps)
        except EtcdError as error:
            self._metrics.on_round_failed()
            pause_seconds = self._backoff.next_seconds()
            _log.warning("allocation.round_failed", cause=str(error), retry_seconds=pause_seconds)
            return inputs.revision, pause_seconds
        if retry_seconds is not None:
            return inputs.revision, min(retry_seconds, self._pause_seconds())
        self._backoff.reset()
        return inputs.revision, self._pause_seconds()

    def _inputs(self) -> _Inputs:
        key_space = self._key_space
        return _Inputs(
            revision=key_space.header.revision,
            # Values of the plain dict below: a copy at once, where sorted views go through Python one by one.
            members=tuple(dict.values(key_space.members)),
            items=tuple(dict.values(key_space.items)),
            assignments=tuple(dict.values(key_space.assignments)),
            unreadable_items=tuple(self._unreadable_items()),
        )

    def _unreadable_items(self) -> list[ItemId]:
        found: list[ItemId] = []
        for key in self._key_space.undecodable:
            with suppress(KeyDecodeError):
                parsed = self._key_space.keys.parse(key)
                if isinstance(parsed, ItemKey):
                    found.append(parsed.item_id)
        return found

    def _decide(
        self, inputs: _Inputs, plan: Plan | None, failed: FailedReplicas
    ) -> _Decision | PlanRefused:
        """Run in a thread: reads frozen values only."""
        state = AllocState.observe(
            revision=inputs.revision,
            local_id=self._member_id,
            members=sorted(inputs.members, key=_key),
            items=sorted(inputs.items, key=_key),
            assignments=sorted(inputs.assignments, key=_key),
            unreadable_items=inputs.unreadable_items,
        )
        started = self._clock.monotonic_seconds()
        failed = failed.observed(
            state,
            is_failed=self._is_failed,
            consistency=self._consistency,
            now_monotonic_seconds=started,
        )
        state = failed.avoided_in(
            state,
            after_seconds=self._config.replace_failed_after_seconds,
            now_monotonic_seconds=started,
        )
        new_plan = plan_for(state, plan, self._solver)
        plan_seconds = self._clock.monotonic_seconds() - started
        refused = new_plan if isinstance(new_plan, PlanRefused) else None
        # Each step is safe whatever the plan, so the last good one still promotes and replaces what is lost.
        usable = plan if isinstance(new_plan, PlanRefused) else new_plan
        if usable is None:
            assert refused is not None, "there is a plan unless it was refused"
            return refused
        convergence = converge(
            state, usable.desired, consistency=self._consistency, keys=self._key_space.keys
        )
        return _Decision(state, failed, usable, plan_seconds, convergence, refused)

    def _adopt(self, decision: _Decision) -> None:
        self._plan = decision.plan
        self._metrics.on_solved(decision.plan_seconds)
        placed = sum(map(len, decision.plan.desired.values()))
        log = _log.warning if placed < decision.state.item_slots else _log.info
        log(
            "allocation.solved",
            revision=decision.state.revision,
            items=len(decision.state.items),
            members=len(decision.state.members),
            replicas_wanted=decision.state.item_slots,
            replicas_placed=placed,
            solve_seconds=round(decision.plan_seconds, 4),
        )

    def _refuse(self, refused: PlanRefused) -> float:
        """Report a defective plan and return when to look again; what runs goes on running."""
        self._metrics.on_plan_invalid()
        _log.error(
            "allocation.plan_invalid",
            violations=[str(each) for each in refused.violations],
            exc_info=refused.error,
        )
        return self._backoff.next_seconds()

    async def _act(self, steps: tuple[Step, ...]) -> None:
        now = self._clock.monotonic_seconds()
        tried = self._quarantine.admitted(steps, now)
        if not tried:
            self._quarantine = self._quarantine.after(
                steps, tried=(), refused=(), now_monotonic_seconds=now
            )
            return
        own_key = self._key_space.keys.member(self._member_id)
        own = self._key_space.kv_or_none(own_key)
        if own is None:
            # The key vanished while we decided; the next turn of the loop says so.
            return
        report = await apply_checkpoints(
            self._etcd,
            [step.checkpoint for step in tried],
            fixed=(Compare.mod_revision(own_key, own.mod_revision),),
        )
        self._note(steps, tried, report)
        with suppress(TimeoutError):
            async with asyncio.timeout(OWN_WRITE_WAIT_SECONDS):
                await self._key_space.wait_for_revision(report.revision)

    def _note(self, steps: tuple[Step, ...], tried: tuple[Step, ...], report: BatchReport) -> None:
        applied = frozenset(report.applied)
        done = sum((step.tally for step in tried if step.checkpoint.subject in applied), Tally())
        self._quarantine = self._quarantine.after(
            steps,
            tried=tried,
            refused=[culprit.checkpoint for culprit in report.culprits],
            now_monotonic_seconds=self._clock.monotonic_seconds(),
        )
        self._metrics.on_converged(done, refused=len(report.culprits))
        _log.info(
            "allocation.converged",
            revision=report.revision,
            added=done.added,
            removed=done.removed,
            promoted=done.promoted,
            packed=done.packed,
            refused=len(report.culprits),
            leadership_lost=report.leadership_lost,
        )
        for culprit in report.culprits:
            _log.warning(
                "allocation.step_refused",
                item=culprit.checkpoint.subject,
                cause=str(culprit.cause),
            )

    def _pause_seconds(self) -> float:
        recheck = self._config.recheck_seconds * self._random.uniform(0.9, 1.1)
        retry = self._quarantine.next_try_seconds(self._clock.monotonic_seconds())
        return recheck if retry is None else min(recheck, retry + self._random.uniform(0.0, 0.05))


def _key(value: Member | Item | Assignment) -> bytes:
    """Order by key, which is the order by id: the separator sorts below every character of an id."""
    return value.kv.key
