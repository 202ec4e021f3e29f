"""What the rest of the program relies on in etcd's leases and watches, of every implementation."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import pytest

from broadsheet.allocator.errors import RevisionCompactedError
from broadsheet.allocator.etcd.api import (
    Etcd,
    KeyDeleted,
    KeyPut,
    WatchBatch,
    WatchEvent,
    mod_revision_of,
)
from broadsheet.allocator.ops import Delete, LeaseId, Put
from tests.support.etcd_contract import EtcdUnderTest, events_of, put
from tests.support.eventually import DEADLINE_SECONDS, eventually


class TestLease:
    """Leases."""

    async def test_lease_revoked_takes_its_keys_along_in_one_revision(self, etcd: Etcd) -> None:
        """A member and its assignments go at once, so that nobody sees one without the other."""
        start = (await etcd.get_range(b"/")).header.revision
        lease = await etcd.lease_grant(60)
        await etcd.txn((), (Put(b"/m", b"", lease=lease), Put(b"/n", b"", lease=lease)))

        assert await etcd.lease_revoke(lease)

        events = await events_of(etcd, b"/", start + 1, 4)
        deleted = [event for event in events if isinstance(event, KeyDeleted)]
        assert [event.key for event in deleted] == [b"/m", b"/n"]
        assert len({event.mod_revision for event in deleted}) == 1

    async def test_lease_expired_takes_its_keys_along_in_one_revision(self, etcd: Etcd) -> None:
        """A crash looks like a revocation: a member never goes without its assignments, nor they without it."""
        start = (await etcd.get_range(b"/")).header.revision
        lease = await etcd.lease_grant(4)
        await etcd.txn((), (Put(b"/m", b"", lease=lease), Put(b"/n", b"", lease=lease)))

        events = await events_of(etcd, b"/", start + 1, 4)

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
        assert await etcd.lease_life(unknown) is None

    async def test_lease_renewed_lives_and_not_renewed_expires(self, etcd: Etcd) -> None:
        """Renewal returns what the lease is worth; without it the key goes."""
        lease = await etcd.lease_grant(4)
        await put(etcd, b"/k", lease=lease)

        assert await etcd.lease_keep_alive_once(lease) >= 4

        async def has_aged() -> bool:
            life = await etcd.lease_life(lease)
            assert life is not None, "a look at it does not renew it, but it has its time"
            assert life.granted_seconds >= 4
            return life.age_seconds_min >= 1

        await eventually(has_aged, interval_seconds=0.1)

        async def is_gone() -> bool:
            return (await etcd.get_range(b"/k")).kvs == ()

        await eventually(is_gone, interval_seconds=0.1)
        assert await etcd.lease_life(lease) is None
        assert await etcd.lease_keep_alive_once(lease) == 0


class TestWatch:
    """Watches."""

    async def test_watch_from_the_past_delivers_every_change_once_and_in_order(
        self, etcd: Etcd
    ) -> None:
        """History first, then what happens while we watch; neighbours with a like prefix stay out."""
        start = await put(etcd, b"/w/a", b"1")
        await put(etcd, b"/wx", b"outside")
        await etcd.txn((), (Put(b"/w/a", b"2"), Put(b"/w/b", b"1")))
        seen: list[WatchEvent] = []

        async with (
            asyncio.timeout(DEADLINE_SECONDS),
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
            asyncio.timeout(DEADLINE_SECONDS),
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
        old = await put(under_test.etcd, b"/w/a", b"1")
        new = await put(under_test.etcd, b"/w/a", b"2")
        await under_test.compact(new)

        with pytest.raises(RevisionCompactedError) as refusal:
            await events_of(under_test.etcd, b"/w/", old, 1)

        assert (refusal.value.revision, refusal.value.compact_revision) == (old, new)

    async def test_watch_of_the_compacted_revision_itself_misses_nothing(
        self, under_test: EtcdUnderTest
    ) -> None:
        """A watch may resume at the revision that was kept; what it says is what was written then."""
        await put(under_test.etcd, b"/w/a", b"1")
        kept = await put(under_test.etcd, b"/w/a", b"2")
        await put(under_test.etcd, b"/w/b", b"3")
        await under_test.compact(kept)

        events = await events_of(under_test.etcd, b"/w/", kept, 2)

        assert [event.kv.value for event in events if isinstance(event, KeyPut)] == [b"2", b"3"]

    async def test_watch_of_the_future_waits_for_it(self, etcd: Etcd) -> None:
        """A watch that starts after the newest revision delivers nothing that came before its start."""
        newest = await put(etcd, b"/w/a", b"0")

        async with asyncio.TaskGroup() as group:
            watching = group.create_task(events_of(etcd, b"/w/", newest + 2, 1))
            await put(etcd, b"/w/a", b"1")
            await put(etcd, b"/w/a", b"2")

        (event,) = watching.result()
        assert isinstance(event, KeyPut)
        assert (event.kv.value, event.kv.mod_revision) == (b"2", newest + 2)

    async def test_watch_delivers_a_transactions_changes_in_their_order(self, etcd: Etcd) -> None:
        """A replica that is given another slot is deleted and put: seen in any other order, it would be lost."""
        start = await put(etcd, b"/w/b", b"")
        await etcd.txn((), (Delete(b"/w/b"), Put(b"/w/a", b""), Put(b"/w/c", b"")))

        events = await events_of(etcd, b"/w/", start + 1, 3)

        keys = [event.kv.key if isinstance(event, KeyPut) else event.key for event in events]
        assert keys == [b"/w/b", b"/w/a", b"/w/c"]
        assert {mod_revision_of(event) for event in events} == {start + 1}
