"""What a primary left unfinished when it died is rolled back by its successor, in every journal it had touched."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.allocator.keys import AuxiliaryKeys
from broadsheet.allocator.ops import prefix_range_end
from broadsheet.consumer.application import Shard
from broadsheet.consumer.errors import AssignmentLostError, CommitFencedError
from broadsheet.consumer.shard.environment import ShardConfig
from broadsheet.consumer.shard.live_shard import LiveShard
from broadsheet.consumer.shard.rollback.records import RollbackRecords
from broadsheet.consumer.stores.json_file import JsonFileStore
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.message.batch import Envelope
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.journals.message.publisher import Publisher
from broadsheet.journals.message.sequence_rules import SequenceOutcome
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.journal_pb2 import ApplyRequest
from broadsheet.wire.shard_pb2 import ReplicaStatus
from tests.support.eventually import eventually
from tests.support.live_shards import (
    OUTPUT,
    SECOND_SOURCE,
    SHARD,
    SOURCE,
    Counting,
    Counts,
    ShardHost,
    counts,
    read_through,
    spec_of,
)
from tests.support.members import Producer, committed, create_journals
from tests.support.pending_spans import sequenced

pytestmark = pytest.mark.etcd

OTHER_OUTPUT = "test/other"
QUICK = ShardConfig(restart_delay_seconds=0.05, stop_grace_seconds=2, rollback_again_seconds=0.3)
NOTHING_CARRIED = ShardConfig(restart_delay_seconds=0.05, stop_grace_seconds=2, carried_bytes_max=0)
"""As transactions are that publish much: their messages are in the journal before they commit."""


@dataclass
class Routing(Counting):
    """Echoes each message to the journal that its key names, if one; can be caught in a transaction's last callback."""

    caught: threading.Event = field(default_factory=threading.Event)
    catch: bool = False
    free: threading.Event = field(default_factory=threading.Event)

    def consume_message(
        self, shard: Shard, store: JsonFileStore[Counts], envelope: Envelope, publisher: Publisher
    ) -> None:
        """Count; publish."""
        super().consume_message(shard, store, envelope, publisher)
        key = envelope.message["key"]
        if "/" in key:
            echo = {"key": key, "n": envelope.message["n"]}
            publisher.publish_uncommitted(MappedJournal(key, NDJSON), echo, JsonType())

    def finalize_txn(
        self, shard: Shard, store: JsonFileStore[Counts], publisher: Publisher
    ) -> None:
        """Stay here, if so told: what was consumed is published, and will not be committed."""
        super().finalize_txn(shard, store, publisher)
        if self.catch:
            self.caught.set()
            assert self.free.wait(30)


@pytest.fixture
async def producer(host: ShardHost, journals: JournalClient) -> Producer:
    """A producer; the journals that shards publish to exist."""
    del host
    await create_journals(journals, OTHER_OUTPUT)
    return Producer(journals)


async def clocks_kept(host: ShardHost) -> dict[tuple[str, int], int]:
    """Return the clocks of what is on file for the shard, by journal and producer."""
    records = RollbackRecords(host.etcd, AuxiliaryKeys(host.key_space.keys.root))
    return {(each.journal, each.producer): each.clock for each in await records.of_shard(SHARD)}


async def kept(host: ShardHost) -> set[tuple[str, int]]:
    """Return journal and producer of what is on file for the shard."""
    return {*await clocks_kept(host)}


async def die_in_transaction(
    shard: LiveShard, application: Routing, journals: JournalClient, *touched: str
) -> None:
    """Abort the shard when it has published to `touched` and not yet begun to commit, as `kill -9` would."""
    await eventually(application.caught.is_set)

    async def all_pending() -> bool:
        return all([(await sequenced(journals, journal)).pending for journal in touched])

    await eventually(all_pending)
    async with TaskGroup() as group:
        group.start_soon(shard.stop(grace_seconds=0), name="stop")
        await shard.terminal
        # Only now: no acknowledgement is ever made.
        application.free.set()


