"""A virtual event loop on which real threads may work: virtual time stands still until they have answered.

Applications and stores run on threads of their own, as in a member: a shard's worker thread, a store's commit thread.
The loop waits in real time for what they do, then goes on in virtual time, so that a test takes as long as the work and
no timer. Between two calls of the test the whole world is frozen.

A thread may itself wait for the loop, as a store does whose commit waits for an append. No one can see that from
outside, so that the loop waits for a bounded real time only; the bounds are short where a thread is likely to wait.
"""

from __future__ import annotations

import asyncio
import selectors
import threading
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from contextvars import Context
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar, TypeVarTuple, Unpack

from broadsheet.consumer.shard.worker import ShardThread
from broadsheet.testing.allocator.kernel.virtual_loop import JumpingSelector, VirtualLoop

ResultT = TypeVar("ResultT")
Ts = TypeVarTuple("Ts")

CALL_SECONDS = 10.0
"""Real time for a call of the application, while no commit of its shard is under way that it could wait for."""
CALL_BESIDE_COMMIT_SECONDS = 0.002
"""The same while there is one: a store may wait for it at its first use in the next transaction."""
COMMIT_SECONDS = 10.0
"""Real time for a commit that waits for nothing of the loop's, as far as can be seen."""
IDLE_SECONDS = 0.005
"""Real time for a thread that may wait for the loop, when nothing is left to do but to let time pass."""


@dataclass(eq=False)
class Work:
    """Something that a thread does for the loop."""

    shard: str
    since: float = field(default_factory=time.monotonic)
    may_wait: bool = False
    """Whether it has had its time: it may wait for the loop, which then goes on."""


@dataclass(eq=False)
class CommitWork(Work):
    """A commit, of a store's own thread."""

    wait_for: Collection[Future[object]] = ()

    def is_due(self) -> bool:
        """Return whether nothing that it waits for is missing."""
        return all(future.done() for future in self.wait_for)


class Gate:
    """Knows what threads do for the loop, and stops the loop for as long."""

    def __init__(self) -> None:
        self._wake = threading.Event()
        self._thread = threading.local()
        self._lock = threading.Lock()
        self._calls: set[Work] = set()
        self._commits: set[CommitWork] = set()
        self._loop_thread: int | None = None
        self.frozen = False
        """Whether the world stands still, because the test does not wait for it."""
        self.on_stuck: Callable[[], None] = lambda: None
        """Called when nothing is ready, no timer is set, and no thread works."""

    # -- of threads

    def poke(self) -> None:
        """Let the loop look again; from any thread."""
        if threading.get_ident() == self._loop_thread:
            return
        if not getattr(self._thread, "answers", False):
            # A store that records gives the loop appends to do, on which its commit then depends.
            with self._lock:
                for commit in self._commits:
                    commit.may_wait = True
        self._wake.set()

    @contextmanager
    def answering(self) -> Iterator[None]:
        """Mark what this thread posts meanwhile as the result of its work."""
        self._thread.answers = True
        try:
            yield
        finally:
            self._thread.answers = False

    def begin_call(self, shard: str) -> Work:
        """Note that a worker thread was given a call."""
        work = Work(shard)
        with self._lock:
            self._calls.add(work)
        return work

    def begin_commit(self, shard: str, wait_for: Collection[Future[object]]) -> CommitWork:
        """Note that a store commits, on whatever thread."""
        commit = CommitWork(shard, wait_for=tuple(wait_for))
        with self._lock:
            self._commits.add(commit)
        return commit

    def end(self, work: Work) -> None:
        """Note that a call or a commit has ended, and that everything it posts is posted."""
        with self._lock:
            if isinstance(work, CommitWork):
                self._commits.discard(work)
            else:
                self._calls.discard(work)
        self._wake.set()

    # -- of the loop

    def hold(self, timeout: float | None) -> bool:
        """Wait in real time for threads; return whether the loop must look again before time moves.

        Args:
            timeout: Virtual seconds until the next timer; 0 if something is ready, None if there is no timer.
        """
        self._loop_thread = threading.get_ident()
        held = False
        while self.frozen:
            self._wake.wait()
            self._wake.clear()
            held = True
        while (seconds := self._bounded_wait()) is not None:
            self._wake.wait(seconds)
            self._wake.clear()
            held = True
        if held or timeout == 0:
            return True
        return self._hold_idle(None if timeout is None else IDLE_SECONDS)

    def _hold_idle(self, seconds: float | None) -> bool:
        """Wait for threads that may wait for us, before time moves or we are stuck for good."""
        if not self._calls and not self._commits:
            # A post may have come between the look of the loop and ours.
            woken = self._wake.is_set()
        else:
            woken = self._wake.wait(COMMIT_SECONDS if seconds is None else seconds)
        self._wake.clear()
        if not woken and seconds is None:
            self.on_stuck()
            return True
        return woken

    def _bounded_wait(self) -> float | None:
        """Return how long to wait for work that is likely to end by itself; None if there is none."""
        now = time.monotonic()
        left: list[float] = []
        with self._lock:
            commits = tuple(self._commits)
            for call in self._calls:
                beside = any(commit.shard == call.shard for commit in commits)
                bound = CALL_BESIDE_COMMIT_SECONDS if beside else CALL_SECONDS
                left.append(self._left(call, bound, now))
            left += [
                self._left(commit, COMMIT_SECONDS, now) for commit in commits if commit.is_due()
            ]
        waits = [seconds for seconds in left if seconds > 0]
        return min(waits, default=None)

    @staticmethod
    def _left(work: Work, bound: float, now: float) -> float:
        if work.may_wait:
            return 0.0
        left = work.since + bound - now
        work.may_wait = left <= 0
        return left


