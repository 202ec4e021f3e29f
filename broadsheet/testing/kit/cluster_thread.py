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
from broadsheet.testing.kit.errors import StuckError
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
        self.group: TaskGroup
        """Runs what lives as long as the loop."""
        if gate is not None:
            gate.on_stuck = self._on_stuck
        self._thread = threading.Thread(target=self._run, name="test cluster", daemon=True)
        self._thread.start()
        self._begun.result()

    def call(self, function: Callable[[], Awaitable[T]]) -> T:
        """Return what a coroutine function returns, run on the loop.

        Raises:
            StuckError: nothing moves any more; the message names the tasks that wait.
        """
        if self._ended:
            raise StuckError("the cluster is closed: use it within its `with` block")
        answer: Future[T] = Future()
        if self._gate is not None:
            self._gate.frozen = False
        self._loop.call_soon_threadsafe(self._calls.put_nowait, _Call(function, answer))
        return answer.result()

    def close(self) -> None:
        """End the loop and the thread. Idempotent."""
        if self._ended:
            return
        self._ended = True
        if self._gate is not None:
            self._gate.frozen = False
        self._loop.call_soon_threadsafe(self._calls.put_nowait, None)
        self._thread.join(END_SECONDS)
        if self._thread.is_alive():
            raise StuckError(f"the cluster has not ended after {END_SECONDS:.0f} s")

    def _run(self) -> None:
        gate = self._gate
        factory = ProcessLoop if gate is None else partial(LockstepLoop, gate)
        try:
            with asyncio.Runner(loop_factory=factory) as runner:
                runner.run(self._serve())
        except BaseException as error:
            if not self._begun.done():
                self._begun.set_exception(error)
            raise

    async def _serve(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._calls = asyncio.Queue()
        async with TaskGroup() as self.group:
            self._begun.set_result(None)
            while (call := await self._calls.get()) is not None:
                await self._perform(call)
            self.group.stop()

    async def _perform(self, call: _Call) -> None:
        async def perform() -> Any:
            return await call.function()

        self._stuck = False
        running = self.group.start_soon(_outcome(perform), name="the test's call")
        self._running = running
        try:
            error, result = await running
        except asyncio.CancelledError:
            if not self._stuck:
                raise
            error, result = StuckError(f"nothing moves any more; waiting: {self._waiting()}"), None
        finally:
            self._running = None
        if self._gate is not None:
            # Before the answer, because the next call thaws it.
            self._gate.frozen = True
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