async def test_journal_first_touched_by_an_aborted_transaction_is_rolled_back(
    host: ShardHost, journals: JournalClient, producer: Producer, tmp_path: Path
) -> None:
    """One output was committed to before, one is new, as the primary dies between publishing and commit. Its
    successor leaves nothing pending in either, by ordinary rollbacks, and publishes everything once.
    """
    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    doomed = Routing(tmp_path)
    first = host.start(spec, doomed, config=NOTHING_CARRIED)
    await read_through(first, source=await producer.publish(SOURCE, [OUTPUT]))
    # A transaction without publications: the checkpoint's own acknowledgements are of no journal.
    await read_through(first, source=await producer.publish(SOURCE, ["quiet"]))
    doomed.catch = True
    end = await producer.publish(SOURCE, [OUTPUT, OTHER_OUTPUT])
    await die_in_transaction(first, doomed, journals, OUTPUT, OTHER_OUTPUT)

    second = host.start(spec, Routing(tmp_path))
    await read_through(second, source=end)

    for journal, numbers in ((OUTPUT, [1, 3]), (OTHER_OUTPUT, [4])):
        found = await sequenced(journals, journal)
        assert found.pending == []
        assert SequenceOutcome.ACK_ROLLBACK_LOST_PROGRESS not in found.outcomes
        assert [m["n"] for m in await committed(journals, journal)] == numbers
    assert await counts(second) == {OUTPUT: 2, "quiet": 1, OTHER_OUTPUT: 1}


async def test_aborted_transaction_that_is_small_leaves_nothing_where_there_were_others(
    host: ShardHost, journals: JournalClient, producer: Producer, tmp_path: Path
) -> None:
    """Its messages were to come with their acknowledgement. A journal that it is the first to touch tells before the
    commit whether it takes messages, so there they stand, and are rolled back.
    """
    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    doomed = Routing(tmp_path)
    first = host.start(spec, doomed)
    await read_through(first, source=await producer.publish(SOURCE, [OUTPUT]))
    before = (await sequenced(journals, OUTPUT)).messages
    doomed.catch = True
    end = await producer.publish(SOURCE, [OUTPUT, OTHER_OUTPUT])
    await die_in_transaction(first, doomed, journals, OTHER_OUTPUT)
    assert (await sequenced(journals, OUTPUT)).messages == before

    second = host.start(spec, Routing(tmp_path))
    await read_through(second, source=end)

    for journal, numbers in ((OUTPUT, [1, 2]), (OTHER_OUTPUT, [3])):
        assert (await sequenced(journals, journal)).pending == []
        assert [m["n"] for m in await committed(journals, journal)] == numbers


async def test_journal_that_no_successor_touches_is_rolled_back_nonetheless(
    host: ShardHost, journals: JournalClient, producer: Producer, tmp_path: Path
) -> None:
    """The first successor dies, too, before it did anything; the next publishes nothing at all there."""
    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    doomed = Routing(tmp_path, catch=True)
    await producer.publish(SOURCE, [OTHER_OUTPUT])
    await die_in_transaction(host.start(spec, doomed), doomed, journals, OTHER_OUTPUT)
    stillborn = Routing(tmp_path, fail=fail_on("new_store"))
    await host.start(spec, stillborn).stop(grace_seconds=0)

    successor = host.start(spec, Counting(tmp_path))

    async def nothing_pending() -> bool:
        return not (await sequenced(journals, OTHER_OUTPUT)).pending

    await eventually(nothing_pending)
    await eventually(lambda: successor.progress()[1].get(OTHER_OUTPUT, 0) > 0)
    assert await committed(journals, OTHER_OUTPUT) == []


