"""From payloads to a batch with its UUID columns: the one step of reading that looks into every message.

A message type may bring a bulk path (`BulkUuids`); any other is asked message by message.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Protocol, cast, runtime_checkable

from consumer.errors import FramingError
from consumer.message.batch import MessageBatch, MessageType
from consumer.message.framing import Frames
from consumer.message.uuid_columns import parse_uuids


@runtime_checkable
class BulkUuids(Protocol):
    """Optional for a message type: all UUIDs of a run at once."""

    def uuids_of(self, payloads: Sequence[bytes]) -> bytes:
        """Return N UUIDs of 16 bytes each, one after the other, zero where a payload has none.

        Raises:
            ValueError: a payload is no such message.
        """
        ...


@lru_cache
def _gives_all_uuids(kind: type) -> bool:
    """Tell whether it is a `BulkUuids`: to ask the protocol for every batch would compare all attributes each time."""
    return issubclass(kind, BulkUuids)


def batch_of(
    journal: str, frames: Frames, message_type: MessageType
) -> tuple[MessageBatch, FramingError | None]:
    """Return the messages of `frames` as a batch.

    If a payload is no message of its type, the batch ends before it and the error says where it stands: what
    precedes it can still be used.
    """
    error = None
    try:
        if _gives_all_uuids(type(message_type)):
            uuids = cast("BulkUuids", message_type).uuids_of(frames.payloads)
        else:
            uuids = b"".join([message_type.uuid_of(payload) for payload in frames.payloads])
    except ValueError:
        uuids, error = _until_culprit(journal, frames, message_type)
    columns = parse_uuids(uuids)
    count = len(columns.producers)
    whole = count == len(frames.payloads)
    batch = MessageBatch(
        journal,
        frames.begins if whole else frames.begins[:count],
        frames.ends if whole else frames.ends[:count],
        columns.producers,
        columns.clocks,
        columns.flags,
        frames.payloads if whole else frames.payloads[:count],
        message_type,
    )
    return batch, error


def _until_culprit(
    journal: str, frames: Frames, message_type: MessageType
) -> tuple[bytes, FramingError | None]:
    uuids: list[bytes] = []
    for begin, payload in zip(frames.begins, frames.payloads, strict=True):
        try:
            uuids.append(message_type.uuid_of(payload))
        except ValueError as cause:
            error = FramingError(journal, offset=begin, detail=str(cause))
            error.__cause__ = cause
            return b"".join(uuids), error
    return b"".join(uuids), None
