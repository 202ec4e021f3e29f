"""Rewinds in a real etcd: one transaction, which fails if anything it read has changed."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.allocator.keys import Keys
from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.ops import prefix_range_end
from broadsheet.consumer.errors import LogDataLossError
from broadsheet.consumer.recoverylog.hints import backup_hints_keys, encode_hints, primary_hints_key
from broadsheet.consumer.recoverylog.player import Player
from broadsheet.consumer.recoverylog.rewinder import Rewinder, log_begin
from broadsheet.embedded.broker import EmbeddedBroker
from broadsheet.journals.client import JournalClient
from broadsheet.wire.journal_pb2 import ApplyRequest
from broadsheet.wire.recorded_op_pb2 import FnodeSegments, FSMHints, Segment
from broadsheet.wire.recovery_pb2 import RewindStatus
from broadsheet.wire.shard_pb2 import ReplicaStatus, ShardSpec
from tests.support.broker import journal_spec

pytestmark = pytest.mark.etcd

SHARD = ItemId("shard-a")
NO_BROKER = "http://127.0.0.1:9"
"""Only a rewind to the whole log asks for one."""
FAILED, STANDBY, OTHER = MemberId("z", "failed"), MemberId("z", "standby"), MemberId("z", "other")


class Meddler:
    """Etcd, where something happens just before the next transaction that writes."""

    def __init__(self, etcd: EtcdClient, meddle: Callable[[], Awaitable[object]]) -> None:
        self._etcd = etcd
        self._meddle = meddle
        self.get_range = etcd.get_range

    async def txn(self, compares: Any, success: Any, failure: Any = ()) -> Any:
        """Let it happen, then perform the transaction. `Any`: as the client's."""
        if compares:
            await self._meddle()
        return await self._etcd.txn(compares, success, failure)


def hints(number: int) -> bytes:
    """Return stored hints unlike others."""
    segment = Segment(author=number, first_seq_no=number, last_seq_no=number)
    node = FnodeSegments(fnode=number, segments=[segment])
    return encode_hints(FSMHints(log="logs/shard-a", live_nodes=[node]))


def status(code: ReplicaStatus.Code.ValueType) -> bytes:
    """Return a replica's status as it is stored."""
    errors = ["it broke"] if code == ReplicaStatus.FAILED else []
    return ReplicaStatus(code=code, errors=errors).SerializeToString()


class Setting:
    """A shard in etcd: its primary failed, and a standby is there."""

    def __init__(self, etcd: EtcdClient, root: str) -> None:
        self.etcd = etcd
        self.root = root
        self.keys = Keys(root)
        self.spec = ShardSpec(
            id=SHARD, recovery_log_prefix="logs", hint_prefix=f"{root}/hints", hint_backups=2
        )
        self.primary = primary_hints_key(self.spec)
        self.backups = backup_hints_keys(self.spec)

    async def create(self) -> None:
        """Write all of it."""
        await self.etcd.put(self.keys.item(SHARD), self.spec.SerializeToString())
        for number, key in enumerate((self.primary, *self.backups), start=1):
            await self.etcd.put(key, hints(number))
        await self.assign(FAILED, 0, ReplicaStatus.FAILED)
        await self.assign(STANDBY, 1, ReplicaStatus.STANDBY)

    async def assign(self, member: MemberId, slot: int, code: ReplicaStatus.Code.ValueType) -> None:
        """Write an assignment, or its status."""
        await self.etcd.put(self.keys.assignment(SHARD, member, slot), status(code))

    async def contents(self) -> dict[bytes, bytes]:
        """Return every key below the root."""
        prefix = self.root.encode()
        found = await self.etcd.get_range(prefix, prefix_range_end(prefix))
        return {kv.key: kv.value for kv in found.kvs}

    async def rewind(
        self, *, force: bool, meddle: Callable[[], Awaitable[object]] | None = None
    ) -> RewindStatus.ValueType:
        """Rewind to the older backup; `meddle` happens between reading and writing."""
        # A port's two methods are all that a rewinder calls.
        etcd: Any = self.etcd if meddle is None else Meddler(self.etcd, meddle)
        rewinder = Rewinder(etcd, JournalClient(NO_BROKER), self.keys)
        spec = await rewinder.spec_of(SHARD)
        assert spec is not None
        return (await rewinder.perform(spec, backup=1, force=force)).status


@pytest.fixture
async def setting(etcd: EtcdClient, etcd_root: str) -> Setting:
    """The shard, written."""
    made = Setting(etcd, etcd_root)
    await made.create()
    return made


