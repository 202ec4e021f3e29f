"""What the rest of the program relies on in etcd's transactions, of every implementation."""

from __future__ import annotations

import pytest

from broadsheet.allocator.errors import EtcdLimitError, EtcdRequestError, LeaseNotFoundError
from broadsheet.allocator.etcd.api import Etcd
from broadsheet.allocator.etcd.reads import read_expected
from broadsheet.allocator.ops import Compare, CompareTarget, Delete, Get, Operation, Put
from tests.support.etcd_contract import put


class TestTxn:
    """Transactions."""

    async def test_txn_with_holding_comparisons_writes_all_at_one_revision(
        self, etcd: Etcd
    ) -> None:
        """Every comparison that the allocator uses, at once; all writes share the header's revision."""
        lease = await etcd.lease_grant(60)
        created = await put(etcd, b"/a", b"v", lease=lease)
        modified = await put(etcd, b"/a", b"w", lease=lease)

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
        await put(etcd, b"/a", b"v")

        result = await etcd.txn((compare,), (Put(b"/a", b"never"),), (Get(b"/a"),))

        assert not result.succeeded
        assert [kv.value for kv in result.gets[0]] == [b"v"]

    async def test_txn_compares_a_range_with_the_revision_of_a_view(self, etcd: Etcd) -> None:
        """Keys are created and written after a view was taken: either shows, and neither does of another prefix."""

        async def holds(compare: Compare) -> bool:
            return (await etcd.txn((compare,), (Put(b"/seen", b""),))).succeeded

        empty = (await etcd.get_range(b"/a/")).header.revision
        assert await holds(Compare.none_created_after(b"/a/", empty))
        created = await put(etcd, b"/a/1", b"v")
        assert not await holds(Compare.none_created_after(b"/a/", empty))
        assert await holds(Compare.none_written_after(b"/a/", created))
        await put(etcd, b"/a/1", b"w")
        await put(etcd, b"/b/1", b"v")

        assert await holds(Compare.none_created_after(b"/a/", created))
        assert not await holds(Compare.none_written_after(b"/a/", created))

    async def test_txn_keeps_lease_on_request(self, etcd: Etcd) -> None:
        """Updates of a member keep the lease that its key lives on; a put without it takes the key off its lease."""
        lease = await etcd.lease_grant(60)
        await put(etcd, b"/kept", b"1", lease=lease)
        await put(etcd, b"/taken", b"1", lease=lease)

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
        newest = await put(etcd, b"/k")

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

    async def test_txn_that_only_reads_sees_one_revision(self, etcd: Etcd) -> None:
        """Keys, ranges and keys that are not there, in their order, as of the revision that the header names."""
        await put(etcd, b"/a", b"1")
        newest = await put(etcd, b"/b", b"2")
        gets = (Get(b"/b"), Get(b"/absent"), Get(b"/", b"0"), Get(b"/a"))

        result = await etcd.txn((), gets)

        assert result.succeeded
        assert result.header.revision == newest
        assert [[kv.value for kv in kvs] for kvs in result.gets] == [
            [b"2"],
            [],
            [b"1", b"2"],
            [b"1"],
        ]

    @pytest.mark.parametrize("holds", [True, False])
    async def test_txn_that_compares_and_reads_returns_the_branch_taken(
        self, etcd: Etcd, holds: bool
    ) -> None:
        """Without a write in either branch, and without making a revision."""
        await put(etcd, b"/a", b"1")
        newest = await put(etcd, b"/b", b"2")
        compare = Compare.mod_revision(b"/b", newest if holds else 1)

        result = await etcd.txn((compare,), (Get(b"/a"), Get(b"/b")), (Get(b"/b"),))

        assert result.succeeded == holds
        values = [[kv.value for kv in kvs] for kvs in result.gets]
        assert values == ([[b"1"], [b"2"]] if holds else [[b"2"]])
        assert result.header.revision == newest

    async def test_txn_with_2_mebibyte_value_is_refused(self, etcd: Etcd) -> None:
        """A spec too large for etcd is refused with the limit's name rather than hang or break the connection."""
        with pytest.raises(EtcdLimitError, match="max-request-bytes"):
            await put(etcd, b"/k", bytes(2 * 1024 * 1024))

        await put(etcd, b"/k", b"small enough")

    async def test_txn_on_a_lease_that_ended_is_refused(self, etcd: Etcd) -> None:
        """Assignments of a member that just died are refused for that reason, and nothing is applied."""
        with pytest.raises(LeaseNotFoundError):
            await etcd.txn((), (Put(b"/a", b""), Put(b"/b", b"", lease=4711)))

        assert (await etcd.get_range(b"/a")).kvs == ()

    async def test_txn_that_keeps_the_lease_of_an_absent_key_is_refused(self, etcd: Etcd) -> None:
        """There is no lease to keep: the key was deleted meanwhile."""
        with pytest.raises(EtcdRequestError, match="key not found"):
            await etcd.txn((), (Put(b"/absent", b"", ignore_lease=True),))


class TestReadExpected:
    """Reads of keys whose values are probably known."""

    async def test_read_expected_returns_what_is_there_whatever_was_expected(
        self, etcd: Etcd
    ) -> None:
        """A wrong guess, older, absent or present, costs calls and never a wrong value; nor does a number of keys that
        one transaction does not take.
        """
        keys = [b"/k/%03d" % number for number in range(300)]
        present = {key: await put(etcd, key, b"old") for key in keys[::2]}
        read = await etcd.get_range(b"/k/", b"/k0")
        right = dict.fromkeys(keys) | {kv.key: kv for kv in read.kvs}
        assert await read_expected(etcd, right) == right
        assert await read_expected(etcd, dict.fromkeys(keys)) == right

        changed = await put(etcd, keys[0], b"new")
        await etcd.txn((), (Delete(keys[298]), Put(keys[1], b"made")))
        found = await read_expected(etcd, right)

        assert changed > present[keys[0]]
        now = {kv.key: kv for kv in (await etcd.get_range(b"/k/", b"/k0")).kvs}
        assert found == dict.fromkeys(keys) | now
        assert await read_expected(etcd, {}) == {}
