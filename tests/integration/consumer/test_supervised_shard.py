"""What a live shard does about failures that go on: poison messages, crash loops, and standing still."""

from __future__ import annotations

import socket
import threading
from base64 import b64decode
from collections.abc import Collection
from concurrent.futures import Future, wait
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import structlog

from allocator.core.ops import Compare, Delete, Operation
from allocator.errors import EtcdUnavailableError
from allocator.etcd.api import TxnResult
from allocator.etcd.client import EtcdClient
from allocator.etcd.config import EtcdConfig
from consumer.application import Shard
from consumer.embedded.broker import EmbeddedBroker
from consumer.embedded.etcd import EmbeddedEtcdProcess
from consumer.journal.client import JournalClient
from consumer.message.batch import MessageBatch
from consumer.message.json_type import JsonType
from consumer.message.publisher import Publisher
from consumer.message.reader import read_batches, read_committed
from consumer.op_future import OpFuture
from consumer.protocol.labels import DEAD_LETTER_JOURNAL, label_set
from consumer.protocol.shard_pb2 import Checkpoint, ReplicaStatus, ShardSpec
from consumer.shard.environment import ShardConfig
from consumer.shard.stall_watch import write_heads
from consumer.stores.json_file import JsonFileStore
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


class _DeletesAtSecondTry(EtcdClient):
    """Etcd that does not answer the first transaction that deletes."""

    refused = False

    async def txn(
        self,
        compares: tuple[Compare, ...],
        success: tuple[Operation, ...],
        failure: tuple[Operation, ...] = (),
    ) -> TxnResult:
        """Fail once."""
        if not self.refused and any(isinstance(each, Delete) for each in success):
            self.refused = True
            raise EtcdUnavailableError((), "gone for a moment")
        return await super().txn(compares, success, failure)


async def test_stalled_primary_gives_its_assignment_up_once_etcd_answers(
    host: ShardHost,
    journals: JournalClient,
    etcd_server: EmbeddedEtcdProcess,
    tmp_path: Path,
) -> None:
    """Etcd is gone for a moment just then: the attempt goes on, and gives up at the next look."""
    proceed = threading.Event()

    def hang(key: str) -> None:
        if key == "slow":
            proceed.wait(30)

    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    config = ShardConfig(stop_grace_seconds=2, stall_seconds=0.4, stall_hand_over=True)
    async with _DeletesAtSecondTry(EtcdConfig(endpoints=(etcd_server.endpoint,))) as etcd:
        host.etcd = etcd
        application = Counting(tmp_path, fail=hang)
        shard = host.start(spec, application, config=config)
        await Producer(journals).publish(SOURCE, ["slow"])

        await eventually(lambda: not host.key_space.assignments)
        assert etcd.refused
        assert len(application.stores) == 1, "the attempt went on"
        proceed.set()
        await shard.stop()


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


QUICK_STALL = ShardConfig(stop_grace_seconds=2, stall_seconds=0.4)


async def _until_another_stalls(host: ShardHost, journals: JournalClient, directory: Path) -> None:
    """Have another shard stand still, and wait until that is told: those that began before had as many looks."""
    spec = spec_of("stands-still", OUTPUT)
    await host.assign(spec)
    proceed = threading.Event()

    def hang(key: str) -> None:
        if key == "slow":
            assert proceed.wait(30)

    host.start(spec, Counting(directory / "hangs", fail=hang), config=QUICK_STALL)
    try:
        await Producer(journals).publish(OUTPUT, ["slow"])
        await eventually(lambda: host.says(spec.id, ReplicaStatus.FAILED, "STALLED"))
    finally:
        proceed.set()


