"""How long a transaction stays open, as seen from outside: for acknowledgements, for its minimum, until its maximum."""

from __future__ import annotations

import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path

import pytest

from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.journals.message.publisher import Publisher
from broadsheet.journals.message.uuid import MessageClock, new_producer_id
from tests.support.eventually import eventually
from tests.support.live_shards import (
    OUTPUT,
    SHARD,
    SOURCE,
    Counting,
    ShardHost,
    counts,
    read_through,
    spec_of,
)
from tests.support.members import Producer, committed

pytestmark = pytest.mark.etcd


class Upstream:
    """Publishes in transactions, as another shard would."""

    def __init__(self, journals: JournalClient) -> None:
        self._journals = journals
        clock = MessageClock()
        clock.update(time.time())
        self._publisher = Publisher(clock, new_producer_id())
        self._published = 0

    async def publish(self, keys: Iterable[str]) -> int:
        """Append messages that await an acknowledgement; return the offset after them, bytes."""
        target = MappedJournal(SOURCE, NDJSON)
        for key in keys:
            self._published += 1
            message = {"key": key, "n": 1_000 + self._published}
            self._publisher.publish_uncommitted(target, message, JsonType())
        (pending,) = self._publisher.take_appends()
        return (await self._journals.append(SOURCE, pending.content)).commit.end

    async def acknowledge(self) -> int:
        """Commit them; return the offset after the acknowledgement, bytes."""
        (intent,) = self._publisher.build_ack_intents()
        return (await self._journals.append(SOURCE, intent.content)).commit.end


class Watched(Counting):
    """Knows which keys it has consumed, committed or not."""

    def __init__(self, directory: Path, *, output: str = "") -> None:
        self.consumed: list[str] = []
        super().__init__(directory, output=output, fail=self.consumed.append)

    def has_consumed(self, key: str) -> bool:
        """Return whether a message of a key was consumed."""
        return key in self.consumed


async def test_transaction_waits_for_an_acknowledgement_that_is_due(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """Messages of a producer are read and not yet acknowledged: the transaction stays open though it could commit, and
    takes in what comes meanwhile; the acknowledgement closes it, long before its maximum.
    """
    spec = spec_of(SHARD, SOURCE, max_seconds=60)
    await host.assign(spec)
    upstream, producer = Upstream(journals), Producer(journals)
    await upstream.publish(["span"])
    await producer.publish(SOURCE, ["first"])
    application = Watched(tmp_path)
    shard = host.start(spec, application)
    for key in ("second", "third"):
        await producer.publish(SOURCE, [key])
        await eventually(partial(application.has_consumed, key))
    assert (application.began, application.finished) == (1, [])

    await read_through(shard, source=await upstream.acknowledge())

    assert application.began == 1
    assert application.consumed[-2:] == ["span", "finalize_txn"]
    assert await counts(shard) == {"first": 1, "second": 1, "third": 1, "span": 1}


async def test_transaction_does_not_wait_if_so_told(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """`disable_wait_for_ack` commits what is committed upstream; the span comes with its acknowledgement."""
    spec = spec_of(SHARD, SOURCE, max_seconds=60)
    spec.disable_wait_for_ack = True
    await host.assign(spec)
    upstream = Upstream(journals)
    await upstream.publish(["span"])
    end = await Producer(journals).publish(SOURCE, ["first"])
    application = Watched(tmp_path)
    shard = host.start(spec, application)

    await read_through(shard, source=end)
    assert await counts(shard) == {"first": 1}
    await read_through(shard, source=await upstream.acknowledge())

    assert await counts(shard) == {"first": 1, "span": 1}
    assert application.began == 2


async def test_transaction_waits_no_longer_than_its_maximum_and_once_a_span(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """A producer that never acknowledges delays one transaction, by its maximum; not the next one."""
    spec = spec_of(SHARD, SOURCE, max_seconds=6)
    await host.assign(spec)
    upstream, producer = Upstream(journals), Producer(journals)
    shard = host.start(spec, Watched(tmp_path))
    await upstream.publish(["span"])
    began = time.monotonic()
    await read_through(shard, source=await producer.publish(SOURCE, ["first"]))
    first_seconds = time.monotonic() - began

    await upstream.publish(["more of the span"])
    began = time.monotonic()
    await read_through(shard, source=await producer.publish(SOURCE, ["second"]))
    second_seconds = time.monotonic() - began

    assert first_seconds >= 6
    assert second_seconds < 6


async def test_transaction_stays_open_for_its_minimum(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """Two messages, the second only after the first was consumed: one transaction, no shorter than its minimum."""
    spec = spec_of(SHARD, SOURCE, min_seconds=3, max_seconds=60)
    await host.assign(spec)
    producer = Producer(journals)
    application = Watched(tmp_path)
    shard = host.start(spec, application)
    began = time.monotonic()
    await producer.publish(SOURCE, ["first"])
    await eventually(lambda: application.has_consumed("first"))
    await read_through(shard, source=await producer.publish(SOURCE, ["second"]))

    assert time.monotonic() - began >= 3
    assert application.began == 1


async def test_transaction_without_obligations_commits_at_once(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """The idle rule: nothing is ready, so it closes, though its maximum is a minute away."""
    spec = spec_of(SHARD, SOURCE, max_seconds=60)
    await host.assign(spec)
    producer = Producer(journals)
    shard = host.start(spec, Watched(tmp_path))
    began = time.monotonic()
    for _ in range(3):
        await read_through(shard, source=await producer.publish(SOURCE, ["a"]))

    assert time.monotonic() - began < 20


async def test_long_sequence_is_split_at_the_maximum_and_resumed_after_a_failure(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """Ten thousand messages under one acknowledgement, most of them beyond the ring, and a maximum that is always over:
    several transactions. The application fails in a later one: those before that are committed are not consumed again.
    """
    messages = 10_000
    spec = spec_of(SHARD, SOURCE, max_seconds=0.001)
    spec.ring_buffer_size = 100
    await host.assign(spec)
    upstream = Upstream(journals)
    await upstream.publish(["k"] * messages)
    end = await upstream.acknowledge()
    application = Watched(tmp_path, output=OUTPUT)
    watch = application.fail

    def fail_once(key: str) -> None:
        watch(key)
        if len(application.consumed) == 9_000:
            raise ConnectionError("fails once")

    application.fail = fail_once
    shard = host.start(spec, application)

    await read_through(shard, source=end)

    assert await counts(shard) == {"k": messages}
    assert [m["n"] for m in await committed(journals, OUTPUT)] == list(
        range(1_001, 1_001 + messages)
    )
    assert application.began >= 4, "split, and one of them twice"
    begins = [at for at, step in enumerate(application.consumed) if step == "new_store"]
    assert len(begins) == 2, "a second life"
    again = application.consumed[begins[1] :].count("k")
    assert application.consumed.count("k") > messages, "the failed transaction is consumed again"
    assert again < messages, "what was committed is not"
