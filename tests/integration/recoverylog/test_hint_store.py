"""Hints in etcd: written by whoever holds the assignment, rotated in one step, read as of one revision."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from functools import partial

import pytest

from broadsheet.allocator.errors import KeyDecodeError
from broadsheet.allocator.etcd.api import TxnResult
from broadsheet.allocator.etcd.client import EtcdClient, EtcdConfig
from broadsheet.allocator.model import Assignment
from broadsheet.allocator.ops import Compare, Delete, Get, Operation, Put
from broadsheet.consumer.errors import AssignmentLostError
from broadsheet.consumer.recoverylog.hint_store import (
    fetch_hints,
    rotate_backup_hints,
    store_recorded_hints,
)
from broadsheet.consumer.recoverylog.hints import (
    StoredHints,
    backup_hints_keys,
    encode_hints,
    primary_hints_key,
)
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.wire.recorded_op_pb2 import FnodeSegments, FSMHints, Segment
from broadsheet.wire.shard_pb2 import ShardSpec
from tests.support.key_space_values import assignment

pytestmark = pytest.mark.etcd

LOG = "logs/shard-a"
KEY = b"/assign/shard-a"


def hints(number: int, *, log: str = LOG) -> FSMHints:
    """Return hints unlike others."""
    segment = Segment(author=number, first_seq_no=number, last_seq_no=number)
    return FSMHints(log=log, live_nodes=[FnodeSegments(fnode=number, segments=[segment])])


@pytest.fixture
def spec(etcd_root: str) -> ShardSpec:
    """A shard with three backups."""
    return ShardSpec(
        id="shard-a", recovery_log_prefix="logs", hint_prefix=f"{etcd_root}/hints", hint_backups=3
    )


async def assigned(etcd: EtcdClient, root: str, *, value: bytes = b"") -> Assignment:
    """Write our assignment, and return it as observed."""
    key = root.encode() + KEY
    await etcd.txn((), (Put(key, value),))
    ((kv,),) = (await etcd.txn((), (Get(key),))).gets
    return replace(assignment("shard-a", "a", 0), kv=kv)


async def unassigned(etcd: EtcdClient, root: str) -> None:
    """Delete our assignment."""
    await etcd.txn((), (Delete(root.encode() + KEY),))


async def test_shard_without_hints_has_none(etcd: EtcdClient, spec: ShardSpec) -> None:
    """A first life begins at the beginning of the log; a shard without a log has nothing to ask for."""
    stored = await fetch_hints(etcd, spec)

    assert stored == StoredHints(primary=None, backups=(None, None, None))
    assert stored.picked(LOG) == FSMHints(log=LOG)
    assert await fetch_hints(etcd, ShardSpec(id="shard-a")) == StoredHints()


async def test_recorded_hints_replace_each_other(
    etcd: EtcdClient, spec: ShardSpec, etcd_root: str
) -> None:
    """Statuses that are written into the assignment meanwhile do not matter."""
    ours = await assigned(etcd, etcd_root)
    await store_recorded_hints(etcd, spec, ours, hints(1))
    await assigned(etcd, etcd_root, value=b"another status")
    await store_recorded_hints(etcd, spec, ours, hints(2))

    stored = await fetch_hints(etcd, spec)
    assert stored.primary == hints(2)
    assert stored.picked(LOG) == hints(2)


@pytest.mark.parametrize("made_anew", [False, True])
async def test_who_lost_the_assignment_writes_no_hints(
    etcd: EtcdClient, spec: ShardSpec, etcd_root: str, made_anew: bool
) -> None:
    """It is gone, or was made again in between, perhaps for another life of the same shard here."""
    ours = await assigned(etcd, etcd_root)
    await store_recorded_hints(etcd, spec, ours, hints(1))
    await unassigned(etcd, etcd_root)
    if made_anew:
        await assigned(etcd, etcd_root)

    with pytest.raises(AssignmentLostError, match="gone or was created again"):
        await store_recorded_hints(etcd, spec, ours, hints(2))
    with pytest.raises(AssignmentLostError, match="gone or was created again"):
        await rotate_backup_hints(etcd, spec, ours, hints(3))
    assert await fetch_hints(etcd, spec) == StoredHints(
        primary=hints(1), backups=(None, None, None)
    )


async def test_backups_move_up_to_the_first_gap_and_the_oldest_falls_off(
    etcd: EtcdClient, spec: ShardSpec, etcd_root: str
) -> None:
    """The newest is what was recovered last."""
    ours = await assigned(etcd, etcd_root)
    seen = []
    for number in range(1, 6):
        await rotate_backup_hints(etcd, spec, ours, hints(number))
        stored = await fetch_hints(etcd, spec)
        seen.append([each.log and each.live_nodes[0].fnode for each in stored.all()])
    assert seen == [[1], [2, 1], [3, 2, 1], [4, 3, 2], [5, 4, 3]]
    assert stored.picked(LOG) == hints(5)

    await etcd.txn((), (Delete(backup_hints_keys(spec)[1]),))
    await rotate_backup_hints(etcd, spec, ours, hints(6))
    assert (await fetch_hints(etcd, spec)).backups == (hints(6), hints(5), hints(3))


class MeddledEtcd(EtcdClient):
    """Something happens between its first look and its first conditional write."""

    meanwhile: Callable[[], Awaitable[None]] | None = None

    async def txn(
        self,
        compares: tuple[Compare, ...],
        success: tuple[Operation, ...],
        failure: tuple[Operation, ...] = (),
    ) -> TxnResult:
        """Perform a transaction, behind what happens meanwhile."""
        meanwhile = self.meanwhile
        if compares and meanwhile is not None:
            self.meanwhile = None
            await meanwhile()
        return await super().txn(compares, success, failure)


async def test_two_rotations_at_a_time_do_not_lose_a_backup(
    etcd: EtcdClient, etcd_server: EmbeddedEtcdProcess, spec: ShardSpec, etcd_root: str
) -> None:
    """One of them sees what the other wrote, or is refused."""
    ours = await assigned(etcd, etcd_root)
    await rotate_backup_hints(etcd, spec, ours, hints(1))
    async with MeddledEtcd(EtcdConfig(endpoints=(etcd_server.endpoint,))) as meddled:
        meddled.meanwhile = partial(rotate_backup_hints, etcd, spec, ours, hints(2))
        with pytest.raises(AssignmentLostError):
            await rotate_backup_hints(meddled, spec, ours, hints(3))
    assert (await fetch_hints(etcd, spec)).backups == (hints(2), hints(1), None)


async def test_shard_without_backups_keeps_none(
    etcd: EtcdClient, spec: ShardSpec, etcd_root: str
) -> None:
    """Nothing is written."""
    spec.hint_backups = 0
    await rotate_backup_hints(etcd, spec, await assigned(etcd, etcd_root), hints(1))

    assert await fetch_hints(etcd, spec) == StoredHints()


@pytest.mark.parametrize(
    ("value", "told"),
    [
        (b"{", "expected FSMHints"),
        (b"", "expected 'logs/shard-a'"),
        (encode_hints(hints(1, log="logs/other")), "expected 'logs/shard-a'"),
        (hints(1, log="logs/other").SerializeToString(), "expected 'logs/shard-a'"),
        (encode_hints(FSMHints(log=LOG, live_nodes=[FnodeSegments(fnode=1)])), "expected segments"),
    ],
)
@pytest.mark.parametrize("backup", [False, True])
async def test_hints_that_make_no_sense_fail_the_fetch(
    etcd: EtcdClient, spec: ShardSpec, value: bytes, told: str, backup: bool
) -> None:
    """They must not pass for none, nor be passed over for older ones without anybody's knowledge."""
    key = backup_hints_keys(spec)[2] if backup else primary_hints_key(spec)
    await etcd.txn((), (Put(key, value),))

    with pytest.raises(KeyDecodeError, match=told) as raised:
        await fetch_hints(etcd, spec)
    assert key.decode() in str(raised.value)


def test_primary_hints_are_picked_before_backups() -> None:
    """The newest that is there."""
    assert StoredHints(primary=hints(1), backups=(hints(2), None)).picked(LOG) == hints(1)
    assert StoredHints(backups=(None, hints(3), hints(4))).picked(LOG) == hints(3)
    assert StoredHints(backups=(None,)).picked(LOG) == FSMHints(log=LOG)
    assert StoredHints(primary=hints(1), backups=(None, hints(3))).all() == [hints(1), hints(3)]
