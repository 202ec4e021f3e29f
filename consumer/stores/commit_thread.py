"""The thread on which a store commits, while its shard's worker thread runs the next transaction.

It runs one commit at a time. A commit first waits for its appends. A recorded commit writes its files at once, because
only its recovery log makes it durable: the log gets it after the appends, and is waited for last. `close` ends either
wait, so that a broker that never answers cannot keep a store from being destroyed.

A brief recorded commit is written by the thread that starts it, and this thread gets it once its log has answered:

    worker thread ── write ──► event loop ── append, answer ──► commit thread ── settle, resolve, tidy
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Protocol, cast

from broadsheet.consumer.errors import StoreClosedError, StoreError
from broadsheet.consumer.recoverylog.recorder import FileRecorder
from broadsheet.journals.pipelining import TurnFuture
from broadsheet.runtime.op_future import OpFuture


def _nothing() -> None:
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitSteps:
    """A store's steps for one commit."""

    write: Callable[[], OpFuture | None]
    """Writes the commit. A future that it returns must succeed for the commit to be durable."""
    abandon: Callable[[], None] = _nothing
    """Undoes a commit that was not written."""
    recorder: FileRecorder | None = None
    """Makes the files of `write` durable after what the commit waits for. `write` then does not wait for that, and its
    files are worthless if that fails."""
    is_brief: bool = False
    """`write` takes less than the switch to another thread, and waits for nothing. It needs a `recorder`."""
    settle: Callable[[], None] = _nothing
    """Called once the commit is durable, before its future resolves."""
    tidy: Callable[[], None] = _nothing
    """Called after that, when no caller waits; the next commit begins after it."""
    fail: Callable[[BaseException], None] = lambda _: None
    """Called with the error with which the future is about to fail, or that `tidy` raised; must not raise."""


class CommitRunner(Protocol):
    """Runs the commits of one store, one after another."""

    def start(self, steps: CommitSteps, wait_for: Collection[Future[object]]) -> OpFuture:
        """Begin a commit; the previous one has resolved."""
        ...

    def wait(self) -> None:
        """Return once no commit is in progress; raise the error of the last one."""
        ...

    def close(self) -> None:
        """Fail a commit that is not durable yet, and begin no more. Idempotent."""
        ...


class CommitThread:
    """Runs commits one after another on a dedicated thread; implements `CommitRunner`."""

    def __init__(self, name: str, *, recorded: bool = False) -> None:
        """Create it; its thread starts with the first commit.

        Args:
            name: Shown in thread dumps and errors; the shard's id.
            recorded: Commits become durable by appends to a recovery log, so that what depends on a commit can be sent
                right after its append.
        """
        self._name = name
        self._new_future = TurnFuture[None] if recorded else Future[None]
        self._current: _Commit | None = None
        # One thread for all commits, because starting one takes longer than a small commit.
        self._thread: threading.Thread | None = None
        self._commits: SimpleQueue[_Commit | None] = SimpleQueue()
        self._closed = False

    def start(self, steps: CommitSteps, wait_for: Collection[Future[object]]) -> OpFuture:
        """Write a commit once every future of `wait_for` succeeded; else abandon it, and fail with the first error.

        Requires:
            The previous commit has resolved.
        """
        if self._closed:
            raise StoreClosedError(self._name)
        assert self._current is None or self._current.future.done(), "a commit is still under way"
        future = self._new_future()
        # Marked as running from the start, so that the application, which gets it too, cannot cancel it.
        future.set_running_or_notify_cancel()
        # Behind a commit that is being tidied up, also a brief one has to wait.
        is_free = self._current is None or self._current.is_over
        self._current = _Commit(self._name, future, steps, wait_for)
        if self._thread is None:
            name = f"commit {self._name}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()
        if steps.is_brief and steps.recorder is not None and is_free:
            self._current.write_now(when_answered=self._commits.put)
        else:
            self._commits.put(self._current)
        return self._current.future

    def wait(self) -> None:
        """Block until no commit is in progress; raise the error of the last one."""
        if self._current is not None:
            self._current.future.result()

    def close(self, *, timeout_seconds: float = 10.0) -> None:
        """Abort a commit that waits for appends or for its log; let one that writes finish. Idempotent.

        Raises:
            TimeoutError: the commit is still writing.
        """
        self._closed = True
        if self._thread is None or self._current is None:
            return
        self._current.abort()
        self._commits.put(None)
        self._thread.join(timeout_seconds)
        if self._thread.is_alive():
            raise TimeoutError(f"the commit of {self._name} still writes after {timeout_seconds} s")
        self._current.fail_if_unanswered()

    def _run(self) -> None:
        while (commit := self._commits.get()) is not None:
            commit.run()


