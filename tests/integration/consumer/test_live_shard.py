"""Live shards over a real etcd, a real broker and real files: from the assignment to the last commit."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path

import pytest

from broadsheet.consumer.application import Shard
from broadsheet.consumer.errors import ShardStoppedError
from broadsheet.consumer.recoverylog.hints import encode_hints, primary_hints_key, recovery_log_of
from broadsheet.consumer.shard.environment import ShardConfig
from broadsheet.consumer.stores.json_file import JsonFileStore
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.message.batch import MessageBatch
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.journals.message.publisher import Publisher
from broadsheet.journals.message.uuid import MessageClock, new_producer_id
from broadsheet.wire.recorded_op_pb2 import FnodeSegments, FSMHints, Segment
from broadsheet.wire.shard_pb2 import Checkpoint, ReplicaStatus
from tests.support.eventually import DEADLINE_SECONDS, eventually
from tests.support.live_shards import (
    OUTPUT,
    SECOND_SOURCE,
    SHARD,
    SOURCE,
    Counting,
    ShardHost,
    counts,
    read_through,
    spec_of,
)
from tests.support.members import Producer, committed, create_journals
from tests.support.recorded_tally import SqliteTally, create_logs, recorded

pytestmark = pytest.mark.etcd


async def test_shard_consumes_commits_and_publishes(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """The whole way of a message: journal, application, store, acknowledgement; status and metrics tell of it."""
    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    end = await Producer(journals).publish(SOURCE, ["a", "b", "a"])
    application = Counting(tmp_path, output=OUTPUT)

    shard = host.start(spec, application)
    await read_through(shard, source=end)

    assert await counts(shard) == {"a": 2, "b": 1}
    assert [m["n"] for m in await committed(journals, OUTPUT)] == [1, 2, 3]
    read, published = shard.progress()
    assert read == {SOURCE: end}
    assert published == {OUTPUT: await journals.write_head(OUTPUT)}
    await eventually(lambda: host.says(SHARD, ReplicaStatus.PRIMARY))
    messages = host.registry.get_sample_value(
        "gazette_shard_read_messages_total", {"shard": shard.fqn}
    )
    assert messages == 3
    assert application.began == len(application.finished)


async def test_next_primary_goes_on_where_the_last_one_stopped(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """State, offsets and outputs survive a stop; a producer's span that was open then commits after it, by replay."""
    spec = spec_of(SHARD, SOURCE)
    spec.disable_wait_for_ack = True
    await host.assign(spec)
    first = host.start(spec, Counting(tmp_path, output=OUTPUT))
    clock = MessageClock()
    clock.update(time.time())
    publisher = Publisher(clock, new_producer_id())
    target = MappedJournal(SOURCE, NDJSON)
    for number in (101, 102):
        publisher.publish_uncommitted(target, {"key": "span", "n": number}, JsonType())
    (span,) = publisher.take_appends()
    await journals.append(SOURCE, span.content)
    end = await Producer(journals).publish(SOURCE, ["a"])
    await read_through(first, source=end)
    await first.stop()

    (intent,) = publisher.build_ack_intents()
    end = (await journals.append(SOURCE, intent.content)).commit.end
    second = host.start(spec, Counting(tmp_path, output=OUTPUT))
    await read_through(second, source=end)

    assert await counts(second) == {"a": 1, "span": 2}
    assert [m["n"] for m in await committed(journals, OUTPUT)] == [1, 101, 102]


async def test_promotion_ends_a_rest(host: ShardHost, tmp_path: Path) -> None:
    """Who handed a shard over rests before it stands by, but not if the shard comes back."""
    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec, slot=1)
    shard = host.start(spec, Counting(tmp_path), slot=1)

    async with asyncio.timeout(DEADLINE_SECONDS):
        await asyncio.gather(shard.rest(3600.0), host.promote(SHARD, slot=1))

    assert shard.primary


