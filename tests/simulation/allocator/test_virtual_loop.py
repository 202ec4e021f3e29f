"""Virtual time: the loop jumps, processes stand still and go on, and a run that is stuck says so."""

from __future__ import annotations

import asyncio
import time
from itertools import count

import pytest

from broadsheet.runtime.task_group import TaskGroup
from broadsheet.testing.allocator.kernel.virtual_loop import (
    DeadlockError,
    Process,
    VirtualClock,
    run_virtual,
    running_loop,
)


def test_an_hour_passes_at_once() -> None:
    """Sleeping costs no real time, and the clock shows it."""

    async def sleep_an_hour() -> float:
        await asyncio.sleep(3600)
        return VirtualClock(running_loop()).monotonic_seconds()

    started = time.monotonic()

    assert run_virtual(sleep_an_hour()) == pytest.approx(3600)
    assert time.monotonic() - started < 30


def test_timers_run_in_the_order_of_their_times() -> None:
    """What is due first happens first, however it was set."""
    seen: list[float] = []

    async def wait(seconds: float) -> None:
        await asyncio.sleep(seconds)
        seen.append(seconds)

    async def wait_for_all() -> None:
        async with TaskGroup() as group:
            for seconds in (3.0, 1.0, 2.0):
                group.start_soon(wait(seconds), name=f"{seconds}")

    run_virtual(wait_for_all())

    assert seen == [1.0, 2.0, 3.0]


def test_a_run_that_waits_for_nothing_is_a_deadlock() -> None:
    """It would hang for ever: it fails at once, and names who waits."""
    with pytest.raises(DeadlockError, match="waiting: Task-"):
        run_virtual(asyncio.Event().wait())


def test_a_run_past_its_end_is_told_so() -> None:
    """Something that goes on for ever without getting anywhere is not a deadlock, and ends all the same."""

    async def go_round() -> None:
        running_loop().end_at(100.0)
        for seconds in count(1):
            await asyncio.sleep(seconds)

    with pytest.raises(DeadlockError, match="time set for this is up"):
        run_virtual(go_round())


def test_work_for_threads_runs_in_this_one() -> None:
    """There are no threads, so there is but one order; errors come back as from a thread."""

    def fail() -> None:
        raise RuntimeError("in the work")

    async def work() -> int:
        with pytest.raises(RuntimeError, match="in the work"):
            await asyncio.to_thread(fail)
        return await asyncio.to_thread(lambda: 42)

    assert run_virtual(work()) == 42


def test_a_process_that_stands_still_does_nothing_until_it_goes_on() -> None:
    """Its timers pass unheard, and all of them at once when it goes on; others are not held up."""
    seen: list[float] = []

    async def tell_the_time() -> None:
        while True:
            await asyncio.sleep(1.0)
            seen.append(round(running_loop().time(), 3))

    async def stop_and_go() -> None:
        process = Process("teller")
        async with TaskGroup() as group:
            process.run(lambda: group.start_soon(tell_the_time(), name="teller"))
            await asyncio.sleep(1.5)
            process.stop()
            await asyncio.sleep(4.0)
            process.go_on()
            await asyncio.sleep(1.2)
            group.stop()

    run_virtual(stop_and_go())

    assert seen == [1.0, 5.5, 6.5]


def test_a_timer_cancelled_while_its_process_stands_still_does_not_strike() -> None:
    """A deadline that passed unheard, and is taken back before its process hears of it, never happened."""
    struck: list[str] = []

    async def cancel_in_time() -> None:
        loop, process = running_loop(), Process("p")
        process.stop()
        timer = process.run(lambda: loop.call_later(1.0, struck.append, "cancelled"))
        process.run(lambda: loop.call_later(1.0, struck.append, "kept"))
        await asyncio.sleep(2.0)
        timer.cancel()
        process.go_on()
        await asyncio.sleep(0.1)

    run_virtual(cancel_in_time())

    assert struck == ["kept"]


def test_a_process_stuck_in_its_work_goes_on_otherwise() -> None:
    """A solver that does not come back holds up who waits for it, and nobody else: the lease is still kept."""
    seen: list[str] = []

    async def work() -> None:
        await asyncio.to_thread(seen.append, "worked")

    async def tick() -> None:
        await asyncio.sleep(1.0)
        seen.append("ticked")

    async def get_stuck() -> None:
        process = Process("p")
        process.get_stuck()
        async with TaskGroup() as group:
            process.run(lambda: group.start_soon(work(), name="work"))
            process.run(lambda: group.start_soon(tick(), name="tick"))
            await asyncio.sleep(5.0)
            process.get_unstuck()

    run_virtual(get_stuck())

    assert seen == ["ticked", "worked"]