class _Commit:
    """One commit."""

    def __init__(
        self,
        name: str,
        future: OpFuture,
        steps: CommitSteps,
        wait_for: Collection[Future[object]],
    ) -> None:
        self.future = future
        self._name = name
        self._steps = steps
        self._wait_for = wait_for
        # Each awaited future is put here when it resolves; None is the order to abort.
        self._resolved: SimpleQueue[Future[object] | None] = SimpleQueue()
        self._durable: OpFuture | None = None
        """Of a commit that was written: resolves when its log has it; None if it need not wait for a log."""
        self._is_written = False
        self.is_over = False
        """True once nothing is left to do, tidying included."""

    def abort(self) -> None:
        self._resolved.put(None)

    def write_now(self, when_answered: Callable[[_Commit], None]) -> None:
        """Write on the calling thread; `when_answered` is called, on any thread, when `run` need not wait any more."""
        try:
            self._write()
        except BaseException as error:
            self._fail(error)
            return
        if self._durable is None:
            when_answered(self)
        else:
            self._durable.add_done_callback(lambda _: when_answered(self))

    def run(self) -> None:
        """Wait, write, wait, settle; resolve the future; tidy."""
        steps = self._steps
        try:
            if not self._is_written:
                self._write()
            if self._durable is not None:
                self._await_log(self._durable)
            steps.settle()
        except BaseException as error:  # the future carries it to its waiters
            self._fail(error)
            return
        self.future.set_result(None)
        try:
            steps.tidy()
        except BaseException as error:  # the next commit is refused with this error
            steps.fail(error)
        self.is_over = True

    def fail_if_unanswered(self) -> None:
        """Fail a commit whose log had not answered when the thread ended. Requires that the thread has ended."""
        if self._is_written and not self.future.done():
            self._fail(self._unanswered())

    def _fail(self, error: BaseException) -> None:
        self._steps.fail(error)
        self.future.set_exception(error)
        self.is_over = True

    def _write(self) -> None:
        steps = self._steps
        if steps.recorder is None:
            self._await_or_abandon()
        else:
            steps.recorder.after(self._wait_for)
        durable = self._durable = steps.write()
        self._is_written = True
        if isinstance(durable, TurnFuture) and isinstance(self.future, TurnFuture):
            durable.when_sent(self.future.sent)

    def _await_or_abandon(self) -> None:
        try:
            if not self._await_all(self._wait_for):
                raise StoreClosedError(self._name)
        except BaseException:
            self._steps.abandon()
            raise

    def _await_log(self, durable: OpFuture) -> None:
        if durable.done():
            durable.result()
        elif not self._await_all((cast("Future[object]", durable),)):
            raise self._unanswered()

    def _unanswered(self) -> StoreError:
        return StoreError(
            self._name,
            "destroyed while a commit was on its way into the recovery log; "
            "the next restore shows whether it arrived",
        )

    def _await_all(self, futures: Collection[Future[object]]) -> bool:
        """Wait until all succeeded; return False if the commit is aborted first. Raise the first error."""
        for future in futures:
            future.add_done_callback(self._resolved.put)
        for _ in range(len(futures)):
            resolved = self._resolved.get()
            if resolved is None:
                return False
            resolved.result()
        return True
