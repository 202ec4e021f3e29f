"""Threads for blocking jobs of an event loop."""

from __future__ import annotations

import asyncio
import threading
import weakref
from functools import partial

import pytest

from broadsheet.broker.disk import DiskThreads
from tests.support.eventually import eventually

COUNT = 2


class _Content:
    """What a job holds on to."""


async def test_jobs_return_or_raise_to_whoever_waits() -> None:
    """Errors that are no exceptions, too: a thread that ended by one would leave its queue behind."""
    threads = DiskThreads(1, name="disk")

    def fail(error: BaseException) -> None:
        raise error

    assert await threads.submit(lambda: threading.current_thread().name) == "disk_0"
    for error in (OSError(5, "no"), SystemExit(3)):
        with pytest.raises(type(error)):
            await threads.submit(partial(fail, error))
    assert await threads.submit(lambda: 4) == 4
    threads.close()


async def test_as_many_jobs_run_at_a_time_as_there_are_threads() -> None:
    """Plan: as many jobs as threads, that wait for each other; then one more, that waits for none."""
    threads = DiskThreads(COUNT, name="disk")
    barrier = threading.Barrier(COUNT, timeout=20)
    running = [threads.submit(barrier.wait) for _ in range(COUNT)]
    assert sorted(await asyncio.gather(*running)) == list(range(COUNT))
    names = {await threads.submit(lambda: threading.current_thread().name) for _ in range(20)}
    assert names <= {f"disk_{index}" for index in range(COUNT)}
    threads.close()


async def test_job_cancelled_before_it_begins_never_does_and_one_that_runs_ends() -> None:
    """A commit that is given up while it waits for a thread must write nothing."""
    threads = DiskThreads(1, name="disk")
    begun, gate, ran = threading.Event(), threading.Event(), list[str]()

    def first() -> None:
        begun.set()
        assert gate.wait(20)
        ran.append("first")

    running = threads.submit(first)
    waiting = threads.submit(lambda: ran.append("second"))
    await eventually(begun.is_set)
    running.cancel()
    waiting.cancel()
    gate.set()
    await threads.submit(lambda: ran.append("third"))
    assert ran == ["first", "third"]
    threads.close()


async def test_close_waits_for_all_jobs_and_takes_no_more() -> None:
    """What was submitted is done, by any thread."""
    threads = DiskThreads(COUNT, name="disk")
    done: list[int] = []
    for number in range(50):
        threads.submit(partial(done.append, number))
    threads.close()
    threads.close()
    assert sorted(done) == list(range(50))
    with pytest.raises(RuntimeError, match="closed"):
        threads.submit(lambda: None)


async def test_thread_that_waits_holds_on_to_nothing() -> None:
    """Content of the last commit must not stay in memory until the next one."""
    threads = DiskThreads(1, name="disk")
    content = _Content()
    there = weakref.ref(content)
    await threads.submit(partial(id, content))
    del content
    await eventually(lambda: there() is None)
    threads.close()


def test_job_may_outlive_its_loop() -> None:
    """Plan: end a loop while its job runs, then use the thread from another."""
    threads = DiskThreads(1, name="disk")
    gate = threading.Event()

    async def start() -> None:
        threads.submit(lambda: gate.wait(20))

    async def use() -> int:
        return await threads.submit(lambda: 7)

    asyncio.run(start())
    gate.set()
    assert asyncio.run(use()) == 7
    threads.close()


async def test_job_failed_before_it_begins_never_does() -> None:
    """A stop fails the jobs that it does not wait for; one that still ran would write into a directory of others."""
    threads = DiskThreads(1, name="disk")
    gate, ran = threading.Event(), list[str]()
    running = threads.submit(partial(gate.wait, 20))
    waiting = threads.submit(lambda: ran.append("second"))
    waiting.set_exception(OSError(5, "stopped"))
    gate.set()
    assert await running
    await threads.submit(lambda: ran.append("third"))
    assert ran == ["third"]
    with pytest.raises(OSError, match="stopped"):
        await waiting
    threads.close()
