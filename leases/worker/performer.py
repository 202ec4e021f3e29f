"""The performer of a plan's actions, on a store that may throttle or fail.

A worker's own throttled call is retried within the round. Another retryable failure of one lease waits for the next
scan, and the round continues with the other leases. A leader's calls are not retried, because its next pass assigns
again; its pass fails afterwards, so that a leader without a store gives way.

The records may have changed since the scan. A lease is taken, or a free one assigned, only if it has not changed since
it was seen; a hand-off is begun, or forced, only if its owners are the same. So a paused leader that does not know of
its successor takes nothing from a living worker.

Source: awslabs/amazon-kinesis-client leases.dynamodb.DynamoDBLeaseTaker (three attempts at a take). Theirs does not
wait between them, and another failure ends the round.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias, assert_never

import structlog

from broadsheet.leases import rules
from broadsheet.leases.compare_and_swap import (
    compare_and_swap,
    verdict_of_claimant,
    verdict_of_taker,
)
from broadsheet.leases.errors import LeaseNotAcquiredError, LeasingError, ThrottlingError
from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.record import Versioned
from broadsheet.leases.store import RecordStore
from broadsheet.leases.worker.assignments import GivenHow, LeaseAssignment
from broadsheet.leases.worker.context import WorkerContext
from broadsheet.leases.worker.lease_view import LeaseScan
from broadsheet.leases.worker.round_plan import (
    AskForLease,
    LeaseAction,
    LeaseRoundPlan,
    ReleaseLease,
    TakeLease,
    TakenHow,
)
from broadsheet.leases.worker.settings import StealWay
from broadsheet.runtime.task_group import TaskGroup

ATTEMPTS = 3
"""Attempts at a throttled take or request in one round; the Kinesis Client Library's number."""
BACK_OFF_RATIO = 0.02
"""The longest pause between two attempts, in lengths of a lease: 0.2 s of 10 s."""
OnTaken: TypeAlias = Callable[[Versioned, float], None]
"""Called with each lease as it is taken, and the time at which taking it was sent, by the clock."""
_log = structlog.get_logger()


@dataclass(slots=True)
class Performance:
    """A plan that is performed on the leases of a scan."""

    plan: LeaseRoundPlan
    scan: LeaseScan
    on_taken: OnTaken
    goes_on: Callable[[], bool]
    """Asked before each action; once it says no, no further one begins."""
    has_asked: bool = False
    """True once a lease was asked for."""
    free_taken: int = 0
    """Free leases taken so far."""
    errors: list[LeasingError] = field(default_factory=list)
    """Failures of a leader's writes."""
    found: Mapping[str, Versioned] = field(init=False)

    def __post_init__(self) -> None:
        self.found = {each.record.key: each for each in self.scan.found}


