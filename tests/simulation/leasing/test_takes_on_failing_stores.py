"""One look of a worker whose store fails for some leases, on virtual time: what is tried again, and what must wait.

The numbers are those of awslabs/amazon-kinesis-client `leases.dynamodb.DynamoDBLeaseTaker`.
"""

from __future__ import annotations

import asyncio
import math
from dataclasses import replace
from random import Random

import pytest

from broadsheet.leases import rules
from broadsheet.leases.errors import DependencyError, InvalidStateError, ThrottlingError
from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.metrics import LeaseMetrics
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord, RecordConflictError, Versioned
from broadsheet.leases.worker.context import WorkerContext
from broadsheet.leases.worker.metrics import WorkerMetrics
from broadsheet.leases.worker.pacing import Pacing
from broadsheet.leases.worker.performer import ATTEMPTS, BACK_OFF_RATIO
from broadsheet.leases.worker.round_plan import AssignedOnly, OwnShare
from broadsheet.leases.worker.rounds import LeaseRounds, LeaseWatch
from broadsheet.leases.worker.settings import StealWay, WorkerSettings
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.testing.allocator.kernel.virtual_loop import VirtualClock, run_virtual, running_loop
from tests.support.failing_records import FailingRecords
from tests.support.memory_records import MemoryRecords, MemoryRecordStore

SETTINGS = WorkerSettings(lease_seconds=10.0)
FREE = LeaseRecord(key="a", checkpoint=Position("TRIM_HORIZON"))
OTHERS = replace(FREE, owner="w2", epoch=1, counter=1)
BUSY, DOWN = ThrottlingError("busy"), DependencyError("no answer")


class Scene:
    """The rounds of a worker, and what it took."""

    def __init__(self, *records: LeaseRecord, settings: WorkerSettings = SETTINGS) -> None:
        self.records = MemoryRecords(found={})
        for record in records:
            self.records.put(record)
        self.store = FailingRecords(MemoryRecordStore(self.records))
        self.clock = VirtualClock(running_loop())
        self.pacing = Pacing(Random(1))
        self.taken: dict[str, float] = {}
        context = WorkerContext(
            name="w1",
            settings=settings,
            leases=LeaseManager(self.store, clock=self.clock),
            metrics=WorkerMetrics(LeaseMetrics(), "w1", self.clock),
            pacing=self.pacing,
            random=Random(1),
        )
        self.rounds = LeaseRounds(context, LeaseWatch(context.leases, settings, me="w1"))
        self.led_rounds = LeaseRounds(
            context, LeaseWatch(context.leases, settings, me="w1", owned_only=True)
        )

    async def look(self, *, left_alone: tuple[str, ...] = ()) -> float:
        """Let it look once, and return how long that took."""
        began_seconds = self.clock.monotonic_seconds()
        await self.rounds.run(
            lambda: OwnShare(me="w1", left_alone=left_alone),
            held=[*self.taken],
            on_taken=self.on_taken,
        )
        return self.clock.monotonic_seconds() - began_seconds

    async def discover(self) -> None:
        """Let it take what was assigned to it."""
        await self.led_rounds.run(
            lambda: AssignedOnly(left_alone=()), held=[*self.taken], on_taken=self.on_taken
        )

    @property
    def writes(self) -> int:
        """How often the store was asked to write."""
        return self.store.calls.count("replace")

    def claims(self) -> int:
        """Return how many leases it has claimed."""
        return sum(found.record.claim == "w1" for found in (self.records.found or {}).values())

    def on_taken(self, lease: Versioned, sent_seconds: float) -> None:
        """Note it."""
        self.taken[lease.record.key] = sent_seconds


def _leases(record: LeaseRecord, count: int) -> list[LeaseRecord]:
    return [replace(record, key=f"{number:03d}") for number in range(count)]


def test_throttled_take_is_tried_three_times() -> None:
    """`TAKE_RETRIES`; after short pauses here. The lease is counted from when the attempt that succeeded was sent."""

    async def play() -> None:
        scene = Scene(*_leases(FREE, 3))
        scene.store.failures["replace"] = [BUSY] * (ATTEMPTS - 1)

        took_seconds = await scene.look()

        assert (len(scene.taken), scene.writes) == (3, 3 + ATTEMPTS - 1)
        assert 0 < took_seconds <= (ATTEMPTS - 1) * BACK_OFF_RATIO * SETTINGS.lease_seconds
        assert min(scene.taken.values()) == pytest.approx(took_seconds, abs=0.001)

    run_virtual(play())


def test_what_a_leader_assigned_is_tried_three_times_too() -> None:
    """The next look is a lease's length later: as long as a leader gives a worker to begin."""

    async def play() -> None:
        scene = Scene(*_leases(replace(OTHERS, owner="w1"), 3))
        scene.store.failures["replace"] = [BUSY] * (ATTEMPTS - 1)

        await scene.discover()

        assert (len(scene.taken), scene.writes) == (3, 3 + ATTEMPTS - 1)

    run_virtual(play())


