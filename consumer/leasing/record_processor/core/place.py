"""Reads what a processor gives as a place to checkpoint."""

from __future__ import annotations

from consumer.errors import InvalidPositionError
from consumer.leasing.position import Position
from consumer.leasing.record_processor.processor import Place
from consumer.leasing.record_processor.records import ProcessorRecord


def position_at(at: Place | None, sub_sequence_number: int | None) -> Position | None:
    """Return the position that was meant; None: all that was delivered.

    Raises:
        InvalidPositionError: it is none, or has an index where none belongs.
    """
    if isinstance(at, str):
        return Position(at, sub_sequence_number or 0)
    if sub_sequence_number is not None:
        raise InvalidPositionError(
            f"sub_sequence_number: expected a sequence number with it, got {at!r:.80}"
        )
    if at is None:
        return None
    if isinstance(at, ProcessorRecord):
        return at.position
    if isinstance(at, Position):
        return at
    raise InvalidPositionError(
        f"checkpoint: expected a position, a record or a sequence number, got {at!r:.80}"
    )
