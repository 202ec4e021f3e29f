"""Many small transactions in few large ones over a real etcd: one bad checkpoint harms no other."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from broadsheet.allocator.errors import EtcdLimitError, LeaseNotFoundError, TxnConflictError
from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.allocator.etcd.txn_batch import apply_checkpoints
from broadsheet.allocator.ops import Compare, Put, TxnCheckpoint

pytestmark = pytest.mark.etcd


def _key(root: str, number: int) -> bytes:
    return f"{root}/{number:04d}".encode()


def _create(root: str, number: int, *, value: bytes = b"", lease: int = 0) -> TxnCheckpoint:
    key = _key(root, number)
    return TxnCheckpoint((Compare.absent(key),), (Put(key, value, lease),), str(number))


async def _written(etcd: EtcdClient, root: str) -> set[int]:
    result = await etcd.get_range(f"{root}/".encode(), f"{root}0".encode())
    return {int(kv.key.rpartition(b"/")[2]) for kv in result.kvs if b"leader" not in kv.key}


async def test_batch_of_nothing_does_nothing(etcd: EtcdClient) -> None:
    """A converged allocator has no work."""
    report = await apply_checkpoints(etcd, ())

    assert (report.revision, report.applied, report.culprits) == (0, (), ())


async def test_batch_of_1000_checkpoints_takes_few_transactions(
    etcd: EtcdClient, etcd_root: str
) -> None:
    """All are applied in eight transactions, and the report names the last one's revision."""
    report = await apply_checkpoints(etcd, [_create(etcd_root, n) for n in range(1000)])

    assert sorted(map(int, report.applied)) == list(range(1000))
    assert report.culprits == ()
    written = (await etcd.get_range(f"{etcd_root}/".encode(), f"{etcd_root}0".encode())).kvs
    revisions = {kv.mod_revision for kv in written}
    assert len(written) == 1000
    assert (len(revisions), max(revisions)) == (8, report.revision)


async def test_batch_with_conflicts_applies_the_others_and_names_the_culprits(
    etcd: EtcdClient, etcd_root: str
) -> None:
    """Three of 300 keys were changed by another: those three are reported with their keys, the rest is written."""
    taken = {5, 130, 299}
    for number in taken:
        await etcd.put(_key(etcd_root, number), b"another's")

    report = await apply_checkpoints(etcd, [_create(etcd_root, n) for n in range(300)])

    assert sorted(map(int, report.applied)) == [n for n in range(300) if n not in taken]
    causes = {culprit.checkpoint.subject: culprit.cause for culprit in report.culprits}
    assert set(causes) == {"5", "130", "299"}
    conflict = causes["5"]
    assert isinstance(conflict, TxnConflictError)
    assert conflict.keys == (_key(etcd_root, 5),)
    assert not report.leadership_lost
    kept = (await etcd.get_range(_key(etcd_root, 5))).kvs[0]
    assert kept.value == b"another's"


async def test_batch_with_refusals_applies_the_others(etcd: EtcdClient, etcd_root: str) -> None:
    """A lease that ended and a value too large, among 100: halving finds them, each with etcd's own reason."""
    checkpoints = [_create(etcd_root, n) for n in range(100)]
    checkpoints[17] = _create(etcd_root, 17, lease=4711)
    checkpoints[60] = _create(etcd_root, 60, value=bytes(1_600_000))

    report = await apply_checkpoints(etcd, checkpoints)

    causes = {culprit.checkpoint.subject: type(culprit.cause) for culprit in report.culprits}
    assert causes == {"17": LeaseNotFoundError, "60": EtcdLimitError}
    assert await _written(etcd, etcd_root) == set(range(100)) - {17, 60}


async def test_batch_with_an_oversized_checkpoint_reports_it(
    etcd: EtcdClient, etcd_root: str
) -> None:
    """A checkpoint is never split: with 129 operations it is a culprit, and its neighbours are applied."""
    huge = TxnCheckpoint((), tuple(Put(_key(etcd_root, n), b"") for n in range(1000, 1129)), "huge")

    report = await apply_checkpoints(etcd, [_create(etcd_root, 0), huge, _create(etcd_root, 1)])

    assert [culprit.checkpoint.subject for culprit in report.culprits] == ["huge"]
    assert await _written(etcd, etcd_root) == {0, 1}


async def test_batch_of_a_deposed_leader_writes_nothing_and_says_so(
    etcd: EtcdClient, etcd_root: str
) -> None:
    """The fixed comparison fails: that is no culprit's fault, and every checkpoint stays unapplied."""
    leader = f"{etcd_root}/leader".encode()
    first = await etcd.put(leader, b"")
    fixed = (Compare.mod_revision(leader, first),)

    held = await apply_checkpoints(etcd, [_create(etcd_root, 0)], fixed=fixed)
    await etcd.put(leader, b"")
    lost = await apply_checkpoints(
        etcd, [_create(etcd_root, n) for n in range(1, 600)], fixed=fixed
    )

    assert held.applied == ("0",)
    assert lost.leadership_lost
    assert lost.fixed_failed == fixed
    assert (lost.applied, lost.culprits, lost.revision) == ((), (), 0)
    assert await _written(etcd, etcd_root) == {0}


async def test_batch_keeps_the_order_of_checkpoints_on_one_key(
    etcd: EtcdClient, etcd_root: str
) -> None:
    """Two steps on one key: the second builds on the first, although each alone would fit one transaction."""
    key = _key(etcd_root, 0)
    steps = [
        TxnCheckpoint((Compare.absent(key),), (Put(key, b"first"),), "first"),
        TxnCheckpoint((), (Put(key, b"second"),), "second"),
    ]

    report = await apply_checkpoints(etcd, steps)

    assert report.applied == ("first", "second")
    kv = (await etcd.get_range(key)).kvs[0]
    assert (kv.value, kv.version, kv.mod_revision) == (b"second", 2, report.revision)


async def test_note_is_written_by_the_transaction_that_it_tells_of(
    etcd: EtcdClient, etcd_root: str
) -> None:
    """Each transaction has one note more, at its own revision, of what was applied and of nothing that was refused; a
    checkpoint that leaves no room for it is followed by it.
    """
    await etcd.put(_key(etcd_root, 7), b"another's")
    full = TxnCheckpoint(
        (), tuple(Put(_key(etcd_root, number), b"") for number in range(1000, 1128)), "full"
    )
    asked = 0

    def note(checkpoints: Sequence[TxnCheckpoint]) -> Put:
        nonlocal asked
        asked += 1
        subjects = " ".join(each.subject for each in checkpoints)
        return Put(f"{etcd_root}-notes/{asked:03}".encode(), subjects.encode())

    report = await apply_checkpoints(
        etcd, [*(_create(etcd_root, number) for number in range(300)), full], note=note
    )

    assert [each.checkpoint.subject for each in report.culprits] == ["7"]
    notes = (
        await etcd.get_range(f"{etcd_root}-notes/".encode(), f"{etcd_root}-notes0".encode())
    ).kvs
    assert sorted(" ".join(kv.value.decode() for kv in notes).split()) == sorted(report.applied)
    written = (await etcd.get_range(f"{etcd_root}/".encode(), f"{etcd_root}0".encode())).kvs
    revisions = {int(kv.key.rpartition(b"/")[2]): kv.mod_revision for kv in written}
    for kv in notes:
        subjects = kv.value.decode().split()
        if subjects == ["full"]:
            assert kv.mod_revision > revisions[1000]
        else:
            assert {revisions[int(subject)] for subject in subjects} == {kv.mod_revision}
