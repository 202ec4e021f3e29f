"""Conformance suite for record stores: one writer wins, the loser gets the winner's record, old fences stay void.

    class TestMyRecordStore(RecordStoreConformance):
        @pytest.fixture
        async def subject(self): yield MySubject()

Nothing here imports pytest; the tests are coroutines. For readable failures in a project of yours, call
`pytest.register_assert_rewrite("broadsheet.testing.leases")` in its conftest before the import.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any, Protocol

from broadsheet.leases import rules
from broadsheet.leases.compare_and_swap import ATTEMPTS_MAX, compare_and_swap, verdict_of_anybody
from broadsheet.leases.errors import InvalidStateError, LeasingError, UnreadableLeaseError
from broadsheet.leases.position import Position
from broadsheet.leases.record import HashRange, LeaseRecord, RecordConflictError, Versioned
from broadsheet.leases.store import RecordStore

RACERS = 8
"""Writers that race for one record; an even number."""
MANY_RECORDS = 1_050
"""More than any backend reads at a time."""


# What the suite needs of a backend, in addition to the `RecordStore` port.


class RecordStoreSubject(Protocol):
    """A store that only one test uses, as two processes see it; it is not created yet."""

    @property
    def store(self) -> RecordStore:
        """The store."""
        ...

    @property
    def rival(self) -> RecordStore:
        """The same, as another process has it."""
        ...

    async def spoil(self, key: str) -> None:
        """Write something unreadable under a record's key."""
        ...


def full_record(key: str = "shard-1", *, owner: str | None = None) -> LeaseRecord:
    """Return a record in which no field has its default, except those of ownership."""
    return LeaseRecord(
        key=key,
        epoch=3,
        counter=17,
        owner=owner,
        checkpoint=Position(
            "49587497311274533994574834252742144236107130636007899138", 7, offset="@1"
        ),
        pending=Position("SHARD_END"),
        pending_state=b"\x00\xff state",
        owner_switches=2,
        write_id="w",
        parents=frozenset({"parent:1", "parent 2"}),
        children=frozenset({"child#1", "child/2"}),
        hash_range=HashRange(first="0", last="340282366920938463463374607431768211455"),
        attrs={"throughputKBps": "12.5", "streamName": '"clicks \u2713"'},
    )


async def failure_of(call: Coroutine[Any, Any, object]) -> LeasingError:
    """Return what a call raises."""
    try:
        returned = await call
    except LeasingError as error:
        return error
    raise AssertionError(f"expected a LeasingError, it returned {returned!r}")


