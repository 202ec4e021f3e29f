"""What a live shard does about failures that go on: poison messages, crash loops, services that are missed."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Collection
from concurrent.futures import Future, wait
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog

from broadsheet.consumer.application import Shard
from broadsheet.consumer.shard.environment import ShardConfig
from broadsheet.consumer.stores.json_file import JsonFileStore
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.json import JsonType
from broadsheet.journals.message.batch import MessageBatch
from broadsheet.journals.message.publisher import Publisher
from broadsheet.journals.message.reader import read_batches, read_committed
from broadsheet.runtime.op_future import OpFuture
from broadsheet.wire.labels import DEAD_LETTER_JOURNAL, label_set
from broadsheet.wire.shard_pb2 import Checkpoint, ReplicaStatus, ShardSpec
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


async def _dead_letters(journals: JournalClient, *, committed: bool = True) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    read = read_committed if committed else read_batches
    batches = read(journals, SECOND_SOURCE, JsonType(), block=False)
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
    payload = JsonType().decode(b64decode(letter["payload_base64"]))
    assert payload["key"] == "bad"
    assert letter["uuid"] == payload["_meta"]["uuid"]
    assert host.registry.get_sample_value(
        "broadsheet_shard_dead_letters_total", {"shard": shard.fqn}
    )


@pytest.mark.parametrize("application", [Counting, _BatchCounting])
async def test_message_from_the_future_is_refused_as_poison_is(
    host: ShardHost, journals: JournalClient, tmp_path: Path, application: type[Counting]
) -> None:
    """A producer's clock is two days ahead and such are refused: its message alone goes to the dead letters, with what
    is wrong with it, though the application would have taken it.
    """
    spec = _with_dead_letters()
    await host.assign(spec)
    right, wrong = Producer(journals), Producer(journals, ahead_seconds=2 * 86_400)
    await right.publish(SOURCE, ["a", "b"])
    await wrong.publish(SOURCE, ["late"])
    end = await right.publish(SOURCE, ["c", "a"])
    config = replace(QUICK, refuse_clocks_ahead=True)

    shard = host.start(spec, application(tmp_path), config=config)

    await read_through(shard, source=end)
    assert await counts(shard) == {"a": 2, "b": 1, "c": 1}
    (letter,) = await _dead_letters(journals)
    assert JsonType().decode(b64decode(letter["payload_base64"]))["key"] == "late"
    assert f"journal {SOURCE} holds a message from the future: at offset" in letter["cause"]
    assert "s ahead of this process's" in letter["cause"]


async def test_message_from_the_future_is_taken_with_one_warning(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """By default such messages count, and an operator is told once who writes them, where, and how far it is ahead."""
    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    wrong = Producer(journals, ahead_seconds=2 * 86_400)
    with structlog.testing.capture_logs() as logs:
        await wrong.publish(SOURCE, ["a"])
        end = await wrong.publish(SOURCE, ["a"])
        shard = host.start(spec, Counting(tmp_path))
        await read_through(shard, source=end)

    assert await counts(shard) == {"a": 2}
    (told,) = [line for line in logs if line["event"] == "sequencer.clock_ahead"]
    assert told["journal"] == SOURCE
    assert told["offset"] == 0
    assert len(told["producer"]) == 12
    assert 2 * 86_400 - 3600 < told["ahead_seconds"] <= 2 * 86_400
    assert (
        host.registry.get_sample_value("broadsheet_shard_clocks_ahead_total", {"shard": shard.fqn})
        == 2
    )


class _CommitsAtSecondTry(Counting):
    """The same counts; the first commit fails, after all that it must wait for is written."""

    refused = False

    def new_store(self, shard: Shard) -> JsonFileStore[Counts]:
        """Open the file."""
        application = self

        class Store(JsonFileStore[Counts]):
            def start_commit(
                self, shard: Shard, checkpoint: Checkpoint, wait_for: Collection[Future[object]]
            ) -> OpFuture:
                if not application.refused:
                    application.refused = True
                    wait(wait_for, timeout=10)
                    raise RuntimeError("not now")
                return super().start_commit(shard, checkpoint, wait_for)

        return Store(shard, self.directory, initial={}, state_type=dict[str, int])


async def test_dead_letter_of_a_transaction_that_fails_is_recorded_once(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """The message is passed by and its letter is written, but the transaction is not committed: the next attempt passes
    it by again, and readers see the letter of the transaction that counts.
    """
    spec = _with_dead_letters()
    await host.assign(spec)
    end = await Producer(journals).publish(SOURCE, ["bad", "a"])

    shard = host.start(spec, _CommitsAtSecondTry(tmp_path, fail=_fail_at_bad), config=QUICK)

    await read_through(shard, source=end)
    assert await counts(shard) == {"a": 1}
    assert len(await _dead_letters(journals)) == 1
    assert len(await _dead_letters(journals, committed=False)) == 2


async def test_service_that_the_application_misses_is_no_crash_loop(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """What the application asks does not answer, for more attempts than it has: the shard is neither quarantined nor
    its message left out, and goes on once the service is back.
    """
    attempts = 0

    def miss(key: str) -> None:
        nonlocal attempts
        if key == "asks":
            attempts += 1
            if attempts <= 6:
                raise ConnectionRefusedError("the service is down")

    config = replace(QUICK, restart_delay_seconds_max=0.05)
    spec = _with_dead_letters()
    await host.assign(spec)
    with structlog.testing.capture_logs() as logs:
        end = await Producer(journals).publish(SOURCE, ["asks"])
        shard = host.start(spec, Counting(tmp_path, fail=miss), config=config)
        await read_through(shard, source=end)

    assert await counts(shard) == {"asks": 1}
    outlooks = [log["outlook"] for log in logs if log["event"] == "shard.failed"]
    assert len(outlooks) == 6
    assert all("(transient)" in outlook for outlook in outlooks), outlooks


async def test_failure_of_the_application_is_logged_with_its_traceback(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """The status has room for a line; whoever mends the application needs the place in its code."""
    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    with structlog.testing.capture_logs() as logs:
        await Producer(journals).publish(SOURCE, ["bad"])
        host.start(spec, Counting(tmp_path, fail=_fail_at_bad), config=QUICK)
        await eventually(lambda: host.says(SHARD, ReplicaStatus.FAILED, "QUARANTINED"))

    (event, *_) = [log for log in logs if log["event"] == "shard.failed"]
    assert "in _fail_at_bad" in event["exception"]
    assert "ValueError: cannot digest this" in event["exception"]


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
            SHARD,
            ReplicaStatus.FAILED,
            "cannot digest this",
            "attempt 4 failed (application) at offset ",
            f" of {SOURCE}; QUARANTINED",
        )
    )
    await host.change_spec(_with_dead_letters())

    await read_through(shard, source=end)
    assert await counts(shard) == {"a": 1}
