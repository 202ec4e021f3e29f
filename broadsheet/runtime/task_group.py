"""Named tasks that live and die together: the only place where tasks are made.

An `asyncio.TaskGroup` that can be stopped, and that raises the *first* error itself rather than a group: later errors
are consequences of a crash, and they are added to the first one's notes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from types import TracebackType
from typing import Self, TypeVar

T = TypeVar("T")


class _Stop(Exception):  # noqa: N818 - a signal, not an error
    """Raised inside the group to cancel the remaining tasks; never leaves it."""


class TaskGroup:
    """Runs named tasks; the first error cancels the others and is raised on leaving the block."""

    def __init__(self) -> None:
        self._group = asyncio.TaskGroup()
        self._first_error: BaseException | None = None
        self._stopping = False
        self._running: set[asyncio.Task[object]] = set()
        self._owner: asyncio.Task[object] | None = None
        self._cancellations_before = 0

    def start_soon(self, coroutine: Coroutine[object, object, T], *, name: str) -> asyncio.Task[T]:
        """Start a task in the group.

        Args:
            coroutine: The task's work.
            name: Shown in logs, errors and debuggers.

        Raises:
            RuntimeError: the group is ending and accepts no more tasks. The coroutine is closed.
        """
        try:
            task = self._group.create_task(coroutine, name=name)
        except RuntimeError:
            coroutine.close()
            raise
        self._running.add(task)
        task.add_done_callback(self._on_done)
        return task

    def stop(self) -> None:
        """Cancel every task of the group; the block then ends without an error, unless one has failed. Idempotent."""
        if self._stopping:
            return
        self._stopping = True
        stop = _raise_stop()
        try:
            self._running.add(self._group.create_task(stop, name="stop"))
        except RuntimeError:
            stop.close()
            if self._first_error is None:
                raise
            # A task has failed: the group is ending already, with its error.

    def _on_done(self, task: asyncio.Task[object]) -> None:
        self._running.discard(task)
        if task.cancelled() or self._first_error is not None:
            return
        self._first_error = task.exception()

    async def __aenter__(self) -> Self:
        self._owner = asyncio.current_task()
        if self._owner is not None:
            self._cancellations_before = self._owner.cancelling()
        await self._group.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            if kind is None:
                kind, error, trace = await self._wait()
            await self._group.__aexit__(kind, error, trace)
        except BaseExceptionGroup as group:
            _, others = group.split(_Stop)
            if self._is_cancelled_from_outside():
                # An error that comes together with a cancellation must not undo it: the caller that catches the error
                # would go on, and the task that cancelled would wait for ever.
                raise asyncio.CancelledError from group
            if others is None:
                return
            chosen = self._chosen(error, others)
            # Not `from None`, because that would remove the error's own cause.
            raise chosen from chosen.__cause__

    async def _wait(
        self,
    ) -> tuple[type[BaseException] | None, BaseException | None, TracebackType | None]:
        """Wait for all tasks, and return how the wait was cancelled, if it was.

        asyncio's group cancels its owner when a task fails, and takes that back only if it happens before `__aexit__`
        (until Python 3.13). So its `__aexit__` is called last, and the owner's count of cancellations is reliable:
        those that remain come from outside.
        """
        try:
            while self._running:
                done, _ = await asyncio.wait(self._running)
                self._running -= done
        except asyncio.CancelledError as cancelled:
            return type(cancelled), cancelled, cancelled.__traceback__
        return None, None, None

    def _is_cancelled_from_outside(self) -> bool:
        return self._owner is not None and self._owner.cancelling() > self._cancellations_before

    def _chosen(
        self, body_error: BaseException | None, group: BaseExceptionGroup[BaseException]
    ) -> BaseException:
        leaves = list(_leaves(group))
        body_failed = body_error is not None and not isinstance(body_error, asyncio.CancelledError)
        chosen = self._first_error or (body_error if body_failed else None) or leaves[0]
        for other in leaves:
            if other is not chosen:
                chosen.add_note(f"also failed: {other!r}")
        return chosen


async def _raise_stop() -> None:
    raise _Stop


def _leaves(group: BaseExceptionGroup[BaseException]) -> list[BaseException]:
    found: list[BaseException] = []
    for error in group.exceptions:
        found.extend(_leaves(error) if isinstance(error, BaseExceptionGroup) else [error])
    return found
