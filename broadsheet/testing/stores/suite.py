"""The conformance suite of every store: state and checkpoint commit together, after their futures, under the newest
holder.

    class TestMyStore(StoreConformance):
        @pytest.fixture
        def subject(self, tmp_path): return MySubject(tmp_path)

Nothing here imports pytest; the names are what pytest collects. For readable failures in a project of yours, call
`pytest.register_assert_rewrite("broadsheet.testing.stores")` in its conftest before the import.
"""

from __future__ import annotations

from concurrent.futures import Future

from broadsheet.consumer.errors import StoreClosedError, StoreError
from broadsheet.runtime.errors import ServiceError
from broadsheet.runtime.op_future import failed
from broadsheet.testing.stores.subject import (
    FixedShard,
    Holders,
    StoreSubject,
    failure_of,
    keeps_segments,
    reading,
    resting,
    wait,
    whole,
)
from broadsheet.wire.shard_pb2 import Checkpoint


class StoreConformance:
    """The suite for any store. A subclass defines a pytest fixture `subject`, a `StoreSubject`."""

    def test_restore_of_a_new_shard_returns_an_empty_checkpoint(
        self, subject: StoreSubject
    ) -> None:
        """The first primary ever begins at the beginning, with no state."""
        with Holders(subject, FixedShard()) as holders:
            store, checkpoint = holders.following()

            assert checkpoint == Checkpoint()
            assert subject.committed(store) == {}

    def test_commit_then_restore_returns_state_and_checkpoint(self, subject: StoreSubject) -> None:
        """Both survive in another holder, whole: 64-bit clocks, offsets -1 and arbitrary bytes too."""
        shard = FixedShard()
        with Holders(subject, shard) as holders:
            first, _ = holders.following()
            subject.put(first, "a", 1)

            wait(first.start_commit(shard, reading(10), ()))

            second, checkpoint = holders.following()
            assert checkpoint == reading(10)
            assert subject.committed(second) == {"a": 1}

    def test_state_before_commit_is_not_visible(self, subject: StoreSubject) -> None:
        """Readers see the last commit, never the running transaction."""
        with Holders(subject, FixedShard()) as holders:
            store, _ = holders.following()

            subject.put(store, "a", 1)

            assert subject.committed(store) == {}

    def test_commit_waits_for_every_future(self, subject: StoreSubject) -> None:
        """Nothing is durable before the appends are: a reader must not see state whose outputs may yet be lost."""
        shard = FixedShard()
        with Holders(subject, shard) as holders:
            store, _ = holders.following()
            subject.put(store, "a", 1)
            appends: list[Future[object]] = [Future(), Future()]

            commit = store.start_commit(shard, reading(10), appends)
            appends[1].set_result(None)

            assert isinstance(failure_of(lambda: commit.result(0.1)), TimeoutError)
            assert subject.committed(store) == {}
            appends[0].set_result(None)
            wait(commit)
            assert subject.committed(store) == {"a": 1}

    def test_commit_whose_wait_fails_is_not_made(self, subject: StoreSubject) -> None:
        """A lost output must not be remembered as published; the store is free for the next holder at once."""
        shard = FixedShard()
        with Holders(subject, shard) as holders:
            store, _ = holders.following()
            subject.put(store, "a", 1)

            never: Future[object] = Future()
            broken = failed(OSError("broker is gone"))
            commit = store.start_commit(shard, reading(10), (never, broken))

            assert "broker is gone" in str(failure_of(lambda: wait(commit)))
            following, checkpoint = holders.following()
            assert checkpoint == Checkpoint()
            assert subject.committed(following) == {}

    def test_state_changed_after_start_commit_belongs_to_the_next(
        self, subject: StoreSubject
    ) -> None:
        """Transactions overlap: what N+1 changes while N commits must not slip into N."""
        shard = FixedShard()
        with Holders(subject, shard) as holders:
            store, _ = holders.following()
            subject.put(store, "a", 1)
            commit = store.start_commit(shard, reading(10), ())
            subject.put(store, "a", 2)
            wait(commit)

            assert subject.committed(store) == {"a": 1}
            wait(store.start_commit(shard, reading(20), ()))
            assert subject.committed(store) == {"a": 2}
            following, checkpoint = holders.following()
            assert checkpoint == reading(20)
            assert subject.committed(following) == {"a": 2}

    def test_commit_without_state_keeps_the_checkpoint(self, subject: StoreSubject) -> None:
        """A transaction may change nothing but the offsets."""
        shard = FixedShard()
        with Holders(subject, shard) as holders:
            store, _ = holders.following()

            wait(store.start_commit(shard, reading(10), ()))

            assert holders.following()[1] == reading(10)

    def test_older_holder_cannot_commit_after_a_newer_restore(self, subject: StoreSubject) -> None:
        """A primary that was replaced while it worked leaves nothing behind: it is fenced, or keeps others out."""
        shard = FixedShard()
        with Holders(subject, shard) as holders:
            older, _ = holders.following()
            wait(older.start_commit(shard, reading(10), ()))
            newer = holders.open()
            if subject.excludes:
                error = failure_of(lambda: newer.restore_checkpoint(shard))
                assert isinstance(error, StoreError)
                return
            newer.restore_checkpoint(shard)

            def commit() -> None:
                subject.put(older, "a", 666)
                wait(older.start_commit(shard, reading(666), ()))

            assert isinstance(failure_of(commit), ServiceError)
            subject.put(newer, "a", 1)
            wait(newer.start_commit(shard, reading(20), ()))
            assert subject.committed(newer) == {"a": 1}
            assert holders.following()[1] == reading(20)

    def test_older_holder_caught_in_mid_transaction_loses_it(self, subject: StoreSubject) -> None:
        """The hard case: the older transaction began before the newer restore, and commits after it."""
        if subject.excludes:
            return  # There is no newer restore, as the test above shows.
        shard = FixedShard()
        with Holders(subject, shard) as holders:
            older, _ = holders.following()
            appends: Future[object] = Future()
            if not subject.open_txn_blocks:
                subject.put(older, "a", 666)
            commit = older.start_commit(shard, reading(666), (appends,))

            newer, checkpoint = holders.following()
            assert checkpoint == Checkpoint()
            appends.set_result(None)

            assert isinstance(failure_of(lambda: wait(commit)), ServiceError)
            subject.put(newer, "a", 1)
            wait(newer.start_commit(shard, reading(20), ()))
            assert subject.committed(newer) == {"a": 1}
            assert holders.following()[1] == reading(20)

    def test_holder_that_ends_in_mid_transaction_changed_nothing(
        self, subject: StoreSubject
    ) -> None:
        """Uncommitted changes are gone with their holder."""
        shard = FixedShard()
        with Holders(subject, shard) as holders:
            store, _ = holders.following()
            subject.put(store, "a", 1)
            wait(store.start_commit(shard, reading(10), ()))
            subject.put(store, "a", 2)
            store.destroy()

            survivor, checkpoint = holders.following()

            assert checkpoint == reading(10)
            assert subject.committed(survivor) == {"a": 1}

    def test_destroy_aborts_a_commit_that_still_waits(self, subject: StoreSubject) -> None:
        """A broker that never answers must not keep a shard from stopping; and the commit fails for good."""
        shard = FixedShard()
        with Holders(subject, shard) as holders:
            store, _ = holders.following()
            subject.put(store, "a", 1)
            never: Future[object] = Future()
            commit = store.start_commit(shard, reading(10), (never,))

            store.destroy()
            store.destroy()

            assert isinstance(failure_of(lambda: wait(commit)), StoreClosedError)
            never.set_result(None)
            assert holders.following()[1] == Checkpoint()

    def test_destroyed_store_refuses_to_commit(self, subject: StoreSubject) -> None:
        """A callback that outlives its shard must not bring the state back to life."""
        shard = FixedShard()
        with Holders(subject, shard) as holders:
            store, _ = holders.following()
            store.destroy()

            error = failure_of(lambda: wait(store.start_commit(shard, reading(10), ())))

            assert isinstance(error, StoreError)
            assert holders.following()[1] == Checkpoint()

    def test_destroy_before_restore_is_clean(self, subject: StoreSubject) -> None:
        """A shard may stop before its store was ever opened."""
        shard = FixedShard()
        store = subject.open(shard)

        store.destroy()

        assert subject.leftovers(shard) == []

    def test_destroy_leaves_nothing(self, subject: StoreSubject) -> None:
        """Neither files nor connections of a holder outlive it, whatever it was doing; the committed state does."""
        shard = FixedShard()
        with Holders(subject, shard) as holders:
            store, _ = holders.following()
            subject.put(store, "a", 1)
            wait(store.start_commit(shard, reading(10), ()))
            subject.put(store, "b", 2)
            subject.committed(store)

            store.destroy()

            assert subject.leftovers(shard) == []
            following, checkpoint = holders.following()
            assert checkpoint == reading(10)
            assert subject.committed(following) == {"a": 1}

    def test_shards_do_not_see_each_other(self, subject: StoreSubject) -> None:
        """Many shards share one database or directory; fences and checkpoints are each one's own."""
        shard = FixedShard()
        other = FixedShard(id="shard-0002", root=shard.root)
        with Holders(subject, shard) as holders, Holders(subject, other) as others:
            first, _ = holders.following()
            second, _ = others.following()
            subject.put(first, "a", 1)
            wait(first.start_commit(shard, reading(10), ()))
            subject.put(second, "b", 2)
            wait(second.start_commit(other, reading(20), ()))

            assert holders.following()[1] == reading(10)
            following, checkpoint = others.following()
            assert checkpoint == reading(20)
            assert subject.committed(following) == {"b": 2}

    def test_commit_cannot_be_cancelled(self, subject: StoreSubject) -> None:
        """The application gets the commit's future; giving up on it must not undo the commit."""
        shard = FixedShard()
        with Holders(subject, shard) as holders:
            store, _ = holders.following()
            subject.put(store, "a", 1)
            append: Future[object] = Future()

            commit = store.start_commit(shard, reading(10), (append,))

            assert not commit.cancel()
            append.set_result(None)
            wait(commit)
            assert subject.committed(store) == {"a": 1}

    def test_same_holder_restores_again_and_drops_what_it_had_not_committed(
        self, subject: StoreSubject
    ) -> None:
        """A shard whose input ended, or whose sources changed, restores in place; a query may have left state."""
        shard = FixedShard()
        with Holders(subject, shard) as holders:
            store, _ = holders.following()
            subject.put(store, "a", 1)
            wait(store.start_commit(shard, reading(10), ()))
            subject.put(store, "a", 2)

            assert store.restore_checkpoint(shard) == reading(10)

            subject.put(store, "b", 3)
            wait(store.start_commit(shard, reading(20), ()))
            assert subject.committed(store) == {"a": 1, "b": 3}

    def test_checkpoint_that_rests_on_segments_is_restored_whole(
        self, subject: StoreSubject
    ) -> None:
        """A store that keeps segments gets each once, however often checkpoints name it; and drops none of those.

        The same holder restores in place, too, and goes on.
        """
        shard = FixedShard()
        with Holders(subject, shard) as holders:
            for life in range(2):
                store, checkpoint = holders.following()
                if not keeps_segments(store):
                    return
                if life:
                    assert checkpoint == whole(resting(10, carries=False))
                for step in range(1, 11):
                    wait(store.start_commit(shard, resting(step, carries=step == 1), ()))
                    if step in (1, 3, 5):
                        checkpoint = store.restore_checkpoint(shard)
                        assert checkpoint == whole(resting(step, carries=False))

    def test_checkpoint_without_segments_is_restored_as_it_is(self, subject: StoreSubject) -> None:
        """A member that knows of no segments commits in between: those of before say nothing about its checkpoint."""
        shard = FixedShard()
        with Holders(subject, shard) as holders:
            store, _ = holders.following()
            if not keeps_segments(store):
                return
            wait(store.start_commit(shard, resting(1, carries=True), ()))
            wait(store.start_commit(shard, reading(2), ()))
            store, checkpoint = holders.following()
            assert checkpoint == reading(2)
            wait(store.start_commit(shard, resting(3, carries=True), ()))
            assert holders.following()[1] == whole(resting(3, carries=False))

    def test_many_commits_each_build_on_the_one_before(self, subject: StoreSubject) -> None:
        """Whatever a store does only now and then (copying a log back, compacting) changes nothing."""
        shard = FixedShard()
        expected: dict[str, int] = {}
        with Holders(subject, shard) as holders:
            store, _ = holders.following()
            for step in range(1, 61):
                for key in (f"k{step % 7}", f"n{step}"):
                    subject.put(store, key, step)
                    expected[key] = step
                wait(store.start_commit(shard, reading(step), ()))
                assert subject.committed(store) == expected

            following, checkpoint = holders.following()
            assert checkpoint == reading(60)
            assert subject.committed(following) == expected
