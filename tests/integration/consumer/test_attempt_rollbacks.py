"""The rollbacks of one attempt to serve a shard, without the shard: what is on file, and who waits for what."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import pytest

from broadsheet.allocator.keys import AuxiliaryKeys
from broadsheet.allocator.model import ItemId
from broadsheet.allocator.ops import Delete, Put
from broadsheet.consumer.errors import AssignmentLostError
from broadsheet.consumer.shard.progress import UNDONE, Progress
from broadsheet.consumer.shard.replica_status import prove_assignment
from broadsheet.consumer.shard.rollback.keeper import (
    JournalSearch,
    PublishingAttempt,
    Rollbacks,
    UndoAppends,
)
from broadsheet.consumer.shard.rollback.records import HeldRecords, RollbackRecords
from broadsheet.journals.append_service import AppendService
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.journals.message.publisher import Publisher
from broadsheet.journals.message.rollback import Rollback
from broadsheet.journals.message.uuid import (
    Flags,
    MessageClock,
    build_uuid,
    clock_at,
    format_uuid,
)
from broadsheet.runtime.clock import SystemClock
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.shard_pb2 import Checkpoint
from tests.support.live_shards import (
    MEMBER,
    OUTPUT,
    SHARD,
    SOURCE,
    Counting,
    ShardHost,
    spec_of,
)
from tests.support.pending_spans import sequenced

pytestmark = pytest.mark.etcd


async def test_rollback_brought_forward_is_not_replaced_by_the_precise_one_before_it(
    host: ShardHost, journals: JournalClient
) -> None:
    """A shard's sources change right after a take-over: its first producer is a former one before its foreseen rollback
    was made precise. What stands is the rollback that knows what that producer committed.
    """
    await host.assign(spec_of(SHARD, SOURCE))
    records = RollbackRecords(host.etcd, AuxiliaryKeys(host.key_space.keys.root))
    assignment = host.key_space.assignments[ItemId(SHARD), MEMBER, 0]
    nanoseconds = time.time_ns()
    now = clock_at(nanoseconds)
    await records.write(assignment, keep=[rollback_of(1 << 40, now)])
    progress = Progress([SOURCE], awaits=(UNDONE,))
    progress.update({SOURCE: 5}, {})
    ended: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    async with TaskGroup() as group:
        appends = AppendService(journals)
        rollbacks = Rollbacks(
            HeldRecords(records, SHARD, lambda: assignment),
            PublishingAttempt(2 << 40, transactions=lambda: 0),
            NeverAsked(),
            UndoAppends(SHARD, appends, progress, again_seconds=30.0),
            SystemClock(),
        )
        rollbacks.resumed.set()
        await rollbacks.foresee()
        await rollbacks.take_over()
        precise = rollback_of(2 << 40, clock_at(nanoseconds + 10**9))
        committed_at = clock_at(nanoseconds + 2 * 10**9)
        group.start_soon(appends.run(), name="append")
        group.start_soon(rollbacks.run(), name="rollbacks")
        group.start_soon(rollbacks.undo(rollbacks.begin(Checkpoint())), name="undo")

        assert rollbacks.keep([precise]).done(), "what is foreseen stands for it"
        intents = {OUTPUT: precise.at(committed_at).content}
        await asyncio.wrap_future(rollbacks.begin(Checkpoint(ack_intents=intents)))
        assert await progress.wait_for({SOURCE: 5}, ended=ended), "the first undoing is over"
        group.stop()

    found = {each.producer: each.clock for each in await records.of_shard(SHARD)}
    assert found == {1 << 40: now, 2 << 40: committed_at}


async def test_journal_that_cannot_be_appended_to_holds_up_answers_for_a_while_only(
    host: ShardHost, journals: JournalClient
) -> None:
    """Who waits for offsets waits for all rollbacks, lest it be told too little; but not for ever for one of them."""
    await host.assign(spec_of(SHARD, SOURCE))
    records = RollbackRecords(host.etcd, AuxiliaryKeys(host.key_space.keys.root))
    assignment = host.key_space.assignments[ItemId(SHARD), MEMBER, 0]
    left = Rollback(journal=OUTPUT, producer=1 << 40, clock=1600, content=b"an acknowledgement\n")
    await records.write(assignment, keep=[left])
    progress = Progress([SOURCE], awaits=(UNDONE,))
    progress.update({SOURCE: 5}, {})
    rollbacks = Rollbacks(
        HeldRecords(records, SHARD, lambda: assignment),
        PublishingAttempt(2 << 40, transactions=lambda: 0),
        NeverAsked(),
        # The service is never run: it takes appends, and performs none.
        UndoAppends(SHARD, AppendService(journals), progress, again_seconds=0.1),
        SystemClock(),
    )
    rollbacks.resumed.set()
    await rollbacks.take_over()
    ended: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()
    async with TaskGroup() as group:
        group.start_soon(rollbacks.undo(rollbacks.begin(Checkpoint())), name="undo")

        assert await progress.wait_for({SOURCE: 5}, ended=ended)
        group.stop()
    assert progress.copies() == ({SOURCE: 5}, {})
    assert await records.of_shard(SHARD) == [left]


async def test_messages_that_a_sleeper_publishes_for_an_absorbed_shard_are_rolled_back(
    host: ShardHost, journals: JournalClient
) -> None:
    """The shard whose primary would roll back once more is gone: the survivor does, and has its records."""
    clock, producer = MessageClock(), 1 << 40
    clock.update(time.time())
    publisher = Publisher(clock, producer)
    for shard_id in (SHARD, "absorbed"):
        await host.assign(spec_of(shard_id, SOURCE))
    records = RollbackRecords(host.etcd, AuxiliaryKeys(host.key_space.keys.root))
    ours, theirs = (
        host.key_space.assignments[ItemId(each), MEMBER, 0] for each in (SHARD, "absorbed")
    )
    left = rollback_of(producer, clock_at(time.time_ns()))
    await records.write(theirs, keep=[left])
    async with TaskGroup() as group:
        appends = AppendService(journals)
        group.start_soon(appends.run(), name="append")
        rollbacks = Rollbacks(
            HeldRecords(records, SHARD, lambda: ours),
            PublishingAttempt(2 << 40, transactions=lambda: 0),
            JournalSearch(journals),
            UndoAppends(SHARD, appends, Progress([SOURCE]), again_seconds=0.1),
            SystemClock(),
        )
        publisher.publish_uncommitted(MappedJournal(OUTPUT, NDJSON), {"key": "late"}, JsonType())
        (late,) = publisher.take_appends()
        await journals.append(late.journal, late.content)
        assert (await sequenced(journals, OUTPUT)).pending == [producer]

        await rollbacks.inherit("absorbed")
        group.stop()

    assert (await sequenced(journals, OUTPUT)).pending == []
    assert await records.of_shard("absorbed") == []
    assert [each.producer for each in await records.of_shard(SHARD)] == [producer]


async def test_assignment_of_a_shard_that_was_made_again_proves_nothing(
    host: ShardHost, tmp_path: Path
) -> None:
    """A merge deleted the shard, and a split made another one of its id: its keys are not those of our store."""
    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    live = host.start(spec, Counting(tmp_path))
    item = host.key_space.keys.item(ItemId(SHARD))
    (kv,) = (await host.etcd.get_range(item)).kvs
    live.created_revision = kv.create_revision
    await prove_assignment(host.etcd, live, item)

    await host.etcd.txn((), (Delete(item),))
    await host.etcd.txn((), (Put(item, spec.SerializeToString()),))

    with pytest.raises(AssignmentLostError, match="a later shard has its id"):
        await prove_assignment(host.etcd, live, item)
    await live.stop()


class NeverAsked:
    """A search that no rollback here gives a reason for."""

    async def has_landed(self, rollback: Rollback) -> bool:
        """No intent here is of long ago."""
        raise AssertionError(rollback)

    async def last_landed(self, rollback: Rollback) -> int | None:
        """All that is on file here is of producers that the checkpoint names, or there is no checkpoint."""
        raise AssertionError(rollback)


def rollback_of(producer: int, clock: int) -> Rollback:
    """Return one in JSON, as publishers frame it."""
    uuid = format_uuid(build_uuid(producer, clock, Flags.ACK_TXN))
    content = f'{{"_meta":{{"uuid":"{uuid}"}}}}\n'.encode()
    return Rollback(journal=OUTPUT, producer=producer, clock=clock, content=content)
