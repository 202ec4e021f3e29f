"""The thread on which a store commits, so that its shard's worker thread goes on with the next transaction.

One commit at a time. A commit waits for its appends first. One that is recorded writes its files at once, for only its
recovery log makes it durable: that gets it after the appends, and is waited for last. `close` ends either wait, so that
a broker which never answers cannot keep a store from being destroyed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection
from concurrent.futures import Future
from queue import SimpleQueue
from typing import cast

from broadsheet.consumer.errors import StoreClosedError, StoreError
from broadsheet.consumer.op_future import OpFuture, TurnFuture
from broadsheet.consumer.recoverylog.recorder import FileRecorder


class CommitThread:
    """Runs commits one after another on a thread of its own."""

    def __init__(self, name: str) -> None:
        """Create it; its thread starts with the first commit.

        Args:
            name: Shown in thread dumps and errors; the shard's id.
        """
        self._name = name
        self._current: _Commit | None = None
        # One thread for all: to start one takes longer than a small commit.
        self._thread: threading.Thread | None = None
        self._commits: SimpleQueue[_Commit | None] = SimpleQueue()
        self._closed = False

    def start(
        self,
        commit: Callable[[], OpFuture | None],
        *,
        wait_for: Collection[Future[object]],
        abandon: Callable[[], None],
        recorder: FileRecorder | None = None,
        settle: Callable[[], None] = lambda: None,
        tidy: Callable[[], None] = lambda: None,
        fail: Callable[[BaseException], None] = lambda _: None,
    ) -> OpFuture:
        """Run `commit` once every future of `wait_for` succeeded; else `abandon`, and fail with what failed first.

        Args:
            commit: Writes. What it returns, if anything, must succeed for the commit to be durable.
            wait_for: What must be durable first.
            abandon: Undoes what is not written.
            recorder: Makes what `commit` writes durable, after `wait_for`; then `commit` does not wait for that, and
                its files are good for nothing should that fail.
            settle: Called once the commit is durable, before its future resolves.
            tidy: Called after that, while nobody waits; the next commit begins behind it.
            fail: Called with what the future is about to fail with, or with what `tidy` raised; must not raise.

        Requires:
            The commit before it is resolved.
        """
        if self._closed:
            raise StoreClosedError(self._name)
        assert self._current is None or self._current.future.done(), "a commit is still under way"
        self._current = _Commit(self._name, commit, wait_for, abandon, recorder, settle, tidy, fail)
        if self._thread is None:
            name = f"commit {self._name}"
            self._thread = threading.Thread(target=self._run, name=name, daemon=True)
            self._thread.start()
        self._commits.put(self._current)
        return self._current.future

    def wait(self) -> None:
        """Block until no commit is under way; raise what the last one raised."""
        if self._current is not None:
            self._current.future.result()

    def close(self, *, timeout_seconds: float = 10.0) -> None:
        """Abort a commit that waits for appends or for its log; let one that writes end. Idempotent.

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

    def _run(self) -> None:
        while (commit := self._commits.get()) is not None:
            commit.run()


class _Commit:
    """One commit."""

    def __init__(
        self,
        name: str,
        commit: Callable[[], OpFuture | None],
        wait_for: Collection[Future[object]],
        abandon: Callable[[], None],
        recorder: FileRecorder | None,
        settle: Callable[[], None],
        tidy: Callable[[], None],
        fail: Callable[[BaseException], None],
    ) -> None:
        self.future: TurnFuture[None] = TurnFuture()
        # Running from the start, so that nobody can cancel it: the application is given it, too.
        self.future.set_running_or_notify_cancel()
        self._name = name
        self._commit = commit
        self._wait_for = wait_for
        self._abandon = abandon
        self._recorder = recorder
        self._settle = settle
        self._tidy = tidy
        self._fail = fail
        # Each awaited future puts itself here as it resolves; None is the order to abort.
        self._resolved: SimpleQueue[Future[object] | None] = SimpleQueue()

    def abort(self) -> None:
        self._resolved.put(None)

    def run(self) -> None:
        """Wait, write, wait, settle; resolve the future; tidy."""
        try:
            if self._recorder is None:
                self._await_or_abandon()
            else:
                self._recorder.after(self._wait_for)
            durable = self._commit()
            if durable is not None:
                self._await_log(durable)
            self._settle()
        except BaseException as error:  # the future carries it to whoever waits
            self._fail(error)
            self.future.set_exception(error)
            return
        self.future.set_result(None)
        try:
            self._tidy()
        except BaseException as error:  # the next commit is refused, and says why
            self._fail(error)

    def _await_or_abandon(self) -> None:
        try:
            if not self._await_all(self._wait_for):
                raise StoreClosedError(self._name)
        except BaseException:
            self._abandon()
            raise

    def _await_log(self, durable: OpFuture) -> None:
        if isinstance(durable, TurnFuture):
            durable.when_sent(self.future.sent)
        if not self._await_all((cast("Future[object]", durable),)):
            raise StoreError(
                self._name,
                "destroyed while a commit was on its way into the recovery log; "
                "whoever restores next sees if it got there",
            )

    def _await_all(self, futures: Collection[Future[object]]) -> bool:
        """Wait until all succeeded; False if the commit is aborted first. Raise what the first failure raised."""
        for future in futures:
            future.add_done_callback(self._resolved.put)
        for _ in range(len(futures)):
            resolved = self._resolved.get()
            if resolved is None:
                return False
            resolved.result()
        return True
