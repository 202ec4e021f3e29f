"""A processor's checkpoints in a table of the Kinesis Client Library: each step, and what the row says then.

Origins are in awslabs/amazon-kinesis-client, `checkpoint.ShardShardRecordProcessorCheckpointerTest`; rewritten. The
same with every kind of checkpointer, and more of it, is tested in memory.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import pytest

from broadsheet.leases.errors import InvalidPositionError, ShutdownError
from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord
from broadsheet.leases.record_processor.checkpointer import LeaseCheckpointer
from broadsheet.leases.record_processor.held_lease import HeldLease
from broadsheet.leases.record_processor.shard_progress import ShardProgress
from tests.support.checkpointing import record_at
from tests.support.dynamodb_stores import DynamoSubject, dynamodb_subject
from tests.support.leases_at_hand import created_lease, taken_lease
from tests.support.stepping_clock import SteppingClock

if TYPE_CHECKING:
    from types_boto3_dynamodb import DynamoDBClient

pytestmark = pytest.mark.moto


class Shard:
    """An assignment of a shard that was processed up to 13."""

    def __init__(self, subject: DynamoSubject, held: HeldLease) -> None:
        self.subject = subject
        self.progress = ShardProgress(held.record.checkpoint)
        self.checkpointer = LeaseCheckpointer(self.progress, held.update)

    def deliver(self, *numbers: int) -> None:
        """Hand records to the processor."""
        self.progress.deliver(record_at(number) for number in numbers)

    def stored(self) -> tuple[str, str | None, bytes | None]:
        """Return what the row says: committed, announced, and its state."""
        row = self.subject.row("a")
        pending = row.get("pendingCheckpoint", {}).get("S")
        return row["checkpoint"]["S"], pending, row.get("pendingCheckpointState", {}).get("B")


@pytest.fixture
async def shard(dynamodb_client: DynamoDBClient) -> AsyncIterator[Shard]:
    """In a table that is there."""
    async with dynamodb_subject(dynamodb_client, "kcl-java") as subject:
        await subject.store.create_store()
        manager = LeaseManager(subject.store, clock=SteppingClock())
        await created_lease(manager, LeaseRecord(key="a", checkpoint=Position("13")))
        held = HeldLease(
            manager,
            await taken_lease(manager),
            lease_seconds=10.0,
            acquired_monotonic_seconds=0.0,
        )
        yield Shard(subject, held)


async def test_client_specified_checkpoint(shard: Shard) -> None:
    """`testClientSpecifiedCheckpoint`: from 13 to 5019, within what was delivered and never back; then the end."""
    shard.deliver(127, 5019)
    for refused in ("2", "9000", "LATEST", "TRIM_HORIZON", "SHARD_END"):
        with pytest.raises(InvalidPositionError):
            await shard.checkpointer.checkpoint(refused)
    assert shard.stored() == ("13", None, None)
    counter = shard.subject.row("a")["leaseCounter"]
    for _ in range(2):
        await shard.checkpointer.checkpoint("13")
    assert shard.subject.row("a")["leaseCounter"] == counter

    await shard.checkpointer.checkpoint("127")
    assert shard.stored() == ("127", None, None)
    with pytest.raises(InvalidPositionError):
        await shard.checkpointer.checkpoint("13")
    await shard.checkpointer.checkpoint("5019")
    shard.deliver(6789)
    shard.progress.reach_end()
    await shard.checkpointer.checkpoint("6789")

    assert shard.stored() == ("SHARD_END", None, None)


async def test_client_specified_two_phase_checkpoint(shard: Shard) -> None:
    """`testClientSpecifiedTwoPhaseCheckpoint`: the same, announced; what is committed needs no announcement."""
    shard.deliver(127, 5019)
    with pytest.raises(InvalidPositionError):
        await shard.checkpointer.prepare_checkpoint("9000")
    nothing = await shard.checkpointer.prepare_checkpoint("13", application_state=b"s")
    assert shard.stored() == ("13", None, None)
    await nothing.checkpoint()

    prepared = await shard.checkpointer.prepare_checkpoint("127", application_state=b"s")
    assert shard.stored() == ("13", "127", b"s")
    await prepared.checkpoint()
    assert shard.stored() == ("127", None, None)
    await shard.checkpointer.prepare_checkpoint("5019", application_state=b"t")
    await shard.checkpointer.checkpoint("4000")
    assert shard.stored() == ("4000", None, None)
    shard.deliver(6789)
    shard.progress.reach_end()
    prepared = await shard.checkpointer.prepare_checkpoint("6789")
    assert shard.stored() == ("4000", "SHARD_END", None)
    await prepared.checkpoint()

    assert shard.stored() == ("SHARD_END", None, None)


async def test_multiple_outstanding_checkpointers(shard: Shard) -> None:
    """`testMultipleOutstandingCheckpointersHappyCase`, `…OutOfOrder`: one is announced, several may commit."""
    shard.deliver(20, 30, 40)
    first = await shard.checkpointer.prepare_checkpoint("20")
    second = await shard.checkpointer.prepare_checkpoint("30")
    assert shard.stored() == ("13", "30", None)

    await first.checkpoint()
    assert shard.stored() == ("20", None, None)
    await second.checkpoint()
    assert shard.stored() == ("30", None, None)
    older = await shard.checkpointer.prepare_checkpoint("35")
    newer = await shard.checkpointer.prepare_checkpoint("40")
    await newer.checkpoint()
    with pytest.raises(InvalidPositionError):
        await older.checkpoint()

    assert shard.stored() == ("40", None, None)


async def test_bad_concurrency_token(shard: Shard) -> None:
    """`testUpdateCheckpointBadConcurrencyToken`: whose acquisition is over changes nothing, announced or not."""
    shard.deliver(20, 30)
    prepared = await shard.checkpointer.prepare_checkpoint("20")
    await taken_lease(LeaseManager(shard.subject.rival), "w1")
    before = shard.subject.row("a")

    with pytest.raises(ShutdownError):
        await prepared.checkpoint()
    with pytest.raises(ShutdownError):
        await shard.checkpointer.checkpoint("30")

    assert shard.subject.row("a") == before
