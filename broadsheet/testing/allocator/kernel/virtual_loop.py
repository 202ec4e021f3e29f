"""An event loop on virtual time, with processes that can be stopped and continued.

The loop never sleeps: when nothing is ready, its selector jumps to the next timer. A run in which nothing is ready and
no timer is set would hang for ever; it raises `DeadlockError` at once. There are no threads: work for an executor runs
where it is submitted. So the order of events depends only on the program.

A task and everything that it starts belong to a `Process`, which their context names. While a process is stopped, none
of its callbacks runs, whatever they wait for: they are kept in order, and run when it continues. That is the effect of
SIGSTOP on a member, and without a later SIGCONT it looks like a crash from outside.
"""

from __future__ import annotations

import asyncio
import math
import selectors
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context  # noqa: TID251 - which process runs
from dataclasses import dataclass, field
from typing import TypeVar, TypeVarTuple, Unpack

T = TypeVar("T")
Ts = TypeVarTuple("Ts")


class DeadlockError(Exception):
    """Nothing is ready and no timer is set: the run would hang for ever."""


@dataclass(eq=False)
class Process:
    """A group of tasks that is stopped and continued as one."""

    name: str
    stopped: bool = False
    stuck_in_work: bool = False
    """While set, work that is given to an executor does not finish; everything else continues."""
    _steps_left: int = -1
    """Callbacks that it still runs before it stops; negative: no end is set."""
    _kept: list[_Guarded] = field(default_factory=list)
    _unfinished: list[asyncio.Future[None]] = field(default_factory=list)

    def stop(self) -> None:
        """Stop now."""
        self.stopped = True

    def stop_after(self, steps: int) -> None:
        """Stop after this many more callbacks, which may be between any two steps of any task."""
        self._steps_left = steps
        self.note_step()

    def note_step(self) -> None:
        """Count a callback that ran; for the loop."""
        if self._steps_left == 0:
            self.stopped = True
        self._steps_left = max(-1, self._steps_left - 1)

    def go_on(self) -> None:
        """Run the kept callbacks in order, and continue."""
        self.stopped = False
        self._steps_left = -1
        kept, self._kept = self._kept, []
        for guarded in kept:
            guarded.reschedule()

    def get_stuck(self) -> None:
        """Make work that is given to an executor hang from now on."""
        self.stuck_in_work = True

    def get_unstuck(self) -> None:
        """Let hanging work finish."""
        self.stuck_in_work = False
        unfinished, self._unfinished = self._unfinished, []
        for future in unfinished:
            if not future.done():
                future.set_result(None)

    def run(self, action: Callable[[], T]) -> T:
        """Call `action` in this process, so that everything it starts belongs to the process."""
        context = copy_context()
        context.run(_PROCESS.set, self)
        return context.run(action)

    def keep(self, guarded: _Guarded) -> None:
        """Keep a callback until the process continues; for the loop."""
        self._kept.append(guarded)

    def add_unfinished(self, future: asyncio.Future[None]) -> None:
        """Make a future wait until hanging work finishes; for the loop."""
        self._unfinished.append(future)


_PROCESS: ContextVar[Process | None] = ContextVar("simulated process", default=None)


def current_process() -> Process | None:
    """Return the process that the caller belongs to."""
    return _PROCESS.get()


class _Guarded:
    """A callback of a process, which is kept while the process is stopped."""

    __slots__ = ("_args", "_callback", "_context", "_loop", "_process", "handle")

    def __init__(
        self,
        loop: ProcessLoop,
        process: Process,
        callback: Callable[..., object],
        args: tuple[object, ...],
        context: Context,
    ) -> None:
        self._loop = loop
        self._process = process
        self._callback = callback
        self._args = args
        self._context = context
        self.handle: asyncio.Handle | None = None

    def __call__(self) -> None:
        if self._process.stopped:
            self._process.keep(self)
        else:
            self._callback(*self._args)
            self._process.note_step()

    def reschedule(self) -> None:
        """Call a kept callback soon, unless it was cancelled meanwhile, as a timer may be."""
        if self.handle is None or not self.handle.cancelled():
            self._loop.call_soon(self._replay, context=self._context)

    def _replay(self) -> None:
        # Cancelled between its rescheduling and this call.
        if self.handle is None or not self.handle.cancelled():
            self._callback(*self._args)