async def test_standby_is_promoted_in_place(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """A standby says so and waits; its promotion starts the primary without a new object."""
    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec, slot=1)
    shard = host.start(spec, Counting(tmp_path), slot=1)
    await eventually(lambda: host.says(SHARD, ReplicaStatus.STANDBY, slot=1))
    assert not shard.primary

    await host.promote(SHARD, slot=1)
    end = await Producer(journals).publish(SOURCE, ["a"])
    await read_through(shard, source=end)

    await eventually(lambda: host.says(SHARD, ReplicaStatus.PRIMARY))
    assert await counts(shard) == {"a": 1}


async def test_embedded_store_without_a_log_waits_until_the_spec_names_one(
    host: ShardHost, journals: JournalClient, etcd_root: str, tmp_path: Path
) -> None:
    """A store that has nowhere to keep its files names the field; a repaired spec is served at once."""
    spec = spec_of(SHARD, SOURCE)
    await create_logs(journals, SHARD)
    await host.assign(spec)
    shard = host.start(spec, SqliteTally(tmp_path, output=""))
    await eventually(
        lambda: host.says(SHARD, ReplicaStatus.FAILED, "recovery_log_prefix", "spec changes")
    )
    with pytest.raises(ShardStoppedError, match="recovery_log_prefix"):
        shard.acquire()

    await host.change_spec(recorded(spec_of(SHARD, SOURCE), etcd_root))

    await eventually(lambda: host.says(SHARD, ReplicaStatus.PRIMARY))


async def test_standby_that_found_a_loss_serves_as_soon_as_it_is_promoted(
    host: ShardHost, journals: JournalClient, etcd_root: str, tmp_path: Path
) -> None:
    """Plan: a standby finds that its hints lie beyond the end of the log; they are mended, and it is promoted. Why:
    its judgement was made of its own copy. If its wait outlasted the promotion, the shard would stand still for it.
    """
    spec = recorded(spec_of(SHARD, SOURCE), etcd_root)
    await create_logs(journals, SHARD)
    segment = Segment(author=7, first_seq_no=1, first_offset=100, last_seq_no=2, last_offset=300)
    ahead = FSMHints(
        log=recovery_log_of(spec), live_nodes=[FnodeSegments(fnode=1, segments=[segment])]
    )
    await host.etcd.put(primary_hints_key(spec), encode_hints(ahead))
    await host.assign(spec, slot=1)
    config = ShardConfig(restart_delay_seconds_max=600.0, stop_grace_seconds=2)

    host.start(spec, SqliteTally(tmp_path, output=""), slot=1, config=config)
    await eventually(lambda: host.says(SHARD, ReplicaStatus.FAILED, "(data loss)", slot=1))
    told = "\n".join(host.status(SHARD, slot=1).errors)
    await host.etcd.delete(primary_hints_key(spec))
    await host.promote(SHARD, slot=1)

    await eventually(lambda: host.says(SHARD, ReplicaStatus.PRIMARY))
    assert "QUARANTINED" not in told, "a standby reads only: its shard is not set aside"


@pytest.mark.parametrize("at", ["new_store", "message_type", "begin_txn", "poison", "finalize_txn"])
async def test_failing_application_restarts_and_loses_nothing(
    host: ShardHost, journals: JournalClient, tmp_path: Path, at: str
) -> None:
    """FAILED shows which callback raised what, and when the next attempt is; it then serves, each message once."""
    broken = threading.Event()
    broken.set()

    called: list[str] = []

    def fail(name: str) -> None:
        called.append(name)
        if name == at and broken.is_set():
            raise ValueError(f"no luck with {name}")

    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    end = await Producer(journals).publish(SOURCE, ["a", "b", "poison"])
    shard = host.start(spec, Counting(tmp_path, output=OUTPUT, fail=fail))
    await eventually(
        lambda: host.says(
            SHARD, ReplicaStatus.FAILED, "ValueError", f"no luck with {at}", "next at"
        )
    )

    assert ("a" in called) is (at in ("poison", "finalize_txn"))
    broken.clear()
    await read_through(shard, source=end)

    await eventually(lambda: host.says(SHARD, ReplicaStatus.PRIMARY))
    assert not host.status(SHARD).errors
    assert await counts(shard) == {"a": 1, "b": 1, "poison": 1}
    assert sorted(m["n"] for m in await committed(journals, OUTPUT)) == [1, 2, 3]


