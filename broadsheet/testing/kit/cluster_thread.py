"""The event loop of a test's cluster, on a thread of its own: tests call it without an event loop, or within one."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

from broadsheet.runtime.task_group import TaskGroup
from broadsheet.testing.allocator.kernel.virtual_loop import ProcessLoop
from broadsheet.testing.kit.errors import ClusterFailedError, StuckError
from broadsheet.testing.kit.lockstep import Gate, LockstepLoop

T = TypeVar("T")
END_SECONDS = 60.0
"""Real time for the end of a cluster."""


@dataclass(frozen=True, slots=True)
class _Call:
    function: Callable[[], Awaitable[Any]]
    answer: Future[Any]


class Hosted(Protocol):
    """Lives on the loop, between its start and its stop."""

    async def start(self) -> None:
        """Begin."""
        ...

    async def stop(self) -> None:
        """End everything that was begun."""
        ...


class ClusterThread:
    """Runs calls one at a time on an event loop. On virtual time the loop stands still between calls."""

    def __init__(self, gate: Gate | None) -> None:
        """Start the thread and its loop.

        Args:
            gate: Of a virtual loop; None for a real one.
        """
        self._gate = gate
        self._calls: asyncio.Queue[_Call | None]
        self._loop: asyncio.AbstractEventLoop
        self._begun: Future[None] = Future()
        self._running: asyncio.Task[Any] | None = None
        self._stuck = False
        self._ended = False
        self._answers: set[Future[Any]] = set()
        self._answering = threading.Lock()
        """Guards what is between a call and the end of the group, which come from two threads."""
        self._failure: BaseException | None = None
        self._is_failure_told = False
        self.group: TaskGroup
        """Runs what lives as long as the loop."""
        if gate is not None:
            gate.on_stuck = self._on_stuck
        self._thread = threading.Thread(target=self._run, name="test cluster", daemon=True)
        self._thread.start()
        self._begun.result()

    def call(self, function: Callable[[], Awaitable[T]], *, closes: bool = False) -> T:
        """Return what a coroutine function returns, run on the loop.

        Args:
            function: What to run.
            closes: It ends what was begun, so that it is called also if the cluster has failed.

        Raises:
            StuckError: nothing moves any more; the message names the tasks that wait.
            ClusterFailedError: a task of `group` has failed, now or before; with all others it is gone.
        """
        if self._ended:
            raise StuckError("the cluster is closed: use it within its `with` block")
        answer: Future[T] = Future()
        with self._answering:
            if self._failure is not None and not closes:
                raise self._failed(self._failure)
            self._answers.add(answer)
            if self._gate is not None:
                self._gate.frozen = False
            self._loop.call_soon_threadsafe(self._calls.put_nowait, _Call(function, answer))
        try:
            return answer.result()
        finally:
            with self._answering:
                self._answers.discard(answer)

    def close(self) -> None:
        """End the loop and the thread. Idempotent.

        Raises:
            ClusterFailedError: a task of `group` has failed, and no call has raised that.
        """
        if self._ended:
            return
        self._ended = True
        if self._gate is not None:
            self._gate.frozen = False
        self._loop.call_soon_threadsafe(self._calls.put_nowait, None)
        self._thread.join(END_SECONDS)
        if self._thread.is_alive():
            raise StuckError(f"the cluster has not ended after {END_SECONDS:.0f} s")
        if self._failure is not None and not self._is_failure_told:
            raise self._failed(self._failure)

    def _failed(self, cause: BaseException) -> ClusterFailedError:
        self._is_failure_told = True
        return ClusterFailedError(cause)

    def _run(self) -> None:
        gate = self._gate
        factory = ProcessLoop if gate is None else partial(LockstepLoop, gate)
        try:
            with asyncio.Runner(loop_factory=factory) as runner:
                runner.run(self._serve())
        except BaseException as error:
            if self._begun.done():
                raise
            self._begun.set_exception(error)

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls = asyncio.Queue()
        try:
            async with TaskGroup() as self.group:
                self._begun.set_result(None)
                while (call := await self._calls.get()) is not None:
                    await self._perform(call)
                self.group.stop()
        except BaseException as error:
            # Not raised on this thread, where no test would see it: the test's call must end, with the reason.
            self._fail(error)
            while (call := await self._calls.get()) is not None:
                self._answer(call, *await _outcome(call.function))

    def _fail(self, error: BaseException) -> None:
        with self._answering:
            self._failure = error
            for answer in self._answers:
                if not answer.done():
                    answer.set_exception(self._failed(error))
        if self._gate is not None:
            self._gate.frozen = True

    async def _perform(self, call: _Call) -> None:
        self._stuck = False
        running = self.group.start_soon(_outcome(call.function), name="the test's call")
        self._running = running
        try:
            error, result = await running
        except asyncio.CancelledError:
            if not self._stuck:
                raise
            error, result = StuckError(f"nothing moves any more; waiting: {self._waiting()}"), None
        finally:
            self._running = None
        self._answer(call, error, result)

    def _answer(self, call: _Call, error: BaseException | None, result: object) -> None:
        if self._gate is not None:
            # Before the answer, because the next call thaws it.
            self._gate.frozen = True
        # A call that came when the group failed has its answer.
        if call.answer.done():
            return
        if error is not None:
            call.answer.set_exception(error)
        else:
            call.answer.set_result(result)

    def _on_stuck(self) -> None:
        """End the test's call: nothing is ready, no timer is set, and no thread works."""
        self._stuck = True
        if self._running is not None:
            self._running.cancel()

    def _waiting(self) -> str:
        names = sorted(task.get_name() for task in asyncio.all_tasks(self._loop))
        return ", ".join(name for name in names if name != "the test's call")


async def _outcome(function: Callable[[], Awaitable[T]]) -> tuple[BaseException | None, T | None]:
    """Return what a call raises, too: an error of the test's call must not end the cluster."""
    try:
        return None, await function()
    except Exception as error:
        return error, None
