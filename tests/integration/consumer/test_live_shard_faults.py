"""What could make a live shard lose, repeat or hang: restarts in place, callbacks that misbehave, futures cancelled."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import structlog

from broadsheet.consumer.application import Shard
from broadsheet.consumer.shard import primary, transaction_events as tx
from broadsheet.consumer.shard.environment import ShardConfig
from broadsheet.consumer.shard.transaction_loop import TransactionLoop
from broadsheet.consumer.stores.json_file import JsonFileStore
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.message.batch import Envelope
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.journals.message.publisher import Publisher
from broadsheet.journals.message.reader import read_batches
from broadsheet.journals.message.sequence_rules import SequenceOutcome
from broadsheet.journals.message.uuid import Flags, build_uuid
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.shard_pb2 import Checkpoint, ReplicaStatus
from tests.support.eventually import DEADLINE_SECONDS, eventually
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
from tests.support.members import Producer, committed

pytestmark = pytest.mark.etcd

OUTSIDE, CONTINUE, ACK = Flags.OUTSIDE_TXN, Flags.CONTINUE_TXN, Flags.ACK_TXN


async def written(journals: JournalClient, journal: str) -> list[tuple[int, int, int]]:
    """Return (producer, clock, flags) of every message in a journal, committed or not."""
    found: list[tuple[int, int, int]] = []
    async with aclosing(read_batches(journals, journal, JsonType(), block=False)) as batches:
        async for batch in batches:
            columns = (batch.producers, batch.clocks, batch.flags)
            found.extend(zip(*(column.tolist() for column in columns), strict=True))
    return found


async def test_publisher_is_another_after_acknowledgements_are_written_again(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """New sources restore the checkpoint, whose acknowledgements are appended once more, beside the next transaction's
    messages. Had these the same producer, one that came first would be rolled back by the old acknowledgement.
    """
    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    producer = Producer(journals)
    shard = host.start(spec, Counting(tmp_path, output=OUTPUT))
    end = await producer.publish(SOURCE, ["a"])
    await read_through(shard, source=end)

    await host.change_spec(spec_of(SHARD, SOURCE, SECOND_SOURCE))
    second_end = await producer.publish(SECOND_SOURCE, ["b"])
    await read_through(shard, source=end, second=second_end)

    messages = await written(journals, OUTPUT)
    acks = [message[:2] for message in messages if message[2] == Flags.ACK_TXN]
    repeated = {ack for ack in acks if acks.count(ack) > 1}
    assert repeated, "this test is of acknowledgements written again"
    for repeated_producer, clock in repeated:
        later = [m for m in messages if m[0] == repeated_producer and m[1] > clock]
        assert not later, "a repeated acknowledgement may roll these back"


@pytest.mark.parametrize("end", ["stop", "stop at once", "attempt fails"])
async def test_begun_transaction_is_finished_whatever_happens_meanwhile(
    host: ShardHost,
    journals: JournalClient,
    tmp_path: Path,
    end: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """`begin_txn` may take a semaphore that other shards wait for: each that returned is paired with `finished_txn`,
    though a stop or an error came while it ran.
    """
    beginning, proceed = threading.Event(), threading.Event()
    loops: list[TransactionLoop] = []

    class Noted(TransactionLoop):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **options)
            loops.append(self)

    monkeypatch.setattr(primary, "TransactionLoop", Noted)

    def hold(name: str) -> None:
        if name == "begin_txn" and not proceed.is_set():
            beginning.set()
            assert proceed.wait(30)

    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    application = Counting(tmp_path, fail=hold)
    config = ShardConfig(stop_grace_seconds=5, restart_delay_seconds=30)
    shard = host.start(spec, application, config=config)
    await Producer(journals).publish(SOURCE, ["a"])
    await eventually(lambda: beginning.is_set() and shard.is_ready)

    if end == "attempt fails":
        loops[-1].post(tx.SourceFailed(OSError("the disk is gone")))
        await eventually(lambda: not shard.is_ready)
        stopping = None
    else:
        grace = 0.0 if end == "stop at once" else None
        stopping = host.stop_soon(shard, grace_seconds=grace)
        await eventually(lambda: "StopRequested" in shard.story() or not shard.is_ready)
    proceed.set()
    if stopping is not None:
        await stopping

    await eventually(lambda: application.began == len(application.finished) == 1)
    (commit,) = application.finished
    assert isinstance(commit, Future)
    assert commit.exception() is not None


class Misdirecting(Counting):
    """Publishes to a journal whose name is none."""

    def consume_message(
        self, shard: Shard, store: JsonFileStore[Counts], envelope: Envelope, publisher: Publisher
    ) -> None:
        """Publish astray."""
        publisher.publish_uncommitted(MappedJournal("not a name", NDJSON), {}, JsonType())


async def test_publishing_to_no_journal_fails_the_shard(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """A mapping's error is the application's: FAILED names the journal, and it is tried again."""
    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    host.start(spec, Misdirecting(tmp_path))
    await Producer(journals).publish(SOURCE, ["a"])

    await eventually(lambda: host.says(SHARD, ReplicaStatus.FAILED, "not a name", "next at"))


class Cancelling(Counting):
    """Waits for commits and loses patience, which cancels what it waits for."""

    def finished_txn(self, shard: Shard, store: JsonFileStore[Counts], commit: Any) -> None:
        """Cancel."""
        commit.cancel()
        self.finished.append(commit)


async def test_application_cannot_cancel_a_commit(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """A task that awaits the commit through `asyncio.wrap_future` and is cancelled would cancel the commit too."""
    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    shard = host.start(spec, Cancelling(tmp_path, output=OUTPUT))

    end = await Producer(journals).publish(SOURCE, ["a"])
    await read_through(shard, source=end)

    assert await counts(shard) == {"a": 1}
    assert len(await committed(journals, OUTPUT)) == 1


@pytest.mark.parametrize("error", [asyncio.CancelledError(), SystemExit(3), StopIteration()])
async def test_any_exception_of_a_callback_fails_the_shard_and_no_more(
    host: ShardHost, journals: JournalClient, tmp_path: Path, error: BaseException
) -> None:
    """Neither the process nor the shard's task may end because the application ran a loop of its own, or exited."""
    broken = threading.Event()
    broken.set()

    def fail(key: str) -> None:
        if key == "a" and broken.is_set():
            raise error

    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    shard = host.start(spec, Counting(tmp_path, fail=fail))
    end = await Producer(journals).publish(SOURCE, ["a"])
    name = type(error).__name__
    await eventually(lambda: host.says(SHARD, ReplicaStatus.FAILED, name, "next at"))

    broken.clear()
    await read_through(shard, source=end)

    assert await counts(shard) == {"a": 1}


