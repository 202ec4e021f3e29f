"""A live shard whose source has had thousands of producers."""

from __future__ import annotations

import time
from pathlib import Path
from urllib.parse import quote

import pytest

from broadsheet.consumer.stores.json_file import JsonFileStore
from broadsheet.journals.client import JournalClient
from broadsheet.journals.message.uuid import clock_at
from broadsheet.testing.stores.subject import FixedShard
from broadsheet.wire.shard_pb2 import Checkpoint
from tests.support.live_shards import (
    SHARD,
    SOURCE,
    Counting,
    Counts,
    ShardHost,
    counts,
    read_through,
    spec_of,
)
from tests.support.members import Producer

pytestmark = pytest.mark.etcd

PRODUCERS = 5_000
LAST_CLOCK = clock_at(time.time_ns() - 60_000_000_000)
"""Of each: none is old."""


def _store(shard: FixedShard, directory: Path) -> JsonFileStore[Counts]:
    return JsonFileStore(shard, directory, initial={}, state_type=dict[str, int])


def _commit_many_producers(shard: FixedShard, directory: Path) -> None:
    """Commit what an earlier life may have left: a checkpoint that names them all."""
    checkpoint = Checkpoint()
    for number in range(PRODUCERS):
        entry = checkpoint.sources[SOURCE].producers.add(id=number.to_bytes(6, "big"))
        entry.state.last_ack, entry.state.begin = LAST_CLOCK, -1
    store = _store(shard, directory)
    store.restore_checkpoint(shard)
    store.start_commit(shard, checkpoint, ()).result(20)
    store.destroy()


async def test_commit_does_not_write_silent_producers_again(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """A shard takes over from a checkpoint of 5,000 producers, of which one writes on. Its commits write what is new,
    and who restores next knows all of them.
    """
    same = FixedShard(id=SHARD, root=host.key_space.keys.root)
    _commit_many_producers(same, tmp_path)
    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    shard = host.start(spec, Counting(tmp_path))
    producer = Producer(journals)
    for key in ("a", "b"):
        await read_through(shard, source=await producer.publish(SOURCE, [key]))
    assert await counts(shard) == {"a": 1, "b": 1}

    state_bytes = (tmp_path / quote(SHARD, safe="") / "state.json").stat().st_size

    assert state_bytes < 20_000
    following = _store(same, tmp_path)
    restored = following.restore_checkpoint(same)
    following.destroy()
    known = {entry.id: entry.state.last_ack for entry in restored.sources[SOURCE].producers}
    assert len(known) == PRODUCERS + 1
    assert all(known[number.to_bytes(6, "big")] == LAST_CLOCK for number in range(PRODUCERS))
