"""What the rest of the program relies on in etcd, of every implementation of the port `allocator.etcd.api.Etcd`.

An implementation joins by adding itself to `IMPLEMENTATIONS`; the suite asks nothing beyond the port but a way to
compact.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, aclosing, asynccontextmanager
from dataclasses import dataclass

import pytest

from allocator.core.ops import (
    Compare,
    CompareTarget,
    Delete,
    Get,
    LeaseId,
    Operation,
    Put,
    prefix_range_end,
)
from allocator.errors import (
    EtcdLimitError,
    EtcdRequestError,
    LeaseNotFoundError,
    RevisionCompactedError,
)
from allocator.etcd.api import Etcd, KeyDeleted, KeyPut, WatchBatch, WatchEvent, mod_revision_of
from allocator.etcd.client import EtcdClient, EtcdConfig
from allocator.simulation.etcd import FakeEtcd
from consumer.embedded.etcd import EmbeddedEtcdProcess
from tests.support.eventually import eventually


@dataclass(frozen=True, slots=True, kw_only=True)
class EtcdUnderTest:
    """An implementation, and what the suite needs beside its port."""

    etcd: Etcd
    compact: Callable[[int], Awaitable[None]]


Opened = AbstractAsyncContextManager[EtcdUnderTest]


@pytest.fixture(scope="module")
def contract_server() -> Iterator[EmbeddedEtcdProcess]:
    """A server of this suite's own, because compaction concerns everybody."""
    with EmbeddedEtcdProcess() as server:
        yield server


@asynccontextmanager
async def _real_etcd(request: pytest.FixtureRequest) -> AsyncIterator[EtcdUnderTest]:
    """The client over a real server, emptied."""
    server: EmbeddedEtcdProcess = request.getfixturevalue("contract_server")
    async with EtcdClient(EtcdConfig(endpoints=(server.endpoint,))) as client:
        await client.delete(b"\x00", b"\x00")
        yield EtcdUnderTest(etcd=client, compact=client.compact)


@asynccontextmanager
async def _fake_etcd(request: pytest.FixtureRequest) -> AsyncIterator[EtcdUnderTest]:
    """The simulator's, in memory, on real time here."""
    etcd = FakeEtcd()

    async def compact(revision: int) -> None:
        etcd.compact(revision)

    yield EtcdUnderTest(etcd=etcd, compact=compact)
    etcd.close()


IMPLEMENTATIONS = [
    pytest.param(_real_etcd, id="real", marks=pytest.mark.etcd),
    pytest.param(_fake_etcd, id="fake"),
]


@pytest.fixture(params=IMPLEMENTATIONS)
async def under_test(request: pytest.FixtureRequest) -> AsyncIterator[EtcdUnderTest]:
    """Each implementation in turn."""
    opened: Opened = request.param(request)
    async with opened as implementation:
        yield implementation


@pytest.fixture
def etcd(under_test: EtcdUnderTest) -> Etcd:
    """The port alone."""
    return under_test.etcd


async def _put(etcd: Etcd, key: bytes, value: bytes = b"", *, lease: int = 0) -> int:
    result = await etcd.txn((), (Put(key, value, lease),))
    assert result.succeeded
    return result.header.revision


async def _events(etcd: Etcd, prefix: bytes, start_revision: int, count: int) -> list[WatchEvent]:
    events: list[WatchEvent] = []
    async with (
        asyncio.timeout(10),
        aclosing(etcd.watch(prefix, start_revision=start_revision)) as batches,
    ):
        async for batch in batches:
            events.extend(batch.events)
            if len(events) >= count:
                break
    return events