async def test_zombie_that_publishes_after_the_rollback_is_rolled_back_again(
    host: ShardHost, journals: JournalClient, producer: Producer, tmp_path: Path
) -> None:
    """A primary sleeps through its replacement in mid-transaction, then its messages go out after all: the successor
    comes back to them.
    """
    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    asleep, awake = threading.Event(), threading.Event()

    def sleep(key: str) -> None:
        if key == "last":
            asleep.set()
            assert awake.wait(30)

    zombie = host.start(spec, Counting(tmp_path, output=OUTPUT, fail=sleep), config=NOTHING_CARRIED)
    await read_through(zombie, source=await producer.publish(SOURCE, ["a"]))
    end = await producer.publish(SOURCE, ["b", "last"])
    await eventually(asleep.is_set)
    host.blind(zombie)
    await host.unassign(SHARD)
    await host.assign(spec)
    config = ShardConfig(restart_delay_seconds=0.05, rollback_again_seconds=2)
    successor = host.start(spec, Counting(tmp_path, output=OUTPUT), config=config)
    await read_through(successor, source=end)
    assert (await sequenced(journals, OUTPUT)).pending == []
    terminal = zombie.terminal
    awake.set()
    assert isinstance(await terminal, CommitFencedError)
    assert len((await sequenced(journals, OUTPUT)).pending) == 1, "this test is of late messages"

    async def nothing_pending() -> bool:
        return not (await sequenced(journals, OUTPUT)).pending

    await eventually(nothing_pending)
    assert [m["n"] for m in await committed(journals, OUTPUT)] == [1, 2, 3]


async def test_zombie_may_not_publish_into_a_journal_that_is_new_to_it(
    host: ShardHost, journals: JournalClient, producer: Producer, tmp_path: Path
) -> None:
    """Nobody would know of its messages there: etcd itself refuses the record, and so the append never goes out."""
    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    doomed = Routing(tmp_path, catch=True)
    zombie = host.start(spec, doomed)
    await producer.publish(SOURCE, ["quiet"])
    await eventually(doomed.caught.is_set)
    host.blind(zombie)
    await host.unassign(SHARD)
    await host.assign(spec)
    await producer.publish(SOURCE, [OTHER_OUTPUT])
    terminal = zombie.terminal
    doomed.catch = False
    doomed.free.set()

    assert isinstance(await terminal, AssignmentLostError)
    assert (await sequenced(journals, OTHER_OUTPUT)).messages == 0


async def test_records_are_written_once_a_journal_and_dropped_when_superseded(
    host: ShardHost, journals: JournalClient, producer: Producer, tmp_path: Path
) -> None:
    """In the steady state nothing is written to etcd, however many transactions there are; a successor that publishes
    to the same journal replaces the record of the one before.
    """
    spec = spec_of(SHARD, SOURCE, max_seconds=0.01)
    await host.assign(spec)
    application = Counting(tmp_path, output=OUTPUT)
    first = host.start(spec, application, config=QUICK)
    await eventually(lambda: host.says(SHARD, ReplicaStatus.PRIMARY))
    await read_through(first, source=await producer.publish(SOURCE, ["a"]))
    of_first = await kept(host)
    prefix = AuxiliaryKeys(host.key_space.keys.root).prefix
    before = await host.etcd.newest_revision(prefix)
    for _ in range(20):
        await read_through(first, source=await producer.publish(SOURCE, ["a"]))

    assert await host.etcd.newest_revision(prefix) == before
    assert application.began >= 20
    assert [journal for journal, _ in of_first] == [OUTPUT]
    await first.stop()
    second = host.start(spec, Counting(tmp_path, output=OUTPUT), config=QUICK)
    await read_through(second, source=await producer.publish(SOURCE, ["a"]))

    async def replaced() -> bool:
        found = await kept(host)
        return len(found) == 1 and not found & of_first

    await eventually(replaced)


async def test_new_producer_of_one_primary_replaces_the_record_at_once(
    host: ShardHost, producer: Producer, tmp_path: Path
) -> None:
    """Changed sources restore the checkpoint and make another producer; the one before has finished well."""
    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    shard = host.start(spec, Counting(tmp_path, output=OUTPUT))
    await read_through(shard, source=await producer.publish(SOURCE, ["a"]))
    before = await kept(host)
    await host.change_spec(spec_of(SHARD, SOURCE, SECOND_SOURCE))
    await read_through(shard, second=await producer.publish(SECOND_SOURCE, ["b"]))

    after = await kept(host)

    assert len(before) == len(after) == 1
    assert before != after