def _first_of_nothing(store: object) -> object:
    nothing: Iterator[object] = iter(())
    return next(nothing)


def _exit(store: object) -> object:
    raise SystemExit(1)


@pytest.mark.parametrize("query", [_first_of_nothing, _exit])
async def test_query_that_breaks_off_fails_its_caller(
    host: ShardHost, tmp_path: Path, query: Callable[[object], object]
) -> None:
    """`StopIteration` cannot be carried by a future: without care the caller would wait for ever."""
    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    shard = host.start(spec, Counting(tmp_path))
    with shard.acquire() as reference:
        await reference.wait_ready()
        with pytest.raises(RuntimeError):
            async with asyncio.timeout(DEADLINE_SECONDS):
                await reference.call(query)
    assert await counts(shard) == {}


async def test_messages_before_a_broken_one_are_committed(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """Who reads "at offset N: no message" and lifts the source's `min_offset` past it must not skip good messages."""
    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    producer = Producer(journals)
    end = await producer.publish(SOURCE, ["a", "b"])
    await journals.append(SOURCE, b"{broken\n")
    shard = host.start(spec, Counting(tmp_path, output=OUTPUT))

    await eventually(lambda: host.says(SHARD, ReplicaStatus.FAILED, f"at offset {end}", "next at"))
    past = await producer.publish(SOURCE, ["c"])
    repaired = spec_of(SHARD, SOURCE)
    repaired.sources[0].min_offset = end + len(b"{broken\n")
    await host.change_spec(repaired)
    await read_through(shard, source=past)

    assert await counts(shard) == {"a": 1, "b": 1, "c": 1}
    assert [m["n"] for m in await committed(journals, OUTPUT)] == [1, 2, 3]


async def test_what_sequencing_made_of_messages_is_counted_and_told(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """A producer that mixes both ways of publishing loses messages: an operator learns it from counters and the log.
    So do replays, and producers that lost state.
    """
    spec = spec_of(SHARD, SOURCE)
    spec.disable_wait_for_ack = True
    spec.ring_buffer_size = 1
    await host.assign(spec)
    uuids = [(1, 10, CONTINUE), (1, 20, OUTSIDE), (1, 15, ACK), (2, 10, CONTINUE)]
    uuids += [(2, 11, CONTINUE), (2, 12, ACK), (3, 10, 7)]
    for number, (producer, clock, flags) in enumerate(uuids):
        message = {"key": "k", "n": number}
        JsonType().set_uuid(message, build_uuid(producer, clock << 4, flags))
        response = await journals.append(SOURCE, JsonType().encode(message) + b"\n")
    with structlog.testing.capture_logs() as logs:
        shard = host.start(spec, Counting(tmp_path))
        await read_through(shard, source=response.commit.end)

    def queued(flag: str, outcome: SequenceOutcome) -> float | None:
        labels = {"journal": SOURCE, "flag": flag, "outcome": outcome.name}
        return host.registry.get_sample_value("gazette_sequencer_queued_total", labels)

    assert queued("OUTSIDE_TXN", SequenceOutcome.OUTSIDE_COMMIT) == 2
    assert queued("OUTSIDE_TXN", SequenceOutcome.SPAN_DISCARDED) == 1
    assert queued("UNKNOWN", SequenceOutcome.UNKNOWN_FLAGS) == 1
    assert queued("ACK_TXN", SequenceOutcome.ACK_ROLLBACK_LOST_PROGRESS) == 1
    assert queued("ACK_TXN", SequenceOutcome.ACK_COMMIT_REPLAY) == 1
    assert queued("CONTINUE_TXN", SequenceOutcome.CONTINUE_EXTEND_SPAN) == 1
    replayed = host.registry.get_sample_value("gazette_sequencer_replay_total", {"journal": SOURCE})
    assert replayed == 1
    told = {log["event"] for log in logs if log["event"].startswith("sequencer.")}
    assert told == {
        "sequencer.unknown_flags",
        "sequencer.span_discarded",
        "sequencer.producer_lost_progress",
    }


async def test_sources_that_differ_in_their_meta_are_read_each_by_itself(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """One journal may be several sources, each with an offset of its own, across restarts too."""
    spec = spec_of(SHARD, f"{SOURCE};one", f"{SOURCE};two")
    await host.assign(spec)
    producer = Producer(journals)
    first = host.start(spec, Counting(tmp_path))
    end = await producer.publish(SOURCE, ["a"])
    wanted = {f"{SOURCE};one": end, f"{SOURCE};two": end}
    await eventually(lambda: first.progress()[0] == wanted)
    await first.stop()

    second = host.start(spec, Counting(tmp_path))
    end = await producer.publish(SOURCE, ["b"])
    wanted = dict.fromkeys(wanted, end)
    await eventually(lambda: second.progress()[0] == wanted)

    assert await counts(second) == {"a": 2, "b": 2}


async def test_only_an_unsupported_spec_is_not_tried_again(host: ShardHost, tmp_path: Path) -> None:
    """A value that breaks a rule elsewhere, e.g. in a store, may be well the next time."""

    class Rejecting(Counting):
        def new_store(self, shard: Shard) -> JsonFileStore[Counts]:
            store = super().new_store(shard)

            def restore(shard: Shard) -> Checkpoint:
                raise ValidationError("offset", "expected a better one")

            store.restore_checkpoint = restore  # type: ignore[method-assign]
            return store

    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    host.start(spec, Rejecting(tmp_path))

    await eventually(lambda: host.says(SHARD, ReplicaStatus.FAILED, "a better one", "next at"))
