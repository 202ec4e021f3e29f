"""Batches over stored fragments: the driver and the tasks read them where they lie, and the broker sends no content."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from broadsheet.spark_bridge.journal_source.options import read_options
from broadsheet.spark_bridge.journal_source.planner import batch_partitions
from broadsheet.wire import journal_pb2 as pb
from tests.support.eventually import eventually_sync
from tests.support.history_store import ROUNDS, ROWS, History, HistoryStore
from tests.support.journal_reads import batch_read

pytestmark = pytest.mark.e2e

IDS_STORED = Counter(range((ROUNDS - 1) * ROWS))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[HistoryStore]:
    """A broker of the test's own, which has sent nothing yet."""
    with HistoryStore.started(tmp_path) as store:
        yield store


def _options(store: HistoryStore, history: History, **more: object) -> dict[str, str]:
    base = {
        "address": store.broker.address,
        "selector": f"name={history.journal}",
        "end": json.dumps({history.journal: history.end}),
    }
    return base | {name: str(value) for name, value in more.items()}


def test_batch_over_history_costs_the_broker_no_content(store: HistoryStore) -> None:
    """Plan: journals of each codec, of eight appends, seven of which are published; batches up to there, read directly
    and then through the broker, which then has sent the content of the latter alone.

    Why: what a store holds must cost the broker nothing but the list, and give the same rows.
    """
    histories = [store.history(codec) for codec in (pb.NONE, pb.GZIP, pb.ZSTANDARD, pb.SNAPPY)]
    rules = ({"fragmentRoots": store.root}, {"directFragments": "off"})

    direct, through = (
        [batch_read(_options(store, each, maxBytesPerPartition=3000, **rule)) for each in histories]
        for rule in rules
    )

    by_driver_and_tasks = 2 * sum(each.end for each in histories)
    eventually_sync(lambda: store.sent_bytes() >= by_driver_and_tasks)
    assert store.sent_bytes() == by_driver_and_tasks
    for (partitions, rows), (_, same_rows) in zip(direct, through, strict=True):
        assert rows == same_rows
        assert Counter(row["id"] for row in rows) == IDS_STORED
        assert partitions >= ROUNDS - 1


def test_tasks_without_the_files_read_through_the_broker(
    store: HistoryStore, tmp_path: Path
) -> None:
    """Plan: a directory without the fragments, and none at all.

    Why: a path of one machine is not there on another; the rows must come all the same.
    """
    history = store.history(pb.NONE)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()

    _, missing = batch_read(_options(store, history, fragmentRoots=elsewhere))
    _, refused = batch_read(_options(store, history))

    assert Counter(row["id"] for row in missing) == IDS_STORED
    assert Counter(row["id"] for row in refused) == IDS_STORED


def test_compressed_fragments_are_not_split_among_tasks(store: HistoryStore) -> None:
    """Plan: partitions of 512 bytes over compressed and over uncompressed fragments of about 5 KB.

    Why: each task would decompress a fragment from its beginning.
    """

    def planned(codec: pb.CompressionCodec.ValueType) -> list[int]:
        options = _options(
            store, store.history(codec), fragmentRoots=store.root, maxBytesPerPartition=512
        )
        partitions = asyncio.run(batch_partitions(read_options(options)))
        return [len(each.bytes.stored) for each in partitions]

    assert planned(pb.GZIP) == [1] * (ROUNDS - 1)
    assert len(planned(pb.NONE)) > 2 * ROUNDS
