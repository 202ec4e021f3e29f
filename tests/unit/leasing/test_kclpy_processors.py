"""Processors written for the Kinesis Client Library for Python run as they are."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest

from broadsheet.leases.errors import (
    DependencyError,
    InvalidPositionError,
    InvalidStateError,
    LeasingError,
    ShutdownError,
    ThrottlingError,
)
from broadsheet.leases.position import Position
from broadsheet.leases.record_processor.checkpointer import SyncLeaseCheckpointer
from broadsheet.leases.record_processor.kclpy import CheckpointError, KclpyProcessor
from broadsheet.leases.record_processor.processor import (
    InitializeInput,
    LeaseLostInput,
    ProcessRecordsInput,
    ShardEndedInput,
    ShutdownRequestedInput,
)
from broadsheet.leases.record_processor.shard_progress import ShardProgress
from tests.support.checkpointing import record_at


@dataclass
class OlderProcessor:
    """Of the generation with `shutdown`, as their sample is: it remembers the largest place and checkpoints there."""

    shutdowns: list[tuple[str, str]] = field(default_factory=list)
    largest: tuple[str | None, int | None] = (None, None)
    shard_id: str = ""

    def initialize(self, initialize_input: Any) -> None:
        """Note the shard."""
        self.shard_id = initialize_input.shard_id

    def process_records(self, process_records_input: Any) -> None:
        """Read each record as theirs does."""
        for record in process_records_input.records:
            assert record.binary_data == b"x"
            self.largest = (record.sequence_number, record.sub_sequence_number)
        process_records_input.checkpointer.checkpoint(self.largest[0], self.largest[1])

    def shutdown(self, shutdown_input: Any) -> None:
        """Checkpoint whatever the reason, and note what came of it."""
        try:
            shutdown_input.checkpointer.checkpoint()
        except CheckpointError as error:
            self.shutdowns.append((shutdown_input.reason, error.value))
        else:
            self.shutdowns.append((shutdown_input.reason, "checkpointed"))

    def shutdown_requested(self, shutdown_requested_input: Any) -> None:
        """Checkpoint."""
        shutdown_requested_input.checkpointer.checkpoint()


@dataclass
class NewerProcessor(OlderProcessor):
    """Of the generation with a method for each end."""

    def lease_lost(self, lease_lost_input: Any) -> None:
        """Note it."""
        self.shutdowns.append(("lost", ""))

    def shard_ended(self, shard_ended_input: Any) -> None:
        """Checkpoint."""
        shard_ended_input.checkpointer.checkpoint()
        self.shutdowns.append(("ended", ""))


class _Lease:
    def __init__(self) -> None:
        self.progress = ShardProgress(Position("TRIM_HORIZON"))
        self.failure: LeasingError | None = None
        self.checkpointer = SyncLeaseCheckpointer(self.progress, self._write)

    def _write(self, _change: object) -> None:
        if self.failure is not None:
            raise self.failure


def test_records_and_checkpoints_have_their_names() -> None:
    """KCL for Python, sample_kclpy_app: shard id, payload, both sequence numbers, and a checkpoint at those."""
    lease, theirs = _Lease(), OlderProcessor()
    processor = KclpyProcessor(theirs)
    processor.initialize(InitializeInput(shard_id="s", position=Position("TRIM_HORIZON")))
    records = lease.progress.deliver([record_at(7, 2)])

    processor.process_records(ProcessRecordsInput(records=records, checkpointer=lease.checkpointer))

    assert theirs.shard_id == "s"
    assert lease.progress.bounds.committed == Position("7", 2)


@pytest.mark.parametrize(
    ("failure", "value"),
    [
        (ShutdownError("lost"), "ShutdownException"),
        (ThrottlingError("busy"), "ThrottlingException"),
        (InvalidPositionError("back"), "IllegalArgumentException"),
        (DependencyError("down"), "KinesisClientLibDependencyException"),
        (InvalidStateError("no table"), "InvalidStateException"),
    ],
)
def test_failure_has_the_name_that_they_look_for(failure: LeasingError, value: str) -> None:
    """KCL for Python test_checkpointer_exception, test_checkpointer_unexpected_message_after_checkpointing."""
    lease = _Lease()
    lease.failure = failure
    records = lease.progress.deliver([record_at(7)])

    with pytest.raises(CheckpointError) as caught:
        KclpyProcessor(OlderProcessor()).process_records(
            ProcessRecordsInput(records=records, checkpointer=lease.checkpointer)
        )

    assert caught.value.value == value


def test_lost_lease_is_a_zombie_that_cannot_checkpoint() -> None:
    """KCL for Python test_lease_lost_to_shutdown_delegate, test_lease_lost_checkpoint_triggers_exception."""
    older, newer = OlderProcessor(), NewerProcessor()

    for theirs in (older, newer):
        KclpyProcessor(theirs).lease_lost(LeaseLostInput())

    assert older.shutdowns == [("ZOMBIE", "ShutdownException")]
    assert newer.shutdowns == [("lost", "")]


def test_ended_shard_is_terminated_with_a_real_checkpointer() -> None:
    """KCL for Python test_shard_ended_to_shutdown_delegate."""
    for theirs, expected in (
        (OlderProcessor(), ("TERMINATE", "checkpointed")),
        (NewerProcessor(), ("ended", "")),
    ):
        lease = _Lease()
        lease.progress.reach_end()
        KclpyProcessor(theirs).shard_ended(ShardEndedInput(checkpointer=lease.checkpointer))
        assert theirs.shutdowns == [expected]
        assert lease.progress.is_ended


def test_requested_shutdown_is_passed_on() -> None:
    """The last chance to checkpoint is a real one."""
    lease = _Lease()
    lease.progress.deliver([record_at(3)])

    KclpyProcessor(OlderProcessor()).shutdown_requested(
        ShutdownRequestedInput(checkpointer=lease.checkpointer)
    )

    assert lease.progress.bounds.committed == Position("3")
