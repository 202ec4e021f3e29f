"""Commits of a store in turns of the event loop: a process may be paused or die between any two steps of one."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass, field

from broadsheet.consumer.errors import StoreClosedError, StoreError
from broadsheet.consumer.stores.commit_thread import CommitSteps
from broadsheet.journals.pipelining import TurnFuture
from broadsheet.runtime.op_future import OpFuture

Later = Callable[[Callable[[], None]], None]
"""Calls an action in a later turn of the event loop."""


@dataclass(eq=False, slots=True)
class _Commit:
    steps: CommitSteps
    wait_for: Collection[Future[object]]
    future: TurnFuture[None] = field(default_factory=TurnFuture)


class SteppedCommits:
    """Writes, settles and tidies up, each a little later; implements `CommitRunner` for a recorded store.

    Source: broadsheet.consumer.stores.commit_thread, whose steps and order these are.
    """

    def __init__(self, name: str, later: Later, *, on_durable: Callable[[], None]) -> None:
        """Begin without commits.

        Args:
            name: The shard's id, for errors.
            later: Takes the next step.
            on_durable: Called after each commit that the store was told of.
        """
        self._name = name
        self._on_durable = on_durable
        self._later = later
        self._waiting: deque[_Commit] = deque()
        self._running: _Commit | None = None
        """The commit whose steps are not all taken."""
        self._last: _Commit | None = None
        self._closed = False

    def start(self, steps: CommitSteps, wait_for: Collection[Future[object]]) -> OpFuture:
        """Take the steps of a commit, after those of the one before."""
        if self._closed:
            raise StoreClosedError(self._name)
        assert steps.recorder is not None, "a simulated store has a recovery log"
        assert self._last is None or self._last.future.done(), "a commit is still under way"
        commit = self._last = _Commit(steps, wait_for)
        commit.future.set_running_or_notify_cancel()
        self._waiting.append(commit)
        self._next()
        return commit.future

    def wait(self) -> None:
        """Raise the error of the last commit; it has resolved, because nothing may block here."""
        if self._last is not None:
            assert self._last.future.done(), "transactions end once their commits have resolved"
            self._last.future.result()

    def close(self) -> None:
        """Fail a commit that is not durable yet, and take no further step."""
        self._closed = True
        if self._last is not None and not self._last.future.done():
            self._fail(
                self._last, StoreError(self._name, "destroyed while a commit was on its way")
            )

    def _next(self) -> None:
        if self._running is None and self._waiting:
            commit = self._running = self._waiting.popleft()
            self._step(lambda: self._write(commit))

    def _step(self, action: Callable[[], None]) -> None:
        def unless_closed() -> None:
            if not self._closed:
                action()

        self._later(unless_closed)

    def _write(self, commit: _Commit) -> None:
        recorder = commit.steps.recorder
        assert recorder is not None, "see `start`"
        try:
            recorder.after(commit.wait_for)
            durable = commit.steps.write()
        except Exception as error:  # the future carries it to its waiters
            self._fail(commit, error)
            return
        assert durable is not None, "its log makes it durable"
        if isinstance(durable, TurnFuture):
            durable.when_sent(commit.future.sent)
        durable.add_done_callback(lambda done: self._step(lambda: self._settle(commit, done)))

    def _settle(self, commit: _Commit, durable: OpFuture) -> None:
        try:
            durable.result()
            commit.steps.settle()
        except Exception as error:  # the future carries it to its waiters
            self._fail(commit, error)
            return
        commit.future.set_result(None)
        self._on_durable()
        self._step(lambda: self._tidy(commit))

    def _tidy(self, commit: _Commit) -> None:
        try:
            commit.steps.tidy()
        except Exception as error:  # the next commit is refused with this error
            commit.steps.fail(error)
        self._running = None
        self._next()

    def _fail(self, commit: _Commit, error: Exception) -> None:
        commit.steps.fail(error)
        commit.future.set_exception(error)
        self._running = None
