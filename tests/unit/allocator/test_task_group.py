"""Task groups: the first error wins, stop is no error, nothing is orphaned."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import pytest

from broadsheet.runtime.task_group import TaskGroup


async def _fail(error: Exception) -> None:
    raise error


async def test_first_error_is_raised_itself_and_cancels_the_rest() -> None:
    """Callers match on the error that caused the crash, not on a group of its consequences."""
    cancelled = asyncio.Event()

    async def wait_for_ever() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.set()
            raise

    with pytest.raises(KeyError, match="cause"):
        async with TaskGroup() as group:
            group.start_soon(wait_for_ever(), name="waiter")
            group.start_soon(_fail(KeyError("cause")), name="failer")

    assert cancelled.is_set()


async def test_error_keeps_what_caused_it() -> None:
    """What helps against an error may depend on its cause, and the log is to show both."""
    cause = OSError("the disk")

    async def fail_because() -> None:
        raise KeyError("wrapped") from cause

    with pytest.raises(KeyError) as caught:
        async with TaskGroup() as outer, TaskGroup() as inner:
            inner.start_soon(fail_because(), name="failer")
            outer.start_soon(asyncio.Event().wait(), name="waiter")

    assert caught.value.__cause__ is cause
    assert caught.value.__suppress_context__, "the group itself tells nothing"


async def test_errors_that_follow_are_notes_of_the_first() -> None:
    """A clean-up that fails as well must neither hide the cause nor vanish."""

    async def fail_when_cancelled() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("while cleaning up")

    with pytest.raises(KeyError) as caught:
        async with TaskGroup() as group:
            group.start_soon(fail_when_cancelled(), name="cleaner")
            await asyncio.sleep(0)
            group.start_soon(_fail(KeyError("cause")), name="failer")

    assert any("while cleaning up" in note for note in caught.value.__notes__)


async def test_stop_cancels_what_is_left_and_ends_without_error() -> None:
    """An orderly end is told apart from a failure."""
    group = TaskGroup()
    async with group:
        task = group.start_soon(asyncio.Event().wait(), name="waiter")
        group.stop()
        group.stop()

    assert task.cancelled()


async def test_stop_after_a_failure_leaves_the_failure_to_be_seen() -> None:
    """Who cleans up stops the group while it ends already; what made it end must not be hidden by that."""

    async def fail() -> None:
        raise ValueError("the cause")

    with pytest.raises(ValueError, match="the cause"):
        async with TaskGroup() as group:
            try:
                group.start_soon(fail(), name="failing")
                await asyncio.Event().wait()
            finally:
                group.stop()


async def test_error_of_the_body_is_raised_when_no_task_failed() -> None:
    """The block's own error is as good a cause as a task's."""
    with pytest.raises(RuntimeError, match="body"):
        async with TaskGroup() as group:
            group.start_soon(asyncio.Event().wait(), name="waiter")
            raise RuntimeError("body")


async def test_cancellation_from_outside_passes_through() -> None:
    """Cancelling the owner is not an error of the group and must reach the owner as cancellation."""
    entered = asyncio.Event()

    async def own_a_group() -> None:
        async with TaskGroup() as group:
            group.start_soon(asyncio.Event().wait(), name="waiter")
            entered.set()

    async with asyncio.TaskGroup() as outer:
        owner = outer.create_task(own_a_group())
        await entered.wait()
        owner.cancel()

    assert owner.cancelled()


async def test_cancellation_together_with_a_tasks_error_is_not_lost() -> None:
    """A task that fails while its owner is cancelled: the owner must end, and not handle the error and go on."""
    entered = asyncio.Event()
    went_on = False

    async def fail_when_cancelled() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise RuntimeError("at the same time")

    async def own_groups_for_ever() -> None:
        nonlocal went_on
        try:
            async with TaskGroup() as group:
                group.start_soon(fail_when_cancelled(), name="failing")
                entered.set()
        except RuntimeError:
            went_on = True

    async with asyncio.TaskGroup() as outer:
        owner = outer.create_task(own_groups_for_ever())
        await entered.wait()
        await asyncio.sleep(0)
        owner.cancel()

    assert not went_on
    assert owner.cancelled()


@pytest.mark.parametrize("ends", ["error", "stop"])
async def test_a_group_that_ended_leaves_no_cancellation_behind(ends: str) -> None:
    """What cancels the group's owner from within is taken back: a later group would take it for one from outside."""
    owner = asyncio.current_task()
    assert owner is not None

    with suppress(RuntimeError):
        async with TaskGroup() as group:
            if ends == "stop":
                group.stop()
            else:
                group.start_soon(_fail(RuntimeError("late")), name="late")
            group.start_soon(asyncio.Event().wait(), name="waiter")

    assert owner.cancelling() == 0


async def test_timeout_around_a_failing_group_is_a_timeout() -> None:
    """A deadline that passes while a task fails is reported as such, and does not strike later."""

    async def fail_when_cancelled() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise RuntimeError("at the same time")

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01), TaskGroup() as group:
            group.start_soon(fail_when_cancelled(), name="failing")

    await asyncio.sleep(0)


async def test_results_are_kept() -> None:
    """Tasks are ordinary tasks: their results can be read after the block."""

    async def answer() -> int:
        return 42

    async with TaskGroup() as group:
        task = group.start_soon(answer(), name="answer")

    assert task.result() == 42


async def test_group_that_ended_refuses_a_task_and_closes_its_coroutine() -> None:
    """Whoever starts a task too late learns of it once: no warning of a coroutine that was never awaited besides."""
    async with TaskGroup() as group:
        pass
    late = asyncio.sleep(0)
    with pytest.raises(RuntimeError):
        group.start_soon(late, name="late")
    with pytest.raises(RuntimeError, match="cannot reuse"):
        await late