async def test_missing_source_is_named_and_awaited(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """A source that does not exist fails the shard with its name; once it exists the shard reads it."""
    spec = spec_of(SHARD, "test/absent")
    await host.assign(spec)
    shard = host.start(spec, Counting(tmp_path))
    await eventually(lambda: host.says(SHARD, ReplicaStatus.FAILED, "test/absent"))

    await create_journals(journals, "test/absent")
    end = await Producer(journals).publish("test/absent", ["a"])

    await eventually(lambda: shard.progress()[0].get("test/absent") == end)


async def test_large_errors_are_cut(host: ShardHost, tmp_path: Path) -> None:
    """Each member's memory holds every status, so an error may not carry a dump."""

    def fail(name: str) -> None:
        raise ValueError("x" * 10_000)

    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    host.start(spec, Counting(tmp_path, fail=fail))

    await eventually(lambda: host.says(SHARD, ReplicaStatus.FAILED, "[truncated]"))
    assert all(len(error) < 2100 for error in host.status(SHARD).errors)


async def test_sources_added_to_the_spec_are_read(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """A newer spec's sources are taken over at a commit, without losing or repeating what was read."""
    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    producer = Producer(journals)
    application = Counting(tmp_path, output=OUTPUT)
    shard = host.start(spec, application)
    end = await producer.publish(SOURCE, ["a"])
    await read_through(shard, source=end)

    await host.change_spec(spec_of(SHARD, SOURCE, SECOND_SOURCE))
    second_end = await producer.publish(SECOND_SOURCE, ["b"])
    end = await producer.publish(SOURCE, ["c"])
    await read_through(shard, source=end, second=second_end)

    assert await counts(shard) == {"a": 1, "b": 1, "c": 1}
    assert len(application.stores) == 1


class Producing(Counting):
    """Brings its messages itself, a few at a time: after each lot its input ends, and begins again."""

    async def read_messages(
        self, shard: Shard, store: JsonFileStore[dict[str, int]], checkpoint: Checkpoint
    ) -> AsyncIterator[MessageBatch]:
        """Yield two messages behind the checkpoint, of ten."""
        del shard, store
        begin = checkpoint.sources["feed"].read_through
        for offset in range(begin, min(begin + 2, 10)):
            yield self._batch(offset)
        if begin >= 10:
            await asyncio.Event().wait()

    def replay_range(
        self,
        shard: Shard,
        store: JsonFileStore[dict[str, int]],
        *,
        journal: str,
        begin: int,
        end: int,
    ) -> AsyncIterator[MessageBatch]:
        """Nothing is ever pending."""
        raise AssertionError("no replay is needed")

    def read_through(
        self, shard: Shard, store: JsonFileStore[dict[str, int]], offsets: Mapping[str, int]
    ) -> Mapping[str, int]:
        """Wait for what is asked."""
        return offsets

    @staticmethod
    def _batch(offset: int) -> MessageBatch:
        payload = f'{{"key": "k{offset}", "n": {offset}}}'.encode()
        return MessageBatch("feed", [offset], [offset + 1], [0], [0], [0], [payload], JsonType())


async def test_application_that_brings_its_messages_restarts_from_each_checkpoint(
    host: ShardHost, tmp_path: Path
) -> None:
    """When its input ends, everything is committed, the checkpoint restored, and the input begins behind it."""
    spec = spec_of(SHARD)
    await host.assign(spec)
    shard = host.start(spec, Producing(tmp_path))

    with shard.acquire() as reference:
        await reference.wait_for_offsets({"feed": 10})

    assert await counts(shard) == {f"k{offset}": 1 for offset in range(10)}