class TestRange:
    """Reading keys."""

    async def test_range_of_absent_key_is_empty(self, etcd: Etcd) -> None:
        """Absence is an empty result with a header: callers pin later reads to its revision."""
        result = await etcd.get_range(b"/absent")

        assert result.kvs == ()
        assert result.header.revision >= 1
        assert result.header.cluster_id != 0

    async def test_range_returns_keys_in_byte_order_with_their_history(self, etcd: Etcd) -> None:
        """The mirror and its joins rely on the order; transactions rely on the revisions."""
        second = await _put(etcd, b"/k/b", b"2")
        first = await _put(etcd, b"/k/a", b"1")
        third = await _put(etcd, b"/k/b", b"3")
        await _put(etcd, b"/ka", b"outside")

        result = await etcd.get_range(b"/k/", prefix_range_end(b"/k/"))

        assert [(kv.key, kv.value) for kv in result.kvs] == [(b"/k/a", b"1"), (b"/k/b", b"3")]
        a, b = result.kvs
        assert (a.create_revision, a.mod_revision, a.version, a.lease) == (first, first, 1, 0)
        assert (b.create_revision, b.mod_revision, b.version, b.lease) == (second, third, 2, 0)

    async def test_range_of_old_revision_shows_that_moment(self, etcd: Etcd) -> None:
        """A load at the announcement's revision must not see what came later, and must say which it is."""
        revision = await _put(etcd, b"/k", b"old")
        await _put(etcd, b"/k", b"new")

        result = await etcd.get_range(b"/k", revision=revision)

        assert [kv.value for kv in result.kvs] == [b"old"]
        assert result.header.revision == revision

    async def test_range_over_many_pages_is_of_one_revision(self, etcd: Etcd) -> None:
        """A read of several pages under constant writing is a snapshot: every key carries the same value."""
        keys = [b"/page/%05d" % number for number in range(2_500)]
        await self._write_all(etcd, keys, b"0")
        stop = asyncio.Event()

        async def rewrite() -> None:
            generation = 0
            while not stop.is_set():
                generation += 1
                await etcd.txn(
                    (), (Put(keys[0], b"%d" % generation), Put(keys[-1], b"%d" % generation))
                )

        async with asyncio.TaskGroup() as group:
            group.create_task(rewrite())
            results = [
                await etcd.get_range(b"/page/", prefix_range_end(b"/page/")) for _ in range(5)
            ]
            stop.set()

        for result in results:
            assert [kv.key for kv in result.kvs] == keys
            assert result.kvs[0].value == result.kvs[-1].value
            assert max(kv.mod_revision for kv in result.kvs) <= result.header.revision

    async def test_range_of_compacted_revision_is_refused(self, under_test: EtcdUnderTest) -> None:
        """The caller must learn that history is gone, not get another moment's keys."""
        old = await _put(under_test.etcd, b"/k", b"1")
        new = await _put(under_test.etcd, b"/k", b"2")
        await under_test.compact(new)

        with pytest.raises(RevisionCompactedError) as refusal:
            await under_test.etcd.get_range(b"/k", revision=old)

        assert refusal.value.revision == old

    async def test_range_of_the_compacted_revision_itself_is_answered(
        self, under_test: EtcdUnderTest
    ) -> None:
        """Compaction forgets what came before a revision, not the revision: keys written earlier are still in it."""
        await _put(under_test.etcd, b"/k", b"1")
        pinned = await _put(under_test.etcd, b"/l", b"1")
        await _put(under_test.etcd, b"/k", b"2")
        await under_test.compact(pinned)

        result = await under_test.etcd.get_range(b"/k", b"/z", revision=pinned)

        assert [(kv.key, kv.value) for kv in result.kvs] == [(b"/k", b"1"), (b"/l", b"1")]

    async def test_range_of_future_revision_is_refused(self, etcd: Etcd) -> None:
        """A revision that has not happened yet is a caller's mistake, not something to wait for."""
        newest = await _put(etcd, b"/k")

        with pytest.raises(EtcdRequestError, match="future revision"):
            await etcd.get_range(b"/k", revision=newest + 1)

    async def test_range_of_key_deleted_and_created_anew_starts_its_history_anew(
        self, etcd: Etcd
    ) -> None:
        """A member that comes back is a new one: comparisons with the old one's revisions fail."""
        await _put(etcd, b"/k")
        await etcd.txn((), (Delete(b"/k"),))
        created = await _put(etcd, b"/k")

        (kv,) = (await etcd.get_range(b"/k")).kvs

        assert (kv.create_revision, kv.version) == (created, 1)

    async def test_range_without_end_reads_to_the_last_key(self, etcd: Etcd) -> None:
        """A single NUL byte means that there is no end."""
        await etcd.txn((), (Put(b"/a", b""), Put(b"/b", b""), Put(b"\xff\xff", b"")))

        result = await etcd.get_range(b"/b", b"\x00")

        assert [kv.key for kv in result.kvs] == [b"/b", b"\xff\xff"]

    @staticmethod
    async def _write_all(etcd: Etcd, keys: list[bytes], value: bytes) -> None:
        for start in range(0, len(keys), 128):
            await etcd.txn((), tuple(Put(key, value) for key in keys[start : start + 128]))


