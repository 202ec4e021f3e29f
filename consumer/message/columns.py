"""From payloads to a batch with its UUID columns: the one step of reading that looks into every message.

A message type may bring a bulk path (`BulkUuids`); any other is asked message by message.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from operator import itemgetter
from typing import Protocol, cast, runtime_checkable

from consumer.errors import FramingError
from consumer.message.batch import UNREADABLE, MessageBatch, MessageType, said_by
from consumer.message.framing import Frames
from consumer.message.uuid import NIL_UUID
from consumer.message.uuid_columns import UUID_BYTES, parse_uuids


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
    error = frames.error
    try:
        uuids = _uuids_of(frames.payloads, message_type)
    # Of any kind: a message type is the application's.
    except Exception:
        uuids, culprit = _until_culprit(journal, frames, message_type)
        error = culprit or error
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


def batch_around_damage(journal: str, frames: Frames, message_type: MessageType) -> MessageBatch:
    """Return the messages of `frames` as a batch, and what is none among them, marked `UNREADABLE`.

    Args:
        journal: Its name.
        frames: Of an unframer that reads around damage.
        message_type: How messages are encoded.

    Raises:
        MemoryError: there is no memory left: that says nothing of the bytes.
    """
    if not frames.skipped:
        try:
            uuids = _uuids_of(frames.payloads, message_type)
        except Exception:
            return _with_damage(journal, frames, message_type)  # which finds the culprit
        columns = parse_uuids(uuids)
        return MessageBatch(
            journal, frames.begins, frames.ends, *columns, frames.payloads, message_type
        )
    return _with_damage(journal, frames, message_type)


def unreadable_apart(batch: MessageBatch) -> Iterator[tuple[MessageBatch, bool]]:
    """Yield a batch in parts, in order; what is marked `UNREADABLE`, and said to be, stands alone."""
    start = 0
    while UNREADABLE in (flags := batch.flags[start:]):
        index = start + flags.index(UNREADABLE)
        if start < index:
            yield batch.span(start, index), False
        yield batch.span(index, index + 1), True
        start = index + 1
    if start < len(batch):
        yield batch.span(start, len(batch)), False


def why_unreadable(payload: bytes, message_type: MessageType) -> str:
    """Return what is wrong with bytes that `batch_around_damage` marked."""
    try:
        _uuid_of(payload, message_type)
    except Exception as error:
        return said_by(error)
    return "bytes that belong to no frame"


def _with_damage(journal: str, frames: Frames, message_type: MessageType) -> MessageBatch:
    found: list[tuple[int, int, bytes, bytes | None]] = [
        (begin, end, content, None)
        for (begin, end), content in zip(frames.skipped, frames.skipped_content, strict=True)
        # A line end behind a length-prefixed message is what text tools add: it is no damage.
        if content != b"\n"
    ]
    for begin, end, payload in zip(frames.begins, frames.ends, frames.payloads, strict=True):
        try:
            uuid = _uuid_of(payload, message_type)
        except MemoryError:
            raise
        except Exception:
            found.append((begin, end, payload, None))
        else:
            found.append((begin, end, payload, uuid))
    found.sort(key=itemgetter(0))
    columns = parse_uuids(b"".join([uuid or NIL_UUID for _, _, _, uuid in found]))
    return MessageBatch(
        journal,
        [begin for begin, _, _, _ in found],
        [end for _, end, _, _ in found],
        columns.producers,
        columns.clocks,
        [
            UNREADABLE if uuid is None else flags
            for (_, _, _, uuid), flags in zip(found, columns.flags, strict=True)
        ],
        [payload for _, _, payload, _ in found],
        message_type,
    )


def _until_culprit(
    journal: str, frames: Frames, message_type: MessageType
) -> tuple[bytes, FramingError | None]:
    uuids: list[bytes] = []
    for begin, end, payload in zip(frames.begins, frames.ends, frames.payloads, strict=True):
        try:
            uuids.append(_uuid_of(payload, message_type))
        except Exception as cause:
            error = FramingError(journal, offset=begin, end=end, detail=said_by(cause))
            error.__cause__ = cause
            return b"".join(uuids), error
    return b"".join(uuids), None


def _uuids_of(payloads: Sequence[bytes], message_type: MessageType) -> bytes:
    if _gives_all_uuids(type(message_type)):
        uuids = cast("BulkUuids", message_type).uuids_of(payloads)
        if len(uuids) != UUID_BYTES * len(payloads):
            raise ValueError(f"{len(uuids)} bytes of UUIDs for {len(payloads)} messages")
        return uuids
    return b"".join([_uuid_of(payload, message_type) for payload in payloads])


def _uuid_of(payload: bytes, message_type: MessageType) -> bytes:
    uuid = message_type.uuid_of(payload)
    if len(uuid) != UUID_BYTES:
        raise ValueError(f"a UUID of {len(uuid)} bytes")
    return uuid