class JumpingSelector(selectors.SelectSelector):
    """A selector that waits only for time, by jumping to it."""

    def __init__(self) -> None:
        super().__init__()
        self.now_seconds = 0.0
        self.end_seconds = math.inf

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Jump to the next timer.

        Args:
            timeout: Virtual seconds until it is due; 0 if something is ready, None if there is no timer.

        Raises:
            DeadlockError: there is none, or the time is up.
        """
        if timeout is None:
            raise DeadlockError("nothing is ready and no timer is set")
        self.now_seconds += max(0.0, timeout)
        if self.now_seconds > self.end_seconds:
            # Once only, because what is cancelled after the error may still wait for time to pass.
            self.end_seconds = math.inf
            raise DeadlockError("the time set for this is up")
        return []


class ProcessLoop(asyncio.SelectorEventLoop):
    """An event loop whose tasks belong to processes. Its time is real."""

    def call_soon(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """Call a callback in the next iteration, or when its process continues."""
        process = _process_of(context)
        if process is None:
            return super().call_soon(callback, *args, context=context)
        guarded = _Guarded(self, process, callback, args, context or copy_context())
        guarded.handle = super().call_soon(guarded, context=context)
        return guarded.handle

    def call_at(
        self,
        when: float,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call a callback at a time, or later when its process continues."""
        process = _process_of(context)
        if process is None:
            return super().call_at(when, callback, *args, context=context)
        guarded = _Guarded(self, process, callback, args, context or copy_context())
        handle = super().call_at(when, guarded, context=context)
        guarded.handle = handle
        return handle

    def call_soon_threadsafe(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """Call a callback in the next iteration; from any thread."""
        process = _process_of(context)
        if process is None:
            return super().call_soon_threadsafe(callback, *args, context=context)
        guarded = _Guarded(self, process, callback, args, context or copy_context())
        guarded.handle = super().call_soon_threadsafe(guarded, context=context)
        return guarded.handle


class VirtualLoop(ProcessLoop):
    """An event loop on virtual time. `time()` is seconds since its start."""

    def __init__(self, selector: JumpingSelector | None = None) -> None:
        """Begin at time 0.

        Args:
            selector: Jumps in time; may wait for something real first.
        """
        selector = selector or JumpingSelector()
        self._virtual = selector
        super().__init__(selector)

    def time(self) -> float:
        """Return virtual seconds since the loop was made."""
        return self._virtual.now_seconds

    def tick(self) -> float:
        """Advance time by a nanosecond and return it, so that repeated reads of a clock see it move."""
        self._virtual.now_seconds += 1e-9
        return self._virtual.now_seconds

    def end_at(self, seconds: float) -> None:
        """Raise `DeadlockError` after this time, to end a run that makes no progress."""
        self._virtual.end_seconds = seconds

    def call_soon_threadsafe(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """Call a callback in the next iteration; there is only one thread."""
        return self.call_soon(callback, *args, context=context)

    def run_in_executor(
        self, executor: object, func: Callable[[Unpack[Ts]], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """Run work at once, and return a finished future, unless the process hangs in its work."""
        done: asyncio.Future[T] = self.create_future()
        process = current_process()
        if process is not None and process.stuck_in_work:
            unstuck: asyncio.Future[None] = self.create_future()
            process.add_unfinished(unstuck)
            unstuck.add_done_callback(lambda _: _work(done, func, args))
        else:
            _work(done, func, args)
        return done


def _work(done: asyncio.Future[T], func: Callable[[Unpack[Ts]], T], args: tuple[*Ts]) -> None:
    if done.cancelled():
        return
    try:
        done.set_result(func(*args))
    except Exception as error:
        done.set_exception(error)


def _process_of(context: Context | None) -> Process | None:
    if context is None:
        return _PROCESS.get()
    return context.get(_PROCESS)


class VirtualClock:
    """The clocks of simulated members: the loop's time, and a matching date."""

    EPOCH_SECONDS = 1_700_000_000.0

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop

    def monotonic_seconds(self) -> float:
        """Return virtual seconds."""
        return self._loop.tick()

    def wall_seconds(self) -> float:
        """Return virtual seconds since the Unix epoch."""
        return self.EPOCH_SECONDS + self._loop.tick()


def running_loop() -> VirtualLoop:
    """Return the running virtual loop."""
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop), "simulations run on virtual time"
    return loop


def run_virtual(main: Coroutine[object, object, T]) -> T:
    """Run a coroutine to completion on a new loop.

    Raises:
        DeadlockError: the coroutine waits for ever; the message names the waiting tasks.
    """
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        try:
            return runner.run(main)
        except DeadlockError as error:
            waiting = sorted(task.get_name() for task in asyncio.all_tasks(runner.get_loop()))
            raise DeadlockError(f"{error}; waiting: {', '.join(waiting)}") from None
