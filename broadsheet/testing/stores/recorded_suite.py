"""The conformance suite of stores that record: a log that ends anywhere holds a commit, and the log fences."""

from __future__ import annotations

from bisect import bisect_right
from concurrent.futures import Future

from broadsheet.consumer.errors import StoreError
from broadsheet.runtime.errors import ServiceError
from broadsheet.testing.stores.recorded_log import MirroredFiles, RecordedLog
from broadsheet.testing.stores.subject import (
    FixedShard,
    Holders,
    RecordedSubject,
    StoreSubject,
    failure_of,
    keeps_segments,
    offset_of,
    reading,
    resting,
    wait,
    whole,
)
from broadsheet.testing.stores.suite import StoreConformance
from broadsheet.wire.shard_pb2 import Checkpoint


class RecordedStoreConformance(StoreConformance):
    """The suite for a store that records. A subclass defines a pytest fixture `subject`, a `RecordedSubject`."""

    lives, commits = 2, 10
    """Lives of the shard whose log is cut off everywhere, and commits of each life. A store under test is made so small
    that it does everything it ever does, and not just when a life ends.
    """

    def test_log_that_ends_anywhere_opens_at_a_commit(self, subject: RecordedSubject) -> None:
        """A process dies at any step of any commit. Who takes over finds a checkpoint with just its state, never older
        than the last commit that was said to be durable.
        """
        shard = FixedShard()
        self._commit_often(subject, shard)
        log = subject.log_of(shard)
        durable = self._durable_steps(log)

        for changes, files in log.cuts():
            passed = bisect_right(log.barriers, changes)
            promised = durable[passed - 1] if passed else 0
            step = self._open_cut(subject, shard, files)
            assert step >= promised, f"cut after {changes} changes: {step} of {promised} commits"
            if changes in log.barriers:
                assert step == promised, f"cut after {changes} changes: commit {step} came early"

    def test_commit_is_neither_done_nor_visible_before_its_barrier(
        self, subject: RecordedSubject
    ) -> None:
        """Else a reader sees, and the shard acknowledges, what a standby may never learn of."""
        shard = FixedShard()
        with Holders(subject, shard) as holders:
            store, _ = holders.following()
            subject.log_of(shard).hold()
            subject.put(store, "a", 1)

            commit = store.start_commit(shard, reading(10), ())

            assert isinstance(failure_of(lambda: commit.result(0.1)), TimeoutError)
            assert subject.committed(store) == {}
            subject.log_of(shard).release()
            wait(commit)
            assert subject.committed(store) == {"a": 1}

    def test_nothing_is_recorded_before_what_the_commit_waits_for(
        self, subject: RecordedSubject
    ) -> None:
        """The log is what a standby believes: state must not get there before the outputs it goes with."""
        shard = FixedShard()
        with Holders(subject, shard) as holders:
            store, _ = holders.following()
            subject.put(store, "a", 1)
            recorded = len(subject.log_of(shard).changes)
            append: Future[object] = Future()

            commit = store.start_commit(shard, reading(10), (append,))

            assert isinstance(failure_of(lambda: commit.result(0.1)), TimeoutError)
            assert len(subject.log_of(shard).changes) == recorded
            append.set_result(None)
            wait(commit)
            assert len(subject.log_of(shard).changes) > recorded

    def test_commit_whose_wait_fails_gets_nothing_into_the_log(
        self, subject: RecordedSubject
    ) -> None:
        """A standby must never learn of a state whose outputs were lost, though the local files may have it."""
        shard = FixedShard()
        with Holders(subject, shard) as holders:
            store, _ = holders.following()
            subject.put(store, "a", 1)
            recorded = len(subject.log_of(shard).changes)
            append: Future[object] = Future()
            commit = store.start_commit(shard, reading(10), (append,))

            append.set_exception(OSError("broker is gone"))

            assert "broker is gone" in str(failure_of(lambda: wait(commit)))
            assert len(subject.log_of(shard).changes) == recorded

    def test_destroy_aborts_a_commit_that_still_waits(self, subject: StoreSubject) -> None:
        """A broker that never answers must not keep a shard from stopping. What the commit waited for fails when its
        shard is torn down, and so nothing of it gets into the log.
        """
        shard = FixedShard()
        with Holders(subject, shard) as holders:
            store, _ = holders.following()
            subject.put(store, "a", 1)
            never: Future[object] = Future()
            commit = store.start_commit(shard, reading(10), (never,))

            store.destroy()
            store.destroy()

            assert isinstance(failure_of(lambda: wait(commit)), StoreError)
            never.set_exception(OSError("the append service was closed"))
            assert holders.following()[1] == Checkpoint()

    def test_fenced_commit_fails_and_is_not_visible(self, subject: RecordedSubject) -> None:
        """The local files of a zombie are ahead of the log; queries must not see that, and it must not go on."""
        shard = FixedShard()
        with Holders(subject, shard) as holders:
            store, _ = holders.following()
            subject.log_of(shard).recorder()
            subject.put(store, "a", 1)

            commit = store.start_commit(shard, reading(10), ())

            assert isinstance(failure_of(lambda: wait(commit)), ServiceError)
            assert subject.committed(store) == {}

            def go_on() -> None:
                subject.put(store, "b", 2)
                wait(store.start_commit(shard, reading(20), ()))

            assert isinstance(failure_of(go_on), ServiceError)

    def test_life_of_a_fenced_recorder_commits_nothing(self, subject: RecordedSubject) -> None:
        """A process that was stopped between its hand-over and its restore learns by its first commit at the latest."""
        shard = FixedShard()
        with Holders(subject, shard) as holders:
            store = holders.open()
            newer = subject.log_of(shard).recorder()
            recorded = len(subject.log_of(shard).changes)

            def live() -> None:
                store.restore_checkpoint(shard)
                subject.put(store, "a", 1)
                wait(store.start_commit(shard, reading(10), ()))

            assert isinstance(failure_of(live), ServiceError)
            assert not newer.fenced
            assert len(subject.log_of(shard).changes) == recorded

    def test_destroy_aborts_a_commit_that_waits_for_the_log(self, subject: RecordedSubject) -> None:
        """A broker that never answers must not keep a shard from stopping, at this end either."""
        shard = FixedShard()
        with Holders(subject, shard) as holders:
            store, _ = holders.following()
            subject.log_of(shard).hold()
            subject.put(store, "a", 1)
            commit = store.start_commit(shard, reading(10), ())
            assert isinstance(failure_of(lambda: commit.result(0.1)), TimeoutError)

            store.destroy()

            assert isinstance(failure_of(lambda: wait(commit)), StoreError)
            assert subject.leftovers(shard) == []
            subject.log_of(shard).release()

    def _commit_often(self, subject: RecordedSubject, shard: FixedShard) -> None:
        """Run several lives of several commits; at the n-th, every key has the value n and the checkpoint reads n.

        Where the store keeps segments, each checkpoint rests on some.
        """
        step = 0
        for _ in range(self.lives):
            with Holders(subject, shard) as holders:
                store, checkpoint = holders.following()
                assert offset_of(checkpoint) == step
                for number in range(self.commits):
                    step += 1
                    for key in ("a", f"b{step % 5}", "c"):
                        subject.put(store, key, step)
                    checkpoint = reading(step)
                    if keeps_segments(store):
                        checkpoint = resting(step, carries=number == 0)
                    wait(store.start_commit(shard, checkpoint, ()))

    def _durable_steps(self, log: RecordedLog) -> list[int]:
        """Return which commit each barrier made durable; a life may begin with one more, its restore's."""
        barriers, rest = divmod(len(log.barriers), self.lives)
        extra = barriers - self.commits
        assert (rest, extra) in ((0, 0), (0, 1)), (
            "expected one barrier for each commit, and at most one for each restore"
        )
        lives = range(0, self.lives * self.commits, self.commits)
        return [before + max(0, index + 1 - extra) for before in lives for index in range(barriers)]

    def _open_cut(self, subject: RecordedSubject, shard: FixedShard, files: MirroredFiles) -> int:
        """Open what a log that is cut off there replays to, and return its step.

        The life that begins there commits once more into the same log, and so does the next.
        """
        log = RecordedLog(files=files.copy())
        step: int | None = None
        for life in range(2):
            store = subject.open_log(shard, log)
            try:
                checkpoint = store.restore_checkpoint(shard)
                restored = offset_of(checkpoint)
                if step is None:
                    step = restored
                    if step and keeps_segments(store):
                        assert checkpoint == whole(resting(step, carries=False))
                assert restored == step + life
                self._check(subject.committed(store), step, after=life)
                subject.put(store, "after", life + 1)
                wait(store.start_commit(shard, reading(step + life + 1), ()))
            finally:
                store.destroy()
        assert step is not None
        return step

    def _check(self, state: dict[str, int], step: int, *, after: int) -> None:
        expected = {"a": step, "c": step} if step else {}
        expected |= {f"b{past % 5}": past for past in range(max(1, step - 4), step + 1)}
        expected |= {"after": after} if after else {}
        assert state == expected, f"state of the wrong commit: expected {expected}, got {state}"
