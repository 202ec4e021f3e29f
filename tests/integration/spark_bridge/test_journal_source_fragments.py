"""Batches over stored fragments: the driver and the tasks read them where they lie, and the broker sends no content."""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.request import urlopen

import pytest

from broadsheet.consumer.embedded.broker import EmbeddedBrokerProcess
from broadsheet.consumer.journal.client import JournalClient
from broadsheet.consumer.protocol import journal_pb2 as pb
from broadsheet.spark_bridge.journal_source.options import read_options
from broadsheet.spark_bridge.journal_source.planner import batch_partitions
from tests.support.broker import journal_spec
from tests.support.eventually import eventually_sync
from tests.support.journal_reads import Topic

pytestmark = pytest.mark.e2e

ROUNDS = 8
ROWS = 40


@dataclass(frozen=True, slots=True)
class _Store:
    broker: EmbeddedBrokerProcess
    root: Path

    def sent_bytes(self) -> int:
        """Return the content that the broker has sent to readers."""
        with urlopen(f"{self.broker.admin_address}/metrics") as answer:  # noqa: S310 - http, our own
            text = answer.read().decode()
        found = re.search(r"^broadsheet_broker_read_bytes_total (\S+)$", text, re.MULTILINE)
        assert found is not None
        return int(float(found[1]))

    def history(self, codec: pb.CompressionCodec.ValueType) -> tuple[Topic, dict[str, int]]:
        """Return a journal of some published fragments, and where they end."""
        topic = Topic(self.broker.address, 1)
        spec = journal_spec(topic.journals[0], length=1024)
        spec.labels.labels.add(name="content-type", value="application/x-ndjson")
        spec.fragment.compression_codec = codec
        spec.fragment.stores.append("file:///store/")
        _apply(self.broker.address, spec)
        writer = topic.writer()
        for begin in range(0, ROUNDS * ROWS, ROWS):
            writer.committed(range(begin, begin + ROWS))
        # The last one is not sealed.
        stored = eventually_sync(lambda: _stored(self.broker.address, spec.name, ROUNDS - 1))
        return topic, {spec.name: stored[-1].end}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[_Store]:
    """A broker of the test's own, which has sent nothing yet, and publishes fragments."""
    root = tmp_path / "fragments"
    root.mkdir()
    arguments = ("--file-root", str(root), "--admin-port", "0")
    with EmbeddedBrokerProcess(tmp_path / "broker", arguments=arguments) as broker:
        yield _Store(broker, root)


def _apply(address: str, spec: pb.JournalSpec) -> None:
    async def apply() -> None:
        async with JournalClient(address) as client:
            await client.apply([pb.ApplyRequest.Change(upsert=spec, expect_mod_revision=-1)])

    asyncio.run(apply())


def _stored(address: str, journal: str, count: int) -> Sequence[pb.Fragment]:
    async def listed() -> list[pb.Fragment]:
        async with JournalClient(address) as client:
            return [each.spec for each in await client.list_fragments(journal)]

    found = [each for each in asyncio.run(listed()) if each.backing_store]
    return found if len(found) == count else []


def test_batch_over_history_costs_the_broker_no_content(store: _Store) -> None:
    """Plan: journals of each codec, of eight appends, seven of which are published; batches up to there, read directly
    and then through the broker, which then has sent the content of the latter alone.

    Why: what a store holds must cost the broker nothing but the list, and give the same rows.
    """
    histories = [store.history(codec) for codec in (pb.NONE, pb.GZIP, pb.ZSTANDARD, pb.SNAPPY)]
    limits = {"maxBytesPerPartition": 3000}

    direct = [
        topic.batch(end=json.dumps(end), fragmentRoots=store.root, **limits)
        for topic, end in histories
    ]
    through = [
        topic.batch(end=json.dumps(end), directFragments="off", **limits)
        for topic, end in histories
    ]

    by_driver_and_tasks = 2 * sum(sum(end.values()) for _, end in histories)
    eventually_sync(lambda: store.sent_bytes() >= by_driver_and_tasks)
    assert store.sent_bytes() == by_driver_and_tasks
    for (partitions, rows), (_, same_rows) in zip(direct, through, strict=True):
        assert rows == same_rows
        assert Counter(row["id"] for row in rows) == Counter(range((ROUNDS - 1) * ROWS))
        assert partitions >= ROUNDS - 1


def test_tasks_without_the_files_read_through_the_broker(store: _Store, tmp_path: Path) -> None:
    """Plan: executors have another root than the driver, without the fragments, and then none.

    Why: a path of one machine is not there on another; the rows must come all the same.
    """
    topic, end = store.history(pb.NONE)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    _, missing = topic.batch(end=json.dumps(end), fragmentRoots=elsewhere)
    _, refused = topic.batch(end=json.dumps(end))

    rows = Counter(range((ROUNDS - 1) * ROWS))
    assert Counter(row["id"] for row in missing) == rows
    assert Counter(row["id"] for row in refused) == rows


def test_compressed_fragments_are_not_split_among_tasks(store: _Store) -> None:
    """Plan: partitions of 512 bytes over compressed and over uncompressed fragments of about 5 KB.

    Why: each task would decompress a fragment from its beginning.
    """
    parts = {}
    for codec in (pb.GZIP, pb.NONE):
        topic, end = store.history(codec)
        options = read_options(
            topic.options(end=json.dumps(end), fragmentRoots=store.root, maxBytesPerPartition=512)
        )
        parts[codec] = asyncio.run(batch_partitions(options))

    assert len(parts[pb.GZIP]) == ROUNDS - 1
    assert all(len(each.bytes.stored) == 1 for each in parts[pb.GZIP])
    assert len(parts[pb.NONE]) > 2 * ROUNDS