@pytest.mark.parametrize(
    ("failures", "writes"), [([BUSY] * ATTEMPTS, 2 + ATTEMPTS), ([DOWN], 2 + 1)]
)
def test_take_that_fails_waits_for_the_next_look_and_the_others_do_not(
    failures: list[ThrottlingError | DependencyError], writes: int
) -> None:
    """Another failure than throttling may last, and is not tried again at once; there it ends the round."""

    async def play() -> None:
        scene = Scene(*_leases(FREE, 3))
        scene.store.failures["replace"] = [*failures]

        await scene.look()
        assert (len(scene.taken), scene.writes) == (2, writes)

        await scene.look()
        assert (len(scene.taken), scene.writes) == (3, writes + 1)

    run_virtual(play())


def test_lost_race_is_not_tried_again() -> None:
    """Somebody else has the lease: that is an answer."""

    async def play() -> None:
        scene = Scene(FREE)
        theirs = MemoryRecords(found={}).put(OTHERS)
        scene.store.failures["replace"] = [RecordConflictError("a", theirs)]

        await scene.look()

        assert (scene.taken, scene.writes) == ({}, 1)

    run_virtual(play())


def test_error_that_stays_ends_the_round() -> None:
    """Without a store there is nothing to wait for."""

    async def play() -> None:
        scene = Scene(*_leases(FREE, 3))
        scene.store.failures["replace"] = [InvalidStateError("there is no store")]

        with pytest.raises(InvalidStateError):
            await scene.look()

    run_virtual(play())


def test_store_that_fails_a_leases_length_long_ends_the_round() -> None:
    """What the look showed is too old by then; and each lease that is tried may cost a time limit."""

    async def play() -> None:
        scene = Scene(*_leases(FREE, 100))
        scene.store.failures["replace"] = [BUSY] * 1_000
        began_seconds = scene.clock.monotonic_seconds()

        with pytest.raises(ThrottlingError):
            await scene.look()

        spent_seconds = scene.clock.monotonic_seconds() - began_seconds
        assert SETTINGS.lease_seconds < spent_seconds < SETTINGS.lease_seconds * 1.1

    run_virtual(play())


@pytest.mark.parametrize(("failures", "claims"), [([BUSY] * (ATTEMPTS - 1), 2), ([DOWN], 1)])
def test_requests_fail_as_takes_do(
    failures: list[ThrottlingError | DependencyError], claims: int
) -> None:
    """There a worker that lacks leases takes them. Of four it claims two, the second whatever became of the first."""

    async def play() -> None:
        scene = Scene(*_leases(OTHERS, 4))
        scene.store.failures["replace"] = [*failures]

        await scene.look()

        assert scene.claims() == claims
        assert scene.rounds.is_asking

    run_virtual(play())


def test_stolen_leases_are_tried_again_too() -> None:
    """A lease that is taken at once is taken like a free one."""

    async def play() -> None:
        scene = Scene(*_leases(OTHERS, 4), settings=WorkerSettings(steal=StealWay.AT_ONCE))
        scene.store.failures["replace"] = [BUSY]

        await scene.look()

        assert len(scene.taken) == 2

    run_virtual(play())


def test_nothing_is_taken_once_the_worker_stops() -> None:
    """Neither after the pause in which it was told to, which ends then, nor what is next."""

    async def play() -> None:
        scene = Scene(*_leases(FREE, 3))
        scene.store.failures["replace"] = [BUSY]
        async with TaskGroup() as group:
            look = group.start_soon(scene.look(), name="look")
            await asyncio.sleep(0.01)
            scene.pacing.stop()

        assert (scene.taken, scene.writes) == ({}, 1)
        assert look.result() == pytest.approx(0.01)

    run_virtual(play())


def test_lease_that_fails_here_during_the_look_is_left_alone() -> None:
    """It is free by then, for its consumer gave it up; taking it again at once would only fail again."""

    async def play() -> None:
        scene = Scene(FREE)

        await scene.rounds.run(
            lambda: OwnShare(me="w1", left_alone={"a"} if "scan" in scene.store.calls else ()),
            on_taken=scene.on_taken,
        )

        assert (scene.taken, scene.writes) == ({}, 0)

    run_virtual(play())


@pytest.mark.parametrize(
    ("settings", "taken"),
    [
        (WorkerSettings(), 3),
        (WorkerSettings(overdue_lengths=2.0), 4),
        (WorkerSettings(overdue_lengths=2.0, leases_max=2), 2),
        (WorkerSettings(overdue_lengths=math.inf), 3),
    ],
    ids=["three lengths", "two lengths", "no more than the maximum", "never"],
)
def test_very_old_leases_are_taken_beyond_the_share(settings: WorkerSettings, taken: int) -> None:
    """`testVeryOldLeaseDurationMultiplier…`, `…DisablePriorityLeaseAssignment`: four free for 25 s, share of three."""

    async def play() -> None:
        held = [replace(OTHERS, key="x"), replace(OTHERS, key="y")]
        free = _leases(FREE, 4)
        scene = Scene(*held, *free, settings=settings)
        await scene.look(left_alone=tuple(record.key for record in free))
        await asyncio.sleep(25.0)
        for record in held:
            scene.records.put(rules.renew(record))

        await scene.look()

        assert len(scene.taken) == taken

    run_virtual(play())