async def test_primary_that_starts_at_the_head_is_not_stalled(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """A shard is restarted and its checkpoint has read everything: it reads nothing, for there is nothing."""
    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    end = await Producer(journals).publish(SOURCE, ["a"])
    first = host.start(spec, Counting(tmp_path), config=QUICK_STALL)
    await read_through(first, source=end)
    await first.stop()

    second = host.start(spec, Counting(tmp_path), config=QUICK_STALL)
    await read_through(second, source=end)
    await _until_another_stalls(host, journals, tmp_path)

    assert host.says(SHARD, ReplicaStatus.PRIMARY)


async def test_source_whose_lower_bound_is_the_head_is_no_stall(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """What an operator had the shard skip is no work."""
    end = await Producer(journals).publish(SOURCE, ["skipped"])
    spec = spec_of(SHARD, SOURCE)
    spec.sources[0].min_offset = end
    await host.assign(spec)

    host.start(spec, Counting(tmp_path), config=QUICK_STALL)
    await eventually(lambda: host.says(SHARD, ReplicaStatus.PRIMARY))
    await _until_another_stalls(host, journals, tmp_path)

    assert host.says(SHARD, ReplicaStatus.PRIMARY)


async def test_transaction_that_waits_for_its_minimum_duration_is_no_stall(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """A spec that asks for long transactions gets them; while one waits for its time, nothing has to move."""
    spec = spec_of(SHARD, SOURCE, min_seconds=60.0, max_seconds=120.0)
    await host.assign(spec)
    application = Counting(tmp_path)
    host.start(spec, application, config=QUICK_STALL)
    await Producer(journals).publish(SOURCE, ["a"])
    await eventually(lambda: application.began == 1)
    await _until_another_stalls(host, journals, tmp_path)

    assert host.says(SHARD, ReplicaStatus.PRIMARY)


async def test_slow_messages_of_one_batch_are_no_stall(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """A batch takes longer than the patience, each of its messages far less: it moves."""

    def dawdle(key: str) -> None:
        if key == "slow":
            threading.Event().wait(0.1)

    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    with structlog.testing.capture_logs() as logs:
        end = await Producer(journals).publish(SOURCE, ["slow"] * 12)
        shard = host.start(spec, Counting(tmp_path, fail=dawdle), config=QUICK_STALL)
        await read_through(shard, source=end)

    assert "shard.stalled" not in {log["event"] for log in logs}


async def test_gauge_of_a_stalled_primary_falls_when_it_is_taken_away(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """Its shard is another member's business then; an alert here would never end."""
    proceed = threading.Event()
    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    config = ShardConfig(stop_grace_seconds=0, teardown_seconds=0.1, stall_seconds=0.2)

    def hang(key: str) -> None:
        if key == "slow":
            proceed.wait(30)

    shard = host.start(spec, Counting(tmp_path, fail=hang), config=config)
    await Producer(journals).publish(SOURCE, ["slow"])
    gauge = ("broadsheet_shard_stalled", {"shard": shard.fqn})
    await eventually(lambda: host.registry.get_sample_value(*gauge) == 1.0)

    await shard.stop()

    assert host.registry.get_sample_value(*gauge) == 0.0
    proceed.set()


async def test_heads_of_an_unreachable_broker_are_unknown() -> None:
    """A shard rides out a broker's outage; looking at its progress must neither end it nor wait for the broker."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        async with JournalClient(f"http://127.0.0.1:{port}") as unreachable:
            assert await write_heads(unreachable, [SOURCE], timeout_seconds=0.2) == {}
    async with JournalClient(f"http://127.0.0.1:{port}", patience_seconds=0.0) as unreachable:
        assert await write_heads(unreachable, [SOURCE], timeout_seconds=10.0) == {}


async def test_stall_for_lack_of_a_broker_is_told_but_not_handed_over(
    host: ShardHost, broker: EmbeddedBroker, journals: JournalClient, tmp_path: Path
) -> None:
    """What a primary publishes waits for the broker, which is gone. So it would be anywhere else: a hand-over of every
    shard, again and again, would help nobody.
    """
    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    proceed, entered = threading.Event(), threading.Event()

    def hold(key: str) -> None:
        if key == "a":
            entered.set()
            assert proceed.wait(30)

    config = replace(QUICK_STALL, stall_hand_over=True)
    application = Counting(tmp_path, output=OUTPUT, fail=hold)
    shard = host.start(spec, application, config=config)
    await eventually(lambda: host.says(SHARD, ReplicaStatus.PRIMARY))
    await Producer(journals).publish(SOURCE, ["a"])
    await eventually(entered.is_set)
    with structlog.testing.capture_logs() as logs:
        await broker.stop()
        proceed.set()

        await eventually(
            lambda: host.says(SHARD, ReplicaStatus.FAILED, "STALLED", f"no broker serves {SOURCE}")
        )
        await eventually(lambda: [log["event"] for log in logs].count("shard.not_given_up") > 1)
    assert len(host.key_space.assignments) == 1
    assert len(application.stores) == 1
    await shard.stop(grace_seconds=0)


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