class TestNewestRevision:
    """How far a mirror must have come."""

    async def test_newest_revision_is_of_the_last_write_that_is_left(self, etcd: Etcd) -> None:
        """It grows with every write below the prefix, whichever key it was to, and with no other."""
        await _put(etcd, b"/n/b")
        newest = await _put(etcd, b"/n/a")
        await _put(etcd, b"/na")
        await _put(etcd, b"/other")

        assert await etcd.newest_revision(b"/n/") == newest

        rewritten = await _put(etcd, b"/n/b", b"again")
        assert await etcd.newest_revision(b"/n/") == rewritten

        await etcd.txn((), (Delete(b"/n/b"),))
        assert await etcd.newest_revision(b"/n/") == newest

    async def test_newest_revision_without_keys_is_zero(self, etcd: Etcd) -> None:
        """Nothing is there that could have been missed."""
        assert await etcd.newest_revision(b"/nothing/") == 0


class TestTxn:
    """Transactions."""

    async def test_txn_with_holding_comparisons_writes_all_at_one_revision(
        self, etcd: Etcd
    ) -> None:
        """Every comparison that the allocator uses, at once; all writes share the header's revision."""
        lease = await etcd.lease_grant(60)
        created = await _put(etcd, b"/a", b"v", lease=lease)
        modified = await _put(etcd, b"/a", b"w", lease=lease)

        result = await etcd.txn(
            (
                Compare.mod_revision(b"/a", modified),
                Compare.create_revision(b"/a", created),
                Compare(b"/a", CompareTarget.VERSION, 2),
                Compare(b"/a", CompareTarget.VALUE, b"w"),
                Compare(b"/a", CompareTarget.LEASE, lease),
                Compare.none_between(b"/", b"/a"),
                Compare.none_between(b"/a\x00", b"/b"),
                Compare.absent(b"/b"),
            ),
            (Put(b"/b", b"1"), Put(b"/c", b"2"), Get(b"/a"), Get(b"/b", b"/d")),
        )

        assert result.succeeded
        assert [[kv.key for kv in kvs] for kvs in result.gets] == [[b"/a"], [b"/b", b"/c"]]
        read = await etcd.get_range(b"/b", b"/d")
        assert {kv.mod_revision for kv in read.kvs} == {result.header.revision}

    @pytest.mark.parametrize(
        "compare",
        [
            Compare.mod_revision(b"/a", 1),
            Compare.create_revision(b"/a", 1),
            Compare(b"/a", CompareTarget.VERSION, 7),
            Compare(b"/a", CompareTarget.VALUE, b"other"),
            Compare(b"/a", CompareTarget.LEASE, 7),
            Compare.absent(b"/a"),
            Compare.none_between(b"/", b"/b"),
            Compare(b"/absent", CompareTarget.VALUE, b""),
        ],
        ids=lambda compare: f"{compare.key.decode()}-{compare.target.value}",
    )
    async def test_txn_with_failing_comparison_performs_the_else_branch(
        self, etcd: Etcd, compare: Compare
    ) -> None:
        """One comparison that does not hold: nothing of `success` happens; an absent key has no value at all."""
        await _put(etcd, b"/a", b"v")

        result = await etcd.txn((compare,), (Put(b"/a", b"never"),), (Get(b"/a"),))

        assert not result.succeeded
        assert [kv.value for kv in result.gets[0]] == [b"v"]

    async def test_txn_keeps_lease_on_request(self, etcd: Etcd) -> None:
        """Updates of a member keep the lease that its key lives on; a put without it takes the key off its lease."""
        lease = await etcd.lease_grant(60)
        await _put(etcd, b"/kept", b"1", lease=lease)
        await _put(etcd, b"/taken", b"1", lease=lease)

        await etcd.txn((), (Put(b"/kept", b"2", ignore_lease=True), Put(b"/taken", b"2")))

        read = await etcd.get_range(b"/kept", b"/z")
        assert [(kv.value, kv.lease) for kv in read.kvs] == [(b"2", lease), (b"2", 0)]

    async def test_txn_deletes_ranges(self, etcd: Etcd) -> None:
        """A deletion of a range leaves its end."""
        await etcd.txn((), (Put(b"/a", b""), Put(b"/b", b""), Put(b"/c", b"")))

        await etcd.txn((), (Delete(b"/a", b"/c"),))

        read = await etcd.get_range(b"/", b"0")
        assert [kv.key for kv in read.kvs] == [b"/c"]

    async def test_txn_of_128_operations_is_performed_and_129_are_refused(self, etcd: Etcd) -> None:
        """The limit is etcd's default; the refusal names it, and nothing is applied."""
        puts = tuple(Put(b"/k/%03d" % number, b"") for number in range(129))

        assert (await etcd.txn((), puts[:128])).succeeded
        with pytest.raises(EtcdLimitError, match="operations") as refusal:
            await etcd.txn((), puts)

        assert "128" in refusal.value.limit
        assert (await etcd.get_range(puts[128].key)).kvs == ()

    async def test_txn_of_129_comparisons_is_refused(self, etcd: Etcd) -> None:
        """Comparisons are counted apart from operations, with the same limit."""
        compares = tuple(Compare.absent(b"/k/%03d" % number) for number in range(129))

        with pytest.raises(EtcdLimitError, match="comparisons"):
            await etcd.txn(compares, (Put(b"/k", b""),))

    async def test_txn_that_writes_a_key_twice_is_refused(self, etcd: Etcd) -> None:
        """Two writes of a key in one transaction are a caller's mistake with an error of its own."""
        with pytest.raises(EtcdLimitError, match="duplicate key"):
            await etcd.txn((), (Put(b"/k", b"1"), Put(b"/k", b"2")))

    @pytest.mark.parametrize(
        ("success", "failure"),
        [
            ((Put(b"/k", b""), Delete(b"/k")), ()),
            ((Delete(b"/a", b"/z"), Put(b"/k", b"")), ()),
            ((), (Put(b"/k", b"1"), Put(b"/k", b"2"))),
        ],
        ids=["put-and-delete", "put-in-deleted-range", "in-the-branch-not-taken"],
    )
    async def test_txn_that_puts_and_deletes_a_key_is_refused(
        self, etcd: Etcd, success: tuple[Operation, ...], failure: tuple[Operation, ...]
    ) -> None:
        """A deletion counts as a write of each key in its range, and either branch is looked at."""
        with pytest.raises(EtcdLimitError, match="duplicate key"):
            await etcd.txn((), success, failure)

    async def test_txn_that_changes_nothing_makes_no_revision(self, etcd: Etcd) -> None:
        """Nobody watching would ever see such a revision: waiting for it must be known to be futile."""
        newest = await _put(etcd, b"/k")

        deleted = await etcd.txn((), (Delete(b"/absent"), Delete(b"/x", b"/y")))
        refused = await etcd.txn((Compare.absent(b"/k"),), (Put(b"/k", b""),))

        assert deleted.succeeded
        assert (deleted.header.revision, refused.header.revision) == (newest, newest)

    async def test_txn_reads_what_it_wrote(self, etcd: Etcd) -> None:
        """Operations happen in their order: a read sees the writes before it, and not those after it."""
        result = await etcd.txn((), (Get(b"/k"), Put(b"/k", b"1"), Get(b"/k")))

        before, after = result.gets
        assert before == ()
        assert [(kv.value, kv.mod_revision) for kv in after] == [(b"1", result.header.revision)]

    async def test_txn_with_2_mebibyte_value_is_refused(self, etcd: Etcd) -> None:
        """A spec too large for etcd is refused with the limit's name rather than hang or break the connection."""
        with pytest.raises(EtcdLimitError, match="max-request-bytes"):
            await _put(etcd, b"/k", bytes(2 * 1024 * 1024))

        await _put(etcd, b"/k", b"small enough")

    async def test_txn_on_a_lease_that_ended_is_refused(self, etcd: Etcd) -> None:
        """Assignments of a member that just died are refused for that reason, and nothing is applied."""
        with pytest.raises(LeaseNotFoundError):
            await etcd.txn((), (Put(b"/a", b""), Put(b"/b", b"", lease=4711)))

        assert (await etcd.get_range(b"/a")).kvs == ()

    async def test_txn_that_keeps_the_lease_of_an_absent_key_is_refused(self, etcd: Etcd) -> None:
        """There is no lease to keep: the key was deleted meanwhile."""
        with pytest.raises(EtcdRequestError, match="key not found"):
            await etcd.txn((), (Put(b"/absent", b"", ignore_lease=True),))