@pytest.mark.parametrize("again_seconds", [0.001, 0.3], ids=["before it is known", "after"])
async def test_deleted_journal_is_forgotten(
    host: ShardHost,
    journals: JournalClient,
    producer: Producer,
    tmp_path: Path,
    again_seconds: float,
) -> None:
    """Nothing can be pending in a journal that is gone: no primary asks for it twice.

    Also if the broker's answer comes only after the second undoing, for which no append waits.
    """
    quick = replace(QUICK, rollback_again_seconds=again_seconds)
    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    first = host.start(spec, Routing(tmp_path), config=QUICK)
    await read_through(first, source=await producer.publish(SOURCE, [OTHER_OUTPUT]))
    await read_through(first, source=await producer.publish(SOURCE, [OUTPUT]))
    await first.stop()
    revision = (await journals.get(OTHER_OUTPUT)).mod_revision
    await journals.apply([ApplyRequest.Change(delete=OTHER_OUTPUT, expect_mod_revision=revision)])

    second = host.start(spec, Routing(tmp_path), config=quick)
    await read_through(second, source=await producer.publish(SOURCE, ["quiet"]))

    async def forgotten() -> bool:
        return {journal for journal, _ in await kept(host)} == {OUTPUT}

    await eventually(forgotten)
    assert await kept(host), "the other journal's stays: a client may still ask where it ends"


async def test_rollbacks_of_a_successor_are_on_file_before_it_publishes(
    host: ShardHost, producer: Producer, tmp_path: Path
) -> None:
    """Its first append waits for nothing then. Where it publishes they are made precise."""
    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    first = host.start(spec, Routing(tmp_path))
    await read_through(first, source=await producer.publish(SOURCE, [OUTPUT, OTHER_OUTPUT]))
    former = await clocks_kept(host)
    assert {journal for journal, _ in former} == {OUTPUT, OTHER_OUTPUT}
    await first.stop(grace_seconds=2)

    may_open = threading.Event()

    def open_late(called: str) -> None:
        # Foreseeing goes on beside the restore, and only as long.
        assert called != "new_store" or may_open.wait(30)

    second = host.start(spec, Routing(tmp_path, fail=open_late))

    async def foreseen() -> dict[str, int]:
        return {
            journal: clock
            for (journal, number), clock in (await clocks_kept(host)).items()
            if (journal, number) not in former
        }

    await eventually(foreseen)
    before = await foreseen()
    assert before.keys() == {OUTPUT, OTHER_OUTPUT}
    may_open.set()
    await read_through(second, source=await producer.publish(SOURCE, [OUTPUT]))

    async def precise() -> bool:
        after = await foreseen()
        assert after[OTHER_OUTPUT] == before[OTHER_OUTPUT]
        return after[OUTPUT] > before[OUTPUT]

    await eventually(precise)


async def test_records_of_other_shards_and_broken_ones_are_passed_over(
    host: ShardHost, etcd: EtcdClient, producer: Producer, tmp_path: Path
) -> None:
    """A shard whose id begins like ours has records of its own; what cannot be read must not stop a take-over."""
    prefix = AuxiliaryKeys(host.key_space.keys.root).prefix + b"rollbacks/"
    await etcd.put(prefix + f"{SHARD}-more#010203040506#{OUTPUT}".encode(), bytes(20))
    await etcd.put(prefix + f"{SHARD}#010203040506#{OUTPUT}".encode(), b"short")
    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)

    shard = host.start(spec, Counting(tmp_path, output=OUTPUT))
    await read_through(shard, source=await producer.publish(SOURCE, ["a"]))

    assert len(await kept(host)) == 1
    result = await etcd.get_range(prefix, prefix_range_end(prefix))
    assert len(result.kvs) == 3


def fail_on(name: str) -> Callable[[str], None]:
    """Return a function that raises when it is called with `name`."""

    def fail(called: str) -> None:
        if called == name:
            raise RuntimeError(f"{name} fails")

    return fail
