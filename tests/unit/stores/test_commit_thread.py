"""The thread on which stores commit: who waits for a commit does not wait for what is tidied up behind it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

import pytest

from broadsheet.consumer.errors import StoreError
from broadsheet.consumer.stores.commit_thread import CommitSteps, CommitThread
from broadsheet.runtime.op_future import OpFuture
from broadsheet.testing.stores.recorded_log import RecordedLog

SECONDS_MAX = 20.0


def test_commit_is_done_before_its_tidying_and_the_next_one_begins_behind_it() -> None:
    """Copying a write-ahead log back takes long: an acknowledgement must not wait for it, and no commit overtake it."""
    commits = CommitThread("shard")
    may_tidy = threading.Event()
    steps: list[str] = []

    def tidy() -> None:
        assert may_tidy.wait(SECONDS_MAX)
        steps.append("tidied")

    first = commits.start(CommitSteps(write=lambda: steps.append("first"), tidy=tidy), wait_for=())
    first.result(SECONDS_MAX)
    second = commits.start(CommitSteps(write=lambda: steps.append("second")), wait_for=())
    may_tidy.set()
    second.result(SECONDS_MAX)

    assert steps == ["first", "tidied", "second"]
    commits.close()


def test_tidying_that_fails_is_told_to_the_store_and_not_to_the_commit() -> None:
    """The commit is durable; what comes after it must know that the files are not as they should be."""
    commits = CommitThread("shard")
    told: Future[BaseException] = Future()

    def tidy() -> None:
        raise OSError("the disk is full")

    commit = commits.start(
        CommitSteps(write=lambda: None, tidy=tidy, fail=told.set_result), wait_for=()
    )

    assert commit.result(SECONDS_MAX) is None
    with pytest.raises(OSError, match="the disk is full"):
        raise told.result(SECONDS_MAX)
    commits.close()


def brief(write: Callable[[], OpFuture | None], **others: Callable[..., None]) -> CommitSteps:
    """Return the steps of a brief recorded commit."""
    return CommitSteps(write=write, recorder=RecordedLog().recorder(), is_brief=True, **others)


def _itself(durable: OpFuture) -> OpFuture:
    return durable


def test_brief_commit_is_written_by_its_caller_and_settled_by_the_thread() -> None:
    """A row that comes alone must not pay for a switch of threads before its log is asked, nor may it be done before
    the log has answered.
    """
    commits = CommitThread("shard", recorded=True)
    durable: OpFuture = Future()
    threads: list[threading.Thread] = []

    def write() -> OpFuture:
        threads.append(threading.current_thread())
        return durable

    def settle() -> None:
        threads.append(threading.current_thread())

    commit = commits.start(brief(write, settle=settle), wait_for=())
    assert threads == [threading.current_thread()]
    assert not commit.done()
    durable.set_result(None)
    commit.result(SECONDS_MAX)

    assert threads[1] is not threading.current_thread()
    commits.close()


def test_brief_commit_waits_for_the_tidying_of_the_one_before() -> None:
    """Tidying uses the store's files: two threads in them at once would record what belongs to neither commit."""
    commits = CommitThread("shard", recorded=True)
    may_tidy = threading.Event()
    steps: list[str] = []

    def tidy() -> None:
        assert may_tidy.wait(SECONDS_MAX)
        steps.append("tidied")

    commits.start(brief(lambda: None, tidy=tidy), wait_for=()).result(SECONDS_MAX)
    second = commits.start(brief(lambda: steps.append("second")), wait_for=())
    assert not second.done()
    may_tidy.set()
    second.result(SECONDS_MAX)

    assert steps == ["tidied", "second"]
    commits.close()


def test_brief_commit_whose_write_fails_tells_the_store_and_the_caller() -> None:
    """The future carries the error as for any other commit, so that the shard ends its attempt by one path."""
    commits = CommitThread("shard", recorded=True)
    told: list[BaseException] = []

    def write() -> None:
        raise OSError("the disk is full")

    commit = commits.start(brief(write, fail=told.append), wait_for=())

    with pytest.raises(OSError, match="the disk is full"):
        commit.result(SECONDS_MAX)
    assert told == [commit.exception()]
    commits.close()


@pytest.mark.parametrize("is_brief", [True, False])
def test_close_fails_a_commit_whose_log_never_answers(*, is_brief: bool) -> None:
    """A broker that is gone must not keep a shard from leaving, and the commit's outcome must be told as unknown."""
    commits = CommitThread("shard", recorded=True)
    told: list[BaseException] = []
    silent: OpFuture = Future()
    steps = replace(brief(lambda: silent, fail=told.append), is_brief=is_brief)

    commit = commits.start(steps, wait_for=())
    commits.close()
    commits.close()

    with pytest.raises(StoreError, match="on its way into the recovery log"):
        commit.result(SECONDS_MAX)
    assert told == [commit.exception()]
    silent.set_result(None)  # An answer that is late changes nothing.


def test_answer_at_any_moment_of_a_close_leaves_one_outcome() -> None:
    """The answer may arrive while the thread ends: the future resolves once, and no caller waits for ever."""
    for _ in range(200):
        commits = CommitThread("shard", recorded=True)
        durable: OpFuture = Future()
        commit = commits.start(brief(partial(_itself, durable)), wait_for=())
        answering = threading.Thread(target=durable.set_result, args=(None,))
        answering.start()
        commits.close()
        answering.join()

        error = commit.exception(SECONDS_MAX)
        assert error is None or isinstance(error, StoreError)