class RecordStoreConformance:
    """The suite for any backend. A subclass defines a pytest fixture `subject`, a `RecordStoreSubject`."""

    many_records = MANY_RECORDS
    """Records of the test that reads over pages; fewer where the backend's pages are made smaller."""
    racers = RACERS
    """Writers that race for one record, an even number; fewer where each writes slowly."""

    async def test_missing_store_is_told_from_an_empty_one(
        self, subject: RecordStoreSubject
    ) -> None:
        """A wrong root or table name must not look like an application without leases: it would start over."""
        store = subject.store

        assert not await store.exists()
        assert isinstance(await failure_of(store.get("a")), InvalidStateError)
        assert isinstance(await failure_of(_scanned(store)), InvalidStateError)
        assert isinstance(await failure_of(store.create(LeaseRecord(key="a"))), InvalidStateError)
        assert isinstance(await failure_of(store.delete("a")), InvalidStateError)
        assert not await store.exists()

    async def test_store_is_created_once_and_deleted_whole(
        self, subject: RecordStoreSubject
    ) -> None:
        """One of all workers that start together creates it; deleting removes the records too."""
        created = await asyncio.gather(
            *(process.create_store() for process in (subject.store, subject.rival) * 2)
        )
        assert sorted(created) == [False, False, False, True]
        assert await subject.rival.exists()
        await subject.store.create(LeaseRecord(key="a"))

        await subject.store.delete_store()
        await subject.store.delete_store()

        assert not await subject.rival.exists()
        assert await subject.store.create_store()
        assert await subject.store.get("a") is None

    async def test_record_is_read_as_it_was_written(self, subject: RecordStoreSubject) -> None:
        """Every field survives, with fields that we do not know; another process sees it at once."""
        await subject.store.create_store()
        record = full_record()

        created = await subject.store.create(record)

        assert created.record == record
        assert created.fence == 0
        assert await subject.rival.get(record.key) == created
        assert await _scanned(subject.rival) == [created]
        assert await subject.store.get("shard") is None

    async def test_keys_that_begin_alike_are_apart(self, subject: RecordStoreSubject) -> None:
        """Keys hold stream names, colons, slashes, anything; deleting one record must not end another's lease."""
        store = subject.store
        await store.create_store()
        keys = ["a", "a#b", "a#0000000000000001", "a/b", "a%23b", "stream:shard ✓", "A"]
        for key in keys:
            await _taken(store, key, "w1")

        assert await store.delete("a")

        found = await _scanned(store)
        assert [each.record.key for each in found] == sorted(set(keys) - {"a"})
        assert all(each.fence for each in found)

    async def test_create_of_existing_record_returns_the_winner(
        self, subject: RecordStoreSubject
    ) -> None:
        """The second creator gets the existing record, and changes nothing."""
        await subject.store.create_store()
        first = await subject.store.create(full_record())

        error = await failure_of(subject.rival.create(LeaseRecord(key=first.record.key)))

        assert isinstance(error, RecordConflictError)
        assert error.current == first
        assert await subject.store.get(first.record.key) == first

    async def test_replace_of_changed_record_is_refused(self, subject: RecordStoreSubject) -> None:
        """The one rule that everything rests on; the loser learns what is there."""
        await subject.store.create_store()
        seen = await subject.store.create(full_record())
        first = await subject.store.replace(rules.commit(seen.record, Position("SHARD_END")), seen)

        error = await failure_of(subject.rival.replace(rules.renew(seen.record), seen))

        assert isinstance(error, RecordConflictError)
        assert error.current == first
        assert await subject.rival.get(seen.record.key) == first
        again = await subject.rival.replace(rules.renew(first.record), first)
        assert await subject.store.get(seen.record.key) == again

    async def test_replace_of_deleted_record_does_not_bring_it_back(
        self, subject: RecordStoreSubject
    ) -> None:
        """A cleaned-up shard stays deleted, and a later record of the same name is not mistaken for it."""
        store = subject.store
        await store.create_store()
        seen = await store.create(LeaseRecord(key="a"))
        await subject.rival.delete("a")

        gone = await failure_of(store.replace(rules.renew(seen.record), seen))
        assert isinstance(gone, RecordConflictError)
        assert gone.current is None
        assert await store.get("a") is None

        created = await subject.rival.create(LeaseRecord(key="a"))
        error = await failure_of(store.replace(rules.renew(seen.record), seen))
        assert isinstance(error, RecordConflictError)
        assert await store.get("a") == created

    async def test_delete_may_be_conditional(self, subject: RecordStoreSubject) -> None:
        """Cleaning up removes only what it judged; a user's command removes any record, and may be repeated."""
        store = subject.store
        await store.create_store()
        stale = await store.create(LeaseRecord(key="a"))
        fresh = await store.replace(rules.renew(stale.record), stale)

        error = await failure_of(store.delete("a", stale))

        assert isinstance(error, RecordConflictError)
        assert error.current == fresh
        assert await store.delete("a", fresh)
        assert not await store.delete("a", fresh)
        assert not await store.delete("a")
        await store.create(LeaseRecord(key="a"))
        assert await store.delete("a")

    async def test_scan_reads_over_pages_in_order(self, subject: RecordStoreSubject) -> None:
        """An application may have more shards than one answer of the store holds; an owner's are found among them."""
        store = subject.store
        await store.create_store()
        assert await _scanned(store) == []
        keys = [f"shard-{number:05d}" for number in range(self.many_records)]
        for start in range(0, len(keys), 50):
            await asyncio.gather(
                *(store.create(LeaseRecord(key=key)) for key in keys[start : start + 50])
            )
        await _taken(store, keys[-1], "w1", create=False)
        await _taken(store, keys[0], "w2", create=False)

        assert [each.record.key for each in await _scanned(store)] == keys
        assert [each.record.key for each in await _scanned(store, "w1")] == [keys[-1]]
        assert await _scanned(store, "w") == []

    async def test_unreadable_record_is_left_out_of_scans(
        self, subject: RecordStoreSubject
    ) -> None:
        """One bad record must not stop an application; reading it by key raises an error."""
        store = subject.store
        await store.create_store()
        for key in ("a", "b", "c"):
            await store.create(LeaseRecord(key=key))

        await subject.spoil("b")

        assert [each.record.key for each in await _scanned(store)] == ["a", "c"]
        left_out: list[str] = []
        async for _ in store.scan(on_unreadable=lambda error: left_out.append(error.key)):
            pass
        assert left_out == ["b"]
        for call in (store.get("b"), store.create(LeaseRecord(key="b"))):
            error = await failure_of(call)
            assert isinstance(error, UnreadableLeaseError)
            assert error.key == "b"
        assert await store.delete("b")

    async def test_of_racing_creators_one_wins(self, subject: RecordStoreSubject) -> None:
        """Two owners of one shard would both process it."""
        await subject.store.create_store()
        racers = [
            store.create(LeaseRecord(key="a", attrs={"racer": str(number)}))
            for number, store in enumerate((subject.store, subject.rival) * (self.racers // 2))
        ]

        results = await asyncio.gather(*racers, return_exceptions=True)

        winners = [result for result in results if isinstance(result, Versioned)]
        losers = [result for result in results if isinstance(result, RecordConflictError)]
        assert (len(winners), len(losers)) == (1, self.racers - 1)
        assert all(loser.current == winners[0] for loser in losers)

    async def test_of_racing_takers_one_wins(self, subject: RecordStoreSubject) -> None:
        """Of workers that all saw a lease free, one gets it; its epoch counts one acquisition."""
        await subject.store.create_store()
        seen = await subject.store.create(LeaseRecord(key="a"))
        await subject.store.join("w0")
        await subject.rival.join("w1")
        racers = [
            store.replace(rules.take(seen.record, f"w{number % 2}"), seen)
            for number, store in enumerate((subject.store, subject.rival) * (self.racers // 2))
        ]

        results = await asyncio.gather(*racers, return_exceptions=True)

        winners = [result for result in results if isinstance(result, Versioned)]
        assert len(winners) == 1
        assert winners[0].record.epoch == 1
        assert await subject.store.get("a") == winners[0]

    async def test_racing_changes_are_all_made(self, subject: RecordStoreSubject) -> None:
        """Read, change, swap and try again loses no update."""
        await subject.store.create_store()
        await subject.store.create(LeaseRecord(key="a"))

        async def add(store: RecordStore, child: str) -> None:
            for _ in range(self.racers):
                seen = await store.get("a")
                assert seen is not None
                try:
                    await compare_and_swap(
                        store,
                        seen,
                        lambda record: rules.note_children(record, children=frozenset({child})),
                        verdict_of_anybody,
                    )
                except LeasingError:  # The rivals won every attempt.
                    continue
                return
            raise AssertionError(f"{child} lost {self.racers * ATTEMPTS_MAX} races")

        stores = (subject.store, subject.rival) * (self.racers // 2)
        await asyncio.gather(*(add(store, str(n)) for n, store in enumerate(stores)))

        found = await subject.store.get("a")
        assert found is not None
        assert found.record.children == frozenset(map(str, range(self.racers)))

    async def test_each_acquisition_has_a_fence_of_its_own(
        self, subject: RecordStoreSubject
    ) -> None:
        """It lasts through the holder's writes, ends with a release, and never comes back; not even for its owner."""
        store = subject.store
        await store.create_store()
        first = await _taken(store, "a", "w1")
        renewed = await store.replace(rules.renew(first.record), first)
        again = await store.replace(rules.take(renewed.record, "w1"), renewed)
        released = await store.replace(rules.evict(again.record), again)
        last = await store.replace(rules.take(released.record, "w1"), released)

        assert first.fence == renewed.fence != 0
        assert released.fence == 0
        assert len({first.fence, again.fence, last.fence, 0}) == 4
        assert await subject.rival.get("a") == last

    async def test_old_fence_opens_nothing(self, subject: RecordStoreSubject) -> None:
        """A worker that lost its lease may read the record again and still cannot write under its old fence."""
        store = subject.store
        await store.create_store()
        old = await _taken(store, "a", "w1")
        await subject.rival.join("w2")
        new = await subject.rival.replace(rules.take(old.record, "w2"), old)

        zombie = replace(new, fence=old.fence)
        error = await failure_of(store.replace(rules.commit(new.record, Position("9")), zombie))

        assert isinstance(error, RecordConflictError)
        assert error.current == new
        assert await store.get("a") == new

    async def test_fence_stays_with_the_holder_in_a_hand_off(
        self, subject: RecordStoreSubject
    ) -> None:
        """The holder finishes its work and passes the lease on itself; from then on it can write nothing."""
        store = subject.store
        await store.create_store()
        await subject.rival.join("w2")
        held = await _taken(store, "a", "w1")
        leaving = await subject.rival.replace(rules.begin_hand_off(held.record, "w2"), held)
        assert leaving.fence == held.fence

        done = await store.replace(rules.commit(leaving.record, Position("5")), leaving)
        passed = await store.replace(rules.take(done.record, "w2"), done)

        assert passed.record.holder == "w2"
        assert passed.fence not in (0, held.fence)
        assert isinstance(
            await failure_of(store.replace(rules.renew(done.record), done)), RecordConflictError
        )
        renewed = await subject.rival.replace(rules.renew(passed.record), passed)
        assert renewed.fence == passed.fence


async def _scanned(store: RecordStore, owner: str | None = None) -> list[Versioned]:
    return [found async for found in store.scan(owner)]


async def _taken(store: RecordStore, key: str, worker: str, *, create: bool = True) -> Versioned:
    await store.join(worker)
    seen = await store.create(LeaseRecord(key=key)) if create else await store.get(key)
    assert seen is not None
    return await store.replace(rules.take(seen.record, worker), seen)