class TestLease:
    """Leases."""

    async def test_lease_revoked_takes_its_keys_along_in_one_revision(self, etcd: Etcd) -> None:
        """A member and its assignments go at once, so that nobody sees one without the other."""
        start = (await etcd.get_range(b"/")).header.revision
        lease = await etcd.lease_grant(60)
        await etcd.txn((), (Put(b"/m", b"", lease=lease), Put(b"/n", b"", lease=lease)))

        assert await etcd.lease_revoke(lease)

        events = await _events(etcd, b"/", start + 1, 4)
        deleted = [event for event in events if isinstance(event, KeyDeleted)]
        assert [event.key for event in deleted] == [b"/m", b"/n"]
        assert len({event.mod_revision for event in deleted}) == 1

    async def test_lease_expired_takes_its_keys_along_in_one_revision(self, etcd: Etcd) -> None:
        """A crash looks like a revocation: a member never goes without its assignments, nor they without it."""
        start = (await etcd.get_range(b"/")).header.revision
        lease = await etcd.lease_grant(1)
        await etcd.txn((), (Put(b"/m", b"", lease=lease), Put(b"/n", b"", lease=lease)))

        events = await _events(etcd, b"/", start + 1, 4)

        assert [
            (event.key, event.mod_revision) for event in events[2:] if isinstance(event, KeyDeleted)
        ] == [
            (b"/m", start + 2),
            (b"/n", start + 2),
        ]

    async def test_lease_revoked_spares_keys_that_left_it(self, etcd: Etcd) -> None:
        """A key lives on the lease of its last write, and on no earlier one."""
        first, second = await etcd.lease_grant(60), await etcd.lease_grant(60)
        await etcd.txn((), tuple(Put(key, b"", lease=first) for key in (b"/a", b"/b", b"/c")))
        await etcd.txn((), (Put(b"/a", b""), Put(b"/b", b"", lease=second)))

        await etcd.lease_revoke(first)

        read = await etcd.get_range(b"/", b"0")
        assert [(kv.key, kv.lease) for kv in read.kvs] == [(b"/a", 0), (b"/b", second)]

    async def test_lease_unknown_is_neither_revoked_nor_renewed(self, etcd: Etcd) -> None:
        """Both answers are data, not failures: the caller wanted it gone, or must learn that it is."""
        unknown = LeaseId(4711)

        assert not await etcd.lease_revoke(unknown)
        assert await etcd.lease_keep_alive_once(unknown) == 0

    async def test_lease_renewed_lives_and_not_renewed_expires(self, etcd: Etcd) -> None:
        """Renewal returns what the lease is worth; without it the key goes."""
        lease = await etcd.lease_grant(1)
        await _put(etcd, b"/k", lease=lease)

        assert await etcd.lease_keep_alive_once(lease) >= 1

        async def is_gone() -> bool:
            return (await etcd.get_range(b"/k")).kvs == ()

        await eventually(is_gone, timeout_seconds=8, interval_seconds=0.1)
        assert await etcd.lease_keep_alive_once(lease) == 0