MEDDLES: dict[str, Callable[[Setting], Awaitable[object]]] = {
    "spec": lambda at: at.etcd.put(at.keys.item(SHARD), at.spec.SerializeToString()),
    "primary hints": lambda at: at.etcd.put(at.primary, hints(9)),
    "chosen backup": lambda at: at.etcd.put(at.backups[1], hints(9)),
    "another backup": lambda at: at.etcd.delete(at.backups[0]),
    "failed replica tries again": lambda at: at.assign(FAILED, 0, ReplicaStatus.BACKFILL),
    "failed replica goes": lambda at: at.etcd.delete(at.keys.assignment(SHARD, FAILED, 0)),
    "a primary comes": lambda at: at.assign(OTHER, 0, ReplicaStatus.IDLE),
    "a replica comes behind all": lambda at: at.assign(MemberId("zz", "z"), 7, ReplicaStatus.IDLE),
    "a replica comes before all": lambda at: at.assign(MemberId("a", "a"), 7, ReplicaStatus.IDLE),
}


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("meddle", MEDDLES.values(), ids=MEDDLES)
async def test_whatever_changes_in_between_stops_it(
    setting: Setting, meddle: Callable[[Setting], Awaitable[object]], *, force: bool
) -> None:
    """Nothing but the change itself is written."""
    after: dict[bytes, bytes] = {}

    async def change() -> None:
        await meddle(setting)
        after.update(await setting.contents())

    outcome = await setting.rewind(force=force, meddle=change)

    assert outcome == RewindStatus.REWIND_STATUS_CHANGED
    assert await setting.contents() == after


@pytest.mark.parametrize("force", [False, True])
async def test_statuses_and_other_shards_do_not_matter(setting: Setting, *, force: bool) -> None:
    """A healthy replica says something else of itself, and another shard gets a primary: it is done all the same."""

    async def change() -> None:
        await setting.assign(STANDBY, 1, ReplicaStatus.BACKFILL)
        await setting.etcd.put(
            setting.keys.assignment(ItemId("shard-b"), OTHER, 0), status(ReplicaStatus.PRIMARY)
        )

    outcome = await setting.rewind(force=force, meddle=change)

    assert outcome == RewindStatus.REWIND_STATUS_OK
    contents = await setting.contents()
    assert [contents[key] for key in (setting.primary, *setting.backups)] == [
        hints(3),
        hints(2),
        hints(1),
    ]
    prefix = setting.keys.assignments_of(SHARD)
    assert sum(key.startswith(prefix) for key in contents) == (0 if force else 2)


async def test_player_of_a_log_that_lost_its_end_does_not_wait_for_it(tmp_path: Path) -> None:
    """A broker lost a log's files, or has an older copy, and its head was reset: a read waits before the head, where
    nothing comes until the player appends. With nothing left it fails by name; with the beginning left, it goes on.
    """
    log, root = "logs/shard-a", tmp_path / "data"
    async with EmbeddedBroker(root) as broker, JournalClient(broker.address) as client:
        await client.apply([ApplyRequest.Change(upsert=journal_spec(log))])
        await client.append(log, b"older")
    shutil.copytree(root / "journals", tmp_path / "copy")
    async with EmbeddedBroker(root) as broker, JournalClient(broker.address) as client:
        await client.append(log, b"newer")
    for copy in (tmp_path / "copy", None):
        shutil.rmtree(root / "journals")
        if copy is not None:
            shutil.copytree(copy, root / "journals")
        async with EmbeddedBroker(root) as broker, JournalClient(broker.address) as client:
            await client.reset_head(log)
            player = Player(client, FSMHints(log=log), tmp_path / "played")
            player.hand_over(7)
            async with asyncio.timeout(10):
                if copy is not None:
                    assert (await player.run()).head > len(b"older" + b"newer")
                    continue
                with pytest.raises(LogDataLossError, match="is gone: restore"):
                    await player.run()


async def test_begin_of_a_log_that_lost_everything_is_its_head(tmp_path: Path) -> None:
    """A broker lost the log's files, and its head was reset. To play that as the whole log would begin with an empty
    store, and apply all messages again; a log in which nothing was ever written has nothing to lose.
    """
    log = "logs/shard-a"
    async with EmbeddedBroker(tmp_path / "data") as broker, JournalClient(broker.address) as client:
        await client.apply([ApplyRequest.Change(upsert=journal_spec(log))])
        assert await log_begin(client, log) == 0
        head = (await client.append(log, b"operations")).commit.end
        assert await log_begin(client, log) == 0
    shutil.rmtree(tmp_path / "data" / "journals")

    async with EmbeddedBroker(tmp_path / "data") as broker, JournalClient(broker.address) as client:
        await client.reset_head(log)
        assert await log_begin(client, log) == head