class _LockstepSelector(JumpingSelector):
    """Waits for threads in real time before it jumps in virtual time."""

    def __init__(self, gate: Gate) -> None:
        super().__init__()
        self._gate = gate

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for threads, then jump unless something became ready."""
        if self._gate.hold(timeout):
            return []
        return super().select(timeout)


class LockstepLoop(VirtualLoop):
    """A virtual loop that real threads may post to."""

    def __init__(self, gate: Gate) -> None:
        super().__init__(_LockstepSelector(gate))
        self._gate = gate

    def call_soon_threadsafe(
        self,
        callback: Callable[[Unpack[Ts]], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.Handle:
        """Call a callback in the next iteration."""
        handle = self.call_soon(callback, *args, context=context)
        self._gate.poke()
        return handle


class LockstepWorker:
    """A shard's worker thread, for which virtual time waits. Implements `ShardWorker`."""

    def __init__(self, name: str, gate: Gate) -> None:
        """Start the thread.

        Args:
            name: The shard's id.
            gate: Of the loop.
        """
        self._thread = ShardThread(name)
        self._last: Future[None] | None = None
        self._name = name
        self._gate = gate
        self.cpu_seconds = 0.0
        """Always 0: simulated members do not report their load."""

    def submit(self, function: Callable[..., ResultT], *args: Any) -> Future[ResultT]:
        """Run `function(*args)` on the thread, after the earlier calls."""
        work = self._gate.begin_call(self._name)
        try:
            done = self._thread.submit(function, *args)
        except BaseException:
            self._gate.end(work)
            raise
        answer: Future[ResultT] = Future()
        # A call that has not begun is dropped with its caller.
        answer.add_done_callback(lambda _: answer.cancelled() and done.cancel())
        done.add_done_callback(partial(self._answer, answer, work))
        return answer

    async def run(self, function: Callable[..., ResultT], *args: Any) -> ResultT:
        """Return `function(*args)`."""
        return await asyncio.wrap_future(self.submit(function, *args))

    def stack(self) -> str:
        """Return the thread's present stack."""
        return self._thread.stack()

    def close(self) -> None:
        """Let the thread end after the accepted calls. Idempotent."""
        if self._last is None:
            self._last = self.submit(lambda: None)
            self._thread.close()

    async def join(self, *, timeout_seconds: float) -> bool:
        """Wait for the last call, in the loop's time: a call that never returns must not hold the loop up."""
        assert self._last is not None, "close first"
        try:
            async with asyncio.timeout(timeout_seconds):
                await asyncio.wrap_future(self._last)
        except TimeoutError:
            return False
        return True

    def _answer(self, answer: Future[ResultT], work: Work, done: Future[ResultT]) -> None:
        try:
            if done.cancelled() or not answer.set_running_or_notify_cancel():
                return
            error = done.exception()
            with self._gate.answering():
                if error is not None:
                    answer.set_exception(error)
                else:
                    answer.set_result(done.result())
        finally:
            # After the answer's callbacks, which post it to the loop.
            self._gate.end(work)
