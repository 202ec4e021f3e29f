"""What the rest of the program relies on when it reads etcd, of every implementation."""

from __future__ import annotations

import asyncio

import pytest

from broadsheet.allocator.errors import EtcdRequestError, RevisionCompactedError
from broadsheet.allocator.etcd.api import Etcd
from broadsheet.allocator.ops import Delete, Put, prefix_range_end
from tests.support.etcd_contract import EtcdUnderTest, put


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
        second = await put(etcd, b"/k/b", b"2")
        first = await put(etcd, b"/k/a", b"1")
        third = await put(etcd, b"/k/b", b"3")
        await put(etcd, b"/ka", b"outside")

        result = await etcd.get_range(b"/k/", prefix_range_end(b"/k/"))

        assert [(kv.key, kv.value) for kv in result.kvs] == [(b"/k/a", b"1"), (b"/k/b", b"3")]
        a, b = result.kvs
        assert (a.create_revision, a.mod_revision, a.version, a.lease) == (first, first, 1, 0)
        assert (b.create_revision, b.mod_revision, b.version, b.lease) == (second, third, 2, 0)

    async def test_range_of_old_revision_shows_that_moment(self, etcd: Etcd) -> None:
        """A load at the announcement's revision must not see what came later, and must say which it is."""
        revision = await put(etcd, b"/k", b"old")
        await put(etcd, b"/k", b"new")

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
        old = await put(under_test.etcd, b"/k", b"1")
        new = await put(under_test.etcd, b"/k", b"2")
        await under_test.compact(new)

        with pytest.raises(RevisionCompactedError) as refusal:
            await under_test.etcd.get_range(b"/k", revision=old)

        assert refusal.value.revision == old

    async def test_range_of_the_compacted_revision_itself_is_answered(
        self, under_test: EtcdUnderTest
    ) -> None:
        """Compaction forgets what came before a revision, not the revision: keys written earlier are still in it."""
        await put(under_test.etcd, b"/k", b"1")
        pinned = await put(under_test.etcd, b"/l", b"1")
        await put(under_test.etcd, b"/k", b"2")
        await under_test.compact(pinned)

        result = await under_test.etcd.get_range(b"/k", b"/z", revision=pinned)

        assert [(kv.key, kv.value) for kv in result.kvs] == [(b"/k", b"1"), (b"/l", b"1")]

    async def test_range_of_future_revision_is_refused(self, etcd: Etcd) -> None:
        """A revision that has not happened yet is a caller's mistake, not something to wait for."""
        newest = await put(etcd, b"/k")

        with pytest.raises(EtcdRequestError, match="future revision"):
            await etcd.get_range(b"/k", revision=newest + 1)

    async def test_range_of_key_deleted_and_created_anew_starts_its_history_anew(
        self, etcd: Etcd
    ) -> None:
        """A member that comes back is a new one: comparisons with the old one's revisions fail."""
        await put(etcd, b"/k")
        await etcd.txn((), (Delete(b"/k"),))
        created = await put(etcd, b"/k")

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
        await put(etcd, b"/n/b")
        newest = await put(etcd, b"/n/a")
        await put(etcd, b"/na")
        await put(etcd, b"/other")

        assert await etcd.newest_revision(b"/n/") == newest

        rewritten = await put(etcd, b"/n/b", b"again")
        assert await etcd.newest_revision(b"/n/") == rewritten

        await etcd.txn((), (Delete(b"/n/b"),))
        assert await etcd.newest_revision(b"/n/") == newest

    async def test_newest_revision_without_keys_is_zero(self, etcd: Etcd) -> None:
        """Nothing is there that could have been missed."""
        assert await etcd.newest_revision(b"/nothing/") == 0