class Performer:
    """Performs plans for one worker."""

    def __init__(self, worker: WorkerContext) -> None:
        self._worker = worker
        self._leases = worker.leases
        self._metrics = worker.metrics
        self._lease_seconds = worker.settings.lease_seconds

    async def perform(self, performance: Performance) -> None:
        """Perform a plan's actions, each once.

        Raises:
            LeasingError: the store still failed a lease's length after the scan, or it is gone; or a leader's write
                failed: those that could be made were.
        """
        plan = performance.plan
        queue = iter(plan.actions)

        async def perform_some() -> None:
            for action in queue:
                if not performance.goes_on():
                    return
                await self._act(action, performance)

        if plan.at_once == 1:
            await perform_some()
        else:
            async with TaskGroup() as group:
                for number in range(min(plan.at_once, len(plan.actions))):
                    group.start_soon(perform_some(), name=f"perform {number}")
        if performance.errors:
            raise performance.errors[0]

    async def _act(self, action: LeaseAction, performance: Performance) -> None:
        seen = performance.found[action.key]
        match action:
            case TakeLease(how=TakenHow.FREE):
                # A lost race leaves room for the next free lease.
                if performance.free_taken < performance.plan.free_takes_max and await self._take(
                    seen, TakenHow.FREE, performance
                ):
                    performance.free_taken += 1
            case TakeLease():
                await self._take(seen, action.how, performance)
            case AskForLease():
                await self._ask(seen, action.way, performance)
            case LeaseAssignment():
                await self._assign(seen, action, performance)
            case ReleaseLease():
                await self._leases.evict(seen)
            case _:
                assert_never(action)

    async def _take(self, seen: Versioned, how: TakenHow, performance: Performance) -> bool:
        sent_seconds = 0.0

        def send() -> Awaitable[Versioned | None]:
            nonlocal sent_seconds
            sent_seconds = self._worker.clock.monotonic_seconds()
            return self._leases.take(seen, self._worker.name)

        taken = await self._try(seen.record.key, send, performance)
        if taken is None:
            return False
        self._metrics.on_taken(how)
        performance.on_taken(taken, sent_seconds)
        return True

    async def _ask(self, seen: Versioned, way: StealWay, performance: Performance) -> None:
        key = seen.record.key
        asked = await self._try(
            key, lambda: ask_for(self._leases.store, seen, self._worker.name, way), performance
        )
        if asked is None:
            return
        performance.has_asked = True
        self._metrics.on_asked_for(way.value)
        _log.info(
            "leasing.lease_requested",
            worker=self._worker.name,
            key=key,
            holder=seen.record.holder,
            way=way.value,
        )

    async def _assign(
        self, seen: Versioned, assignment: LeaseAssignment, performance: Performance
    ) -> None:
        """Write one assignment; nothing if the record has changed, because the next pass scans again."""
        key, worker, how = assignment.key, assignment.worker, assignment.how
        try:
            if how is GivenHow.FREE:
                written = await compare_and_swap(
                    self._leases.store,
                    seen,
                    lambda record: rules.take(record, worker),
                    verdict_of_taker,
                )
            else:
                graceful = how is GivenHow.HAND_OFF
                written = await self._leases.assign(seen, worker, graceful=graceful)
        except LeasingError as error:
            performance.errors.append(error)
            _log.warning("leasing.assignment_failed", key=key, worker=worker, cause=str(error))
            return
        if written is not None:
            self._metrics.on_assigned(how)
            _log.info("leasing.lease_assigned", key=key, worker=worker, how=how.value)

    async def _try(
        self, key: str, send: Callable[[], Awaitable[Versioned | None]], performance: Performance
    ) -> Versioned | None:
        """Make a call for one lease, and retry it while throttled, unless the worker stops; return its result.

        None: it failed, or was answered so; the next scan decides again.
        """
        for attempt in range(1, ATTEMPTS + 1):
            if self._worker.pacing.is_stopping:
                break
            try:
                return await send()
            except LeasingError as error:
                self._check_survivable(error, performance.scan)
                _log.warning(
                    "leasing.take_failed",
                    worker=self._worker.name,
                    key=key,
                    attempt=attempt,
                    cause=str(error),
                )
                if not isinstance(error, ThrottlingError):
                    break
            if attempt < ATTEMPTS:
                await self._back_off(attempt)
        return None

    def _check_survivable(self, error: LeasingError, scan: LeaseScan) -> None:
        """Raise an error if it is permanent, or the scan is too old to act on."""
        stale_at_seconds = scan.ended_seconds + self._lease_seconds
        if not error.retryable or self._worker.clock.monotonic_seconds() > stale_at_seconds:
            raise error

    async def _back_off(self, attempt: int) -> None:
        """Wait, longer each time, with a jitter of up to one half, because rivals are throttled too."""
        longest_seconds = self._lease_seconds * BACK_OFF_RATIO
        jitter = (1 + self._worker.random.random()) / 2
        await self._worker.pacing.wait(longest_seconds * jitter * attempt / (ATTEMPTS - 1))


async def ask_for(
    store: RecordStore, seen: Versioned, worker: str, way: StealWay
) -> Versioned | None:
    """Ask for a lease; return None if it has no holder to ask, or another worker asked before."""
    if way is StealWay.HAND_OFF:
        return await LeaseManager(store).assign(seen, worker, graceful=True)
    try:
        return await compare_and_swap(
            store, seen, lambda record: rules.claim(record, worker), verdict_of_claimant
        )
    except LeaseNotAcquiredError:
        return None
