"""Adapter that runs processors written for the Kinesis Client Library for Python unchanged.

    worker = LeaseWorker(..., new_processor=lambda: KclpyProcessor(MyProcessor()))

Both generations work: those with `lease_lost` and `shard_ended`, and the older ones with `shutdown`. Their checkpointer
raises `CheckpointError`, whose `value` is the name of the Java exception that they check for.

Source: awslabs/amazon-kinesis-client-python kcl.CheckpointError, v3.processor.V2toV3RecordProcessor (behaviour).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

from broadsheet.leases.errors import (
    InvalidPositionError,
    LeasingError,
    ShutdownError,
    ThrottlingError,
)
from broadsheet.leases.record_processor.processor import (
    InitializeInput,
    LeaseLostInput,
    ProcessRecordsInput,
    RecordProcessorCheckpointer,
    ShardEndedInput,
    ShutdownRequestedInput,
)
from broadsheet.runtime.errors import ServiceError

_VALUES: Final = (
    (ShutdownError, "ShutdownException"),
    (ThrottlingError, "ThrottlingException"),
    (InvalidPositionError, "IllegalArgumentException"),
)


class CheckpointError(ServiceError):
    """A checkpoint failed; `value` is the name of the Java exception for the cause."""

    def __init__(self, value: str, detail: str) -> None:
        super().__init__(f"{value}: {detail}")
        self.value = value


class KclpyCheckpointer:
    """The checkpointer as processors of that library see it."""

    def __init__(self, checkpointer: RecordProcessorCheckpointer | None) -> None:
        """Wrap a checkpointer.

        Args:
            checkpointer: Ours; None: the lease is lost, and every call says so.
        """
        self._checkpointer = checkpointer

    def checkpoint(
        self, sequence_number: str | int | None = None, sub_sequence_number: int | None = None
    ) -> None:
        """Commit everything delivered, or up to a sequence number.

        Raises:
            CheckpointError: it was not committed.
        """
        if self._checkpointer is None:
            raise CheckpointError("ShutdownException", "the lease is lost")
        at = None if sequence_number is None else str(sequence_number)
        try:
            self._checkpointer.checkpoint(at, sub_sequence_number)
        except LeasingError as error:
            raise CheckpointError(_value_of(error), str(error)) from error


@dataclass(frozen=True, slots=True)
class ShutdownInput:
    """Argument of the older generation's `shutdown`."""

    reason: str
    """`TERMINATE`: the shard has ended, checkpoint. `ZOMBIE`: the lease is lost."""
    checkpointer: KclpyCheckpointer
    """The checkpointer; it refuses every call if the lease is lost."""


class KclpyProcessor:
    """Implements `RecordProcessor` around a processor of that library."""

    def __init__(self, processor: Any) -> None:
        """Wrap a processor.

        Args:
            processor: Of either generation. `Any`: it has no type of ours.
        """
        self._processor = processor

    def initialize(self, initialize_input: InitializeInput, /) -> None:
        """Pass it on."""
        self._processor.initialize(initialize_input)

    def process_records(
        self, process_records_input: ProcessRecordsInput[RecordProcessorCheckpointer], /
    ) -> None:
        """Pass it on."""
        checkpointer = KclpyCheckpointer(process_records_input.checkpointer)
        given: Any = replace(process_records_input, checkpointer=checkpointer)  # type: ignore[arg-type] # Another kind.
        self._processor.process_records(given)

    def lease_lost(self, lease_lost_input: LeaseLostInput, /) -> None:
        """Pass it on, or shut down as a zombie."""
        if hasattr(self._processor, "lease_lost"):
            self._processor.lease_lost(lease_lost_input)
        else:
            self._processor.shutdown(ShutdownInput("ZOMBIE", KclpyCheckpointer(None)))

    def shard_ended(
        self, shard_ended_input: ShardEndedInput[RecordProcessorCheckpointer], /
    ) -> None:
        """Pass it on, or shut down as terminated."""
        checkpointer = KclpyCheckpointer(shard_ended_input.checkpointer)
        if hasattr(self._processor, "shard_ended"):
            self._processor.shard_ended(ShardEndedInput(checkpointer=checkpointer))
        else:
            self._processor.shutdown(ShutdownInput("TERMINATE", checkpointer))

    def shutdown_requested(
        self, shutdown_requested_input: ShutdownRequestedInput[RecordProcessorCheckpointer], /
    ) -> None:
        """Pass it on."""
        checkpointer = KclpyCheckpointer(shutdown_requested_input.checkpointer)
        self._processor.shutdown_requested(ShutdownRequestedInput(checkpointer=checkpointer))


def _value_of(error: LeasingError) -> str:
    for kind, value in _VALUES:
        if isinstance(error, kind):
            return value
    if error.retryable:
        return "KinesisClientLibDependencyException"
    return "InvalidStateException"
