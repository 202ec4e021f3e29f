"""The thread on which stores commit: who waits for a commit does not wait for what is tidied up behind it."""

from __future__ import annotations

import threading
from concurrent.futures import Future

import pytest

from broadsheet.consumer.stores.commit_thread import CommitSteps, CommitThread

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
