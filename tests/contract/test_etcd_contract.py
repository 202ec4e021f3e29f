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

from allocator.core.ops import Compare, CompareTarget, Delete, Get, LeaseId, Put, prefix_range_end
from allocator.errors import (
    EtcdLimitError,
    EtcdRequestError,
    LeaseNotFoundError,
    RevisionCompactedError,
)
from allocator.etcd.api import Etcd, KeyDeleted, KeyPut, WatchBatch, WatchEvent, mod_revision_of
from allocator.etcd.client import EtcdClient, EtcdConfig
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


IMPLEMENTATIONS = [pytest.param(_real_etcd, id="real", marks=pytest.mark.etcd)]


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

    @staticmethod
    async def _write_all(etcd: Etcd, keys: list[bytes], value: bytes) -> None:
        for start in range(0, len(keys), 128):
            await etcd.txn((), tuple(Put(key, value) for key in keys[start : start + 128]))


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
