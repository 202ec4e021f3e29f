"""What a live shard does about failures that go on: poison messages, crash loops, and standing still."""

from __future__ import annotations

import threading
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest
import structlog

from consumer.application import Shard
from consumer.journal.client import JournalClient
from consumer.message.batch import MessageBatch
from consumer.message.json_type import JsonType
from consumer.message.publisher import Publisher
from consumer.message.reader import read_committed
from consumer.protocol.labels import DEAD_LETTER_JOURNAL, label_set
from consumer.protocol.shard_pb2 import ReplicaStatus, ShardSpec
from consumer.shard.environment import ShardConfig
from consumer.stores.json_file import JsonFileStore
from tests.support.eventually import eventually
from tests.support.live_shards import (
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
from tests.support.members import Producer

pytestmark = pytest.mark.etcd

QUICK = ShardConfig(restart_delay_seconds=0.02, stop_grace_seconds=2, attempts_max=4)


def _with_dead_letters(journal: str = SECOND_SOURCE) -> ShardSpec:
    spec = spec_of(SHARD, SOURCE)
    spec.labels.CopyFrom(label_set({DEAD_LETTER_JOURNAL: journal}))
    return spec


async def _dead_letters(journals: JournalClient) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    batches = read_committed(journals, SECOND_SOURCE, JsonType(), block=False)
    async with aclosing(batches):
        async for batch in batches:
            found += batch.messages()
    return [message for message in found if "payload_base64" in message]


def _fail_at_bad(key: str) -> None:
    if key == "bad":
        raise ValueError("cannot digest this")


class _BatchCounting(Counting):
    """The same counts, but takes batches and fails as a whole."""

    def consume_batch(
        self,
        shard: Shard,
        store: JsonFileStore[Counts],
        batch: MessageBatch,
        publisher: Publisher,
    ) -> None:
        """Count all messages of the batch."""
        for envelope in batch.envelopes():
            self.consume_message(shard, store, envelope, publisher)


@pytest.mark.parametrize("application", [Counting, _BatchCounting])
async def test_poison_message_goes_to_the_dead_letter_journal_once(
    host: ShardHost, journals: JournalClient, tmp_path: Path, application: type[Counting]
) -> None:
    """The application fails at one message among others, taken singly or in batches: that one alone is left out, after
    its tries, and recorded exactly once with its place and cause; all others are counted once.
    """
    spec = _with_dead_letters()
    await host.assign(spec)
    end = await Producer(journals).publish(SOURCE, ["a", "b", "bad", "c", "a"])

    shard = host.start(spec, application(tmp_path, fail=_fail_at_bad), config=QUICK)

    await read_through(shard, source=end)
    assert await counts(shard) == {"a": 2, "b": 1, "c": 1}
    (letter,) = await _dead_letters(journals)
    assert letter["shard"] == SHARD
    assert letter["journal"] == SOURCE
    assert 0 < letter["begin"] < letter["end"] < end
    assert "cannot digest this" in letter["cause"]
    assert host.registry.get_sample_value(
        "broadsheet_shard_dead_letters_total", {"shard": shard.fqn}
    )


async def test_crash_loop_is_quarantined_with_its_cause_until_the_spec_changes(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """Without a dead-letter journal nothing is left out: after its attempts the shard is set aside, says why, and takes
    up again when the operator gives it a dead-letter journal.
    """
    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    end = await Producer(journals).publish(SOURCE, ["a", "bad"])
    shard = host.start(spec, Counting(tmp_path, fail=_fail_at_bad), config=QUICK)

    await eventually(
        lambda: host.says(
            SHARD, ReplicaStatus.FAILED, "cannot digest this", "QUARANTINED", "attempt 4 failed"
        )
    )
    await host.change_spec(_with_dead_letters())

    await read_through(shard, source=end)
    assert await counts(shard) == {"a": 1}


async def test_stalled_primary_says_where_it_stands_and_when_it_moves_again(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """A callback waits for what does not come: List shows STALLED with the line of code, the log the stack; when it
    goes on, the shard is PRIMARY again.
    """
    proceed = threading.Event()

    def hang(key: str) -> None:
        if key == "slow":
            assert proceed.wait(30)

    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    config = ShardConfig(stop_grace_seconds=2, stall_seconds=0.4)
    shard = host.start(spec, Counting(tmp_path, fail=hang), config=config)
    with structlog.testing.capture_logs() as logs:
        end = await Producer(journals).publish(SOURCE, ["slow"])
        await eventually(
            lambda: host.says(SHARD, ReplicaStatus.FAILED, "STALLED", "in a transaction", "wait")
        )

    proceed.set()
    await read_through(shard, source=end)
    await eventually(lambda: host.says(SHARD, ReplicaStatus.PRIMARY))
    (event,) = [log for log in logs if log["event"] == "shard.stalled"]
    assert "proceed.wait(30)" in event["stack"]


async def test_stalled_primary_gives_its_assignment_up_if_asked_to(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """With hand-over on, the assignment is deleted, so that the allocator places the shard anew."""
    proceed = threading.Event()

    def hang(key: str) -> None:
        if key == "slow":
            proceed.wait(30)

    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    config = ShardConfig(stop_grace_seconds=2, stall_seconds=0.4, stall_hand_over=True)
    host.start(spec, Counting(tmp_path, fail=hang), config=config)
    await Producer(journals).publish(SOURCE, ["slow"])

    await eventually(lambda: not host.key_space.assignments)
    proceed.set()


async def test_idle_primary_is_not_stalled(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """Looks go on, there is nothing to do, and the status stays PRIMARY."""
    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    config = ShardConfig(stop_grace_seconds=2, stall_seconds=0.1)
    shard = host.start(spec, Counting(tmp_path), config=config)
    end = await Producer(journals).publish(SOURCE, ["a"])
    await read_through(shard, source=end)

    looked = {"shard": shard.fqn}
    await eventually(
        lambda: host.registry.get_sample_value("broadsheet_shard_stalled", looked) == 0.0
    )
    assert host.says(SHARD, ReplicaStatus.PRIMARY)
