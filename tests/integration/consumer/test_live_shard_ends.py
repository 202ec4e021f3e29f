"""How live shards end, over a real etcd, a real broker and real files: stopped, replaced, still held by somebody."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from broadsheet.consumer.errors import AssignmentLostError, CommitFencedError, ShardStoppedError
from broadsheet.consumer.shard import primary
from broadsheet.consumer.shard.environment import ShardConfig
from broadsheet.consumer.shard.live_shard import LiveShard
from broadsheet.journals.client import JournalClient
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


async def test_zombie_cannot_commit_and_does_not_come_back(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """A primary sleeps through its replacement, then wakes in mid-transaction: it is fenced, and it does not restore
    again, which would fence its successor.
    """
    asleep, awake = threading.Event(), threading.Event()

    def sleep(key: str) -> None:
        if key == "last":
            asleep.set()
            assert awake.wait(30)

    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    producer = Producer(journals)
    zombie_application = Counting(tmp_path, output=OUTPUT, fail=sleep)
    zombie = host.start(spec, zombie_application)
    await read_through(zombie, source=await producer.publish(SOURCE, ["a"]))
    end = await producer.publish(SOURCE, ["b", "last"])
    await eventually(asleep.is_set)
    host.blind(zombie)

    await host.unassign(SHARD)
    await host.assign(spec)
    successor = host.start(spec, Counting(tmp_path, output=OUTPUT))
    await read_through(successor, source=end)
    terminal = zombie.terminal
    awake.set()

    assert isinstance(await terminal, CommitFencedError)
    await eventually(lambda: isinstance(_cause(zombie), AssignmentLostError))
    end = await producer.publish(SOURCE, ["c"])
    await read_through(successor, source=end)
    assert await counts(successor) == {"a": 1, "b": 1, "last": 1, "c": 1}
    assert [m["n"] for m in await committed(journals, OUTPUT)] == [1, 2, 3, 4]
    assert len(zombie_application.stores) == 1


async def test_fenced_primary_leaves_the_machine_to_its_successor_until_it_is_stopped(
    host: ShardHost, journals: JournalClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It rests before it closes its files; a stop ends that, and nothing is left open."""
    monkeypatch.setattr(primary, "FENCED_REST_SECONDS", 3600.0)
    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    producer = Producer(journals)
    application = Counting(tmp_path)
    fenced = host.start(spec, application)
    end = await producer.publish(SOURCE, ["a"])
    await read_through(fenced, source=end)
    host.blind(fenced)
    await host.unassign(SHARD)
    await host.assign(spec)
    successor = host.start(spec, Counting(tmp_path))
    await read_through(successor, source=end)
    await read_through(successor, source=await producer.publish(SOURCE, ["b"]))
    assert isinstance(await fenced.terminal, CommitFencedError)

    assert await counts(successor) == {"a": 1, "b": 1}
    assert not application.stores[0].destroyed
    await fenced.stop(grace_seconds=0)
    # On its thread, which a stop without grace does not wait for.
    await eventually(lambda: application.stores[0].destroyed)


def _cause(shard: LiveShard) -> BaseException | None:
    return shard.terminal.result() if shard.terminal.done() else None


async def test_reference_keeps_the_store_until_released(host: ShardHost, tmp_path: Path) -> None:
    """Tear-down waits for who holds the shard, and refuses who comes late; calls after the end tell the cause."""
    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    application = Counting(tmp_path)
    shard = host.start(spec, application)
    reference = shard.acquire()
    await reference.wait_ready()
    stopping = host.stop_soon(shard)
    await shard.terminal

    with pytest.raises(ShardStoppedError):
        shard.acquire()
    with pytest.raises(ShardStoppedError):
        await reference.call(lambda store: store)
    assert not application.stores[0].destroyed
    reference.release()
    reference.release()
    await stopping
    assert application.stores[0].destroyed


async def test_stop_aborts_a_transaction_that_hangs(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """A callback that never returns delays a stop by its bounds, and no longer."""
    hanging, released = threading.Event(), threading.Event()

    def hang(key: str) -> None:
        if key == "a":
            hanging.set()
            released.wait(30)

    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    config = ShardConfig(stop_grace_seconds=0.2, teardown_seconds=0.2)
    shard = host.start(spec, Counting(tmp_path, fail=hang), config=config)
    await Producer(journals).publish(SOURCE, ["a"])
    await eventually(hanging.is_set)

    began = time.monotonic()
    await shard.stop()
    elapsed = time.monotonic() - began
    released.set()

    assert elapsed < 15
    assert shard.terminal.done()


async def test_stop_finishes_the_running_transaction(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """What was consumed is committed at once, even if the transaction could stay open for long."""
    spec = spec_of(SHARD, SOURCE, min_seconds=30, max_seconds=60)
    await host.assign(spec)
    application = Counting(tmp_path, output=OUTPUT)
    shard = host.start(spec, application)
    await Producer(journals).publish(SOURCE, ["a", "b"])
    await eventually(lambda: application.stores and application.stores[0].state == {"a": 1, "b": 1})

    await shard.stop()

    assert application.stores[0].committed_state() == {"a": 1, "b": 1}
    assert [m["n"] for m in await committed(journals, OUTPUT)] == [1, 2]


async def test_stop_before_start_is_safe(host: ShardHost, tmp_path: Path) -> None:
    """A shard may be taken away before it ever ran; who waits for it learns that."""
    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec, slot=1)
    shard = host.start(spec, Counting(tmp_path), slot=1)
    waiting = shard.acquire()

    await shard.stop()
    await shard.stop()

    with pytest.raises(ShardStoppedError):
        await waiting.wait_ready()
