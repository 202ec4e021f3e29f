"""Primaries that stand still over a real etcd and broker: told as stalled, perhaps given up; and who only waits."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace
from pathlib import Path

import pytest
import structlog

from broadsheet.allocator.errors import EtcdUnavailableError
from broadsheet.allocator.etcd.api import TxnResult
from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.allocator.etcd.config import EtcdConfig
from broadsheet.allocator.ops import Compare, Delete, Operation
from broadsheet.consumer.shard.environment import ShardConfig
from broadsheet.consumer.shard.stall_watch import write_heads
from broadsheet.embedded.broker import EmbeddedBroker
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.journals.client import JournalClient
from broadsheet.journals.transport import TransportPolicy
from broadsheet.runtime.clock import SystemClock
from broadsheet.wire.shard_pb2 import ReplicaStatus
from tests.support.eventually import eventually
from tests.support.live_shards import (
    OUTPUT,
    SHARD,
    SOURCE,
    Counting,
    ShardHost,
    read_through,
    spec_of,
)
from tests.support.members import Producer

pytestmark = pytest.mark.etcd


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
    """With hand-over on, the assignment is deleted, so that the allocator places the shard again."""
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

    await eventually(lambda: host.says(SHARD, ReplicaStatus.PRIMARY))


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

    await eventually(lambda: host.says(SHARD, ReplicaStatus.PRIMARY))


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

    await eventually(lambda: host.says(SHARD, ReplicaStatus.PRIMARY))


async def test_slow_messages_of_one_batch_are_no_stall(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """A batch takes longer than the patience, each of its messages far less: it moves."""

    def dawdle(key: str) -> None:
        if key == "slow":
            threading.Event().wait(0.2)

    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    # A disk or a processor that stands still for a second is no stall either.
    config = replace(QUICK_STALL, stall_seconds=2.0)
    with structlog.testing.capture_logs() as logs:
        end = await Producer(journals).publish(SOURCE, ["slow"] * 20)
        shard = host.start(spec, Counting(tmp_path, fail=dawdle), config=config)
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
    async with JournalClient(
        f"http://127.0.0.1:{port}", policy=TransportPolicy(patience_seconds=0.0)
    ) as unreachable:
        assert await write_heads(unreachable, [SOURCE], timeout_seconds=10.0) == {}


class _HeldClock(SystemClock):
    """Stands still until it is released."""

    def __init__(self) -> None:
        self._held: float | None = super().monotonic_seconds()

    def release(self) -> None:
        """Let it run, from the present time."""
        self._held = None

    def monotonic_seconds(self) -> float:
        """Return the time at which it stands, or the machine's."""
        return super().monotonic_seconds() if self._held is None else self._held


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
    # While the broker lives, no time passes: the shard would be handed over if stopping the broker took long.
    host.clock = clock = _HeldClock()
    shard = host.start(spec, application, config=config)
    await eventually(lambda: host.says(SHARD, ReplicaStatus.PRIMARY))
    await Producer(journals).publish(SOURCE, ["a"])
    await eventually(entered.is_set)
    with structlog.testing.capture_logs() as logs:
        await broker.stop()
        proceed.set()
        clock.release()

        await eventually(
            lambda: host.says(SHARD, ReplicaStatus.FAILED, "STALLED", f"no broker serves {SOURCE}")
        )
        await eventually(
            lambda: [log["event"] for log in logs].count("shard.stalled_assignment_kept") > 1
        )
    assert len(host.key_space.assignments) == 1
    assert len(application.stores) == 1
    await shard.stop(grace_seconds=0)


async def test_idle_primary_is_not_stalled(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """Looks go on, there is nothing to do, and the status is PRIMARY."""
    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    shard = host.start(spec, Counting(tmp_path), config=QUICK_STALL)
    end = await Producer(journals).publish(SOURCE, ["a"])
    await read_through(shard, source=end)
    await _until_another_stalls(host, journals, tmp_path)

    # A machine that stood still while it worked may have made it say STALLED; idle, it takes that back for good.
    await eventually(lambda: host.says(SHARD, ReplicaStatus.PRIMARY))
    looked = {"shard": shard.fqn}
    assert host.registry.get_sample_value("broadsheet_shard_stalled", looked) == 0.0