class TestWatch:
    """Watches."""

    async def test_watch_from_the_past_delivers_every_change_once_and_in_order(
        self, etcd: Etcd
    ) -> None:
        """History first, then what happens while we watch; neighbours with a like prefix stay out."""
        start = await _put(etcd, b"/w/a", b"1")
        await _put(etcd, b"/wx", b"outside")
        await etcd.txn((), (Put(b"/w/a", b"2"), Put(b"/w/b", b"1")))
        seen: list[WatchEvent] = []

        async with (
            asyncio.timeout(10),
            aclosing(etcd.watch(b"/w/", start_revision=start)) as batches,
        ):
            async for batch in batches:
                seen.extend(batch.events)
                if len(seen) == 3:
                    await etcd.txn((), (Delete(b"/w/a"),))
                if len(seen) == 4:
                    break

        puts = [event.kv for event in seen if isinstance(event, KeyPut)]
        assert [(kv.key, kv.value) for kv in puts] == [
            (b"/w/a", b"1"),
            (b"/w/a", b"2"),
            (b"/w/b", b"1"),
        ]
        assert isinstance(seen[3], KeyDeleted)
        assert seen[3].key == b"/w/a"
        revisions = [mod_revision_of(event) for event in seen]
        assert revisions == sorted(revisions)
        assert revisions[1] == revisions[2]

    async def test_watch_batches_hold_whole_revisions_and_end_at_their_header(
        self, etcd: Etcd
    ) -> None:
        """A revision is never spread over two batches: half a transaction must not be acted on."""
        start = (await etcd.get_range(b"/")).header.revision + 1
        for number in range(20):
            await etcd.txn((), tuple(Put(b"/w/%d" % key, b"%d" % number) for key in range(100)))
        batches: list[WatchBatch] = []

        async with (
            asyncio.timeout(10),
            aclosing(etcd.watch(b"/w/", start_revision=start)) as watch,
        ):
            async for batch in watch:
                batches.append(batch)
                if sum(len(each.events) for each in batches) == 2_000:
                    break

        for batch in batches:
            revisions = [mod_revision_of(event) for event in batch.events]
            assert all(revisions.count(revision) == 100 for revision in set(revisions))
            assert batch.header.revision == revisions[-1]

    async def test_watch_of_compacted_revision_is_refused(self, under_test: EtcdUnderTest) -> None:
        """The watcher must learn that it missed changes, and where history begins now."""
        old = await _put(under_test.etcd, b"/w/a", b"1")
        new = await _put(under_test.etcd, b"/w/a", b"2")
        await under_test.compact(new)

        with pytest.raises(RevisionCompactedError) as refusal:
            await _events(under_test.etcd, b"/w/", old, 1)

        assert (refusal.value.revision, refusal.value.compact_revision) == (old, new)

    async def test_watch_of_the_compacted_revision_itself_misses_nothing(
        self, under_test: EtcdUnderTest
    ) -> None:
        """A watch may resume at the revision that was kept; what it says is what was written then."""
        await _put(under_test.etcd, b"/w/a", b"1")
        kept = await _put(under_test.etcd, b"/w/a", b"2")
        await _put(under_test.etcd, b"/w/b", b"3")
        await under_test.compact(kept)

        events = await _events(under_test.etcd, b"/w/", kept, 2)

        assert [event.kv.value for event in events if isinstance(event, KeyPut)] == [b"2", b"3"]

    async def test_watch_of_the_future_waits_for_it(self, etcd: Etcd) -> None:
        """A watch that starts after the newest revision delivers nothing that came before its start."""
        newest = await _put(etcd, b"/w/a", b"0")

        async with asyncio.TaskGroup() as group:
            watching = group.create_task(_events(etcd, b"/w/", newest + 2, 1))
            await _put(etcd, b"/w/a", b"1")
            await _put(etcd, b"/w/a", b"2")

        (event,) = watching.result()
        assert isinstance(event, KeyPut)
        assert (event.kv.value, event.kv.mod_revision) == (b"2", newest + 2)

    async def test_watch_delivers_a_transactions_changes_in_their_order(self, etcd: Etcd) -> None:
        """A replica that is given another slot is deleted and put: seen in any other order, it would be lost."""
        start = await _put(etcd, b"/w/b", b"")
        await etcd.txn((), (Delete(b"/w/b"), Put(b"/w/a", b""), Put(b"/w/c", b"")))

        events = await _events(etcd, b"/w/", start + 1, 3)

        keys = [event.kv.key if isinstance(event, KeyPut) else event.key for event in events]
        assert keys == [b"/w/b", b"/w/a", b"/w/c"]
        assert {mod_revision_of(event) for event in events} == {start + 1}
