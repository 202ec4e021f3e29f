"""The message batch: a run of messages of one journal, as columns.

Reading, sequencing, delivering and publishing work on batches. Payloads are decoded only when the application asks for
a message, so a path that never decodes (Arrow, or a native codec) can come later without changing an application.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from typing import Any, Final, Protocol, cast, runtime_checkable

import msgspec

from broadsheet.consumer.errors import FramingError
from broadsheet.consumer.message.framing import Frames
from broadsheet.consumer.message.uuid import FLAGS_MAX, NIL_UUID, UUID_BYTES, parse_uuids

UNREADABLE: Final = FLAGS_MAX + 1
"""Marks an entry in a batch's column of flags as bytes of the journal that are not a message. They have no UUID, so
they are outside sequencing; only shards with a dead-letter journal see them, and no application does."""
_UNCHECKED_NESTING_MAX: Final = 256
"""Number of brackets in a JSON message up to which its nesting needs no check."""


class MessageType(Protocol):
    """The codec between an application's messages and the payloads of a journal.

    `Any` is the application's own message class: a dict, a msgspec Struct, a protobuf message.
    """

    content_type: str
    """The framing these payloads travel in, e.g. `application/x-ndjson`."""

    def decode(self, payload: bytes) -> Any:
        """Return the message of one unframed payload.

        Raises:
            ValueError: the payload is not such a message. Any other exception is handled as the same.
        """
        ...

    def encode(self, message: Any) -> bytes:
        """Return the unframed payload of a message."""
        ...

    def uuid_of(self, payload: bytes) -> bytes:
        """Return the 16-byte UUID inside a payload, or 16 zero bytes if it has none."""
        ...

    def set_uuid(self, message: Any, uuid: bytes) -> None:
        """Stamp a message with a 16-byte UUID."""
        ...

    def new_acknowledgement(self, journal: str) -> Any:
        """Return a fresh, empty message that can carry an acknowledgement's UUID."""
        ...


@dataclass(frozen=True, slots=True)
class Envelope:
    """One decoded message and its position in the journal."""

    journal: str
    """With its `;meta` suffix if the source has one."""
    begin: int
    """Offset of its first byte (frame included), bytes."""
    end: int
    """Offset after its last byte, bytes."""
    producer: int
    """48-bit producer id; 0 if the message has no UUID."""
    clock: int
    flags: int
    message: Any


@dataclass(frozen=True, slots=True)
class MessageBatch:
    """N messages of one journal in offset order. Every column has shape (N,)."""

    journal: str
    begins: Sequence[int]
    ends: Sequence[int]
    producers: Sequence[int]
    """48-bit producer ids; 0 where a message has no UUID."""
    clocks: Sequence[int]
    """UUID clocks (60-bit timestamp << 4 | sequence); 0 where a message opted out of sequencing."""
    flags: Sequence[int]
    payloads: Sequence[bytes]
    """Unframed."""
    message_type: MessageType
    resumes: Mapping[str, bytes] = field(default_factory=dict)
    """State by source name, for sources that are not journals: what the source's reader needs to resume at `begins[0]`,
    in the reader's format. Checkpoints hold it as `Source.resume` once the first message here is sequenced. Parts of a
    batch have none."""

    def __len__(self) -> int:
        return len(self.begins)

    def pick(self, indices: Sequence[int]) -> MessageBatch:
        """Return the messages at `indices`, which must ascend."""
        if indices and indices[-1] - indices[0] + 1 == len(indices):
            return self.span(indices[0], indices[-1] + 1)
        return MessageBatch(
            self.journal,
            [self.begins[i] for i in indices],
            [self.ends[i] for i in indices],
            [self.producers[i] for i in indices],
            [self.clocks[i] for i in indices],
            [self.flags[i] for i in indices],
            [self.payloads[i] for i in indices],
            self.message_type,
        )

    def span(self, start: int, stop: int) -> MessageBatch:
        """Return the messages [start, stop); this same object if these are all of its messages."""
        if start == 0 and stop >= len(self) and not self.resumes:
            return self
        return MessageBatch(
            self.journal,
            self.begins[start:stop],
            self.ends[start:stop],
            self.producers[start:stop],
            self.clocks[start:stop],
            self.flags[start:stop],
            self.payloads[start:stop],
            self.message_type,
        )

    @staticmethod
    def joined(parts: Sequence[MessageBatch]) -> MessageBatch:
        """Return the concatenation of one or more parts, all of one journal and message type."""
        if len(parts) == 1:
            return parts[0]
        return MessageBatch(
            parts[0].journal,
            list(chain.from_iterable(part.begins for part in parts)),
            list(chain.from_iterable(part.ends for part in parts)),
            list(chain.from_iterable(part.producers for part in parts)),
            list(chain.from_iterable(part.clocks for part in parts)),
            list(chain.from_iterable(part.flags for part in parts)),
            list(chain.from_iterable(part.payloads for part in parts)),
            parts[0].message_type,
        )

    def messages(self) -> Iterator[Any]:
        """Decode and yield each message.

        Raises:
            FramingError: the message type cannot decode a message; the error names the message's position.
        """
        decode = self.message_type.decode
        for index, payload in enumerate(self.payloads):
            try:
                message = decode(payload)
            # Every exception: a message type is application code, and its libraries raise errors of any class.
            except Exception as error:
                raise undecodable(self, index, error) from error
            yield message

    def envelopes(self) -> Iterator[Envelope]:
        """Decode and yield each message with its position. Raises as `messages` does."""
        for index, message in enumerate(self.messages()):
            yield Envelope(
                self.journal,
                self.begins[index],
                self.ends[index],
                self.producers[index],
                self.clocks[index],
                self.flags[index],
                message,
            )

    def to_arrow(self) -> Any:
        """Return the messages as a `pyarrow.Table`, parsed in one pass where they are JSON lines.

        Raises:
            FramingError: a message cannot be decoded.
            ImportError: pyarrow is missing; install `broadsheet[spark]`.
        """
        import pyarrow as pa
        import pyarrow.json as pa_json

        for index, payload in enumerate(self.payloads):
            # Arrow's parser bounds nesting only by the thread's stack, and an overflow of it kills the process.
            if payload.count(b"[") + payload.count(b"{") > _UNCHECKED_NESTING_MAX:
                self._check_nesting(index)
        if self.message_type.content_type != "application/x-ndjson":
            return pa.Table.from_pylist(list(self.messages()))
        return pa_json.read_json(io.BytesIO(b"\n".join(self.payloads)))

    def _check_nesting(self, index: int) -> None:
        try:
            msgspec.json.decode(self.payloads[index])
        except RecursionError as error:
            raise undecodable(self, index, error) from error
        except msgspec.MsgspecError:
            pass  # Not JSON: it has no nesting, and the parser refuses it.


def undecodable(batch: MessageBatch, index: int, cause: Exception) -> FramingError:
    """Return the error that names the message that could not be decoded, and the cause."""
    return FramingError(
        batch.journal,
        offset=batch.begins[index],
        end=batch.ends[index],
        detail=f"cannot be decoded: {said_by(cause)}",
    )


def said_by(cause: Exception) -> str:
    """Return the text of a decoder's error, with its class unless that is `ValueError`, the documented one."""
    if isinstance(cause, ValueError) and str(cause):
        return str(cause)
    return f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__


# Batch construction: payloads get their UUID columns here, the only step of reading that looks into every message.


@runtime_checkable
class BulkUuids(Protocol):
    """The optional bulk path of a message type: all UUIDs of a run in one call.

    Message types without it are asked message by message.
    """

    def uuids_of(self, payloads: Sequence[bytes]) -> bytes:
        """Return N UUIDs of 16 bytes each, one after the other, zero where a payload has none.

        Raises:
            ValueError: a payload is not such a message.
        """
        ...


@lru_cache
def _gives_all_uuids(kind: type) -> bool:
    """Tell whether a class is a `BulkUuids`; cached, because a protocol check compares all attributes each time."""
    return issubclass(kind, BulkUuids)


def batch_of(
    journal: str, frames: Frames, message_type: MessageType
) -> tuple[MessageBatch, FramingError | None]:
    """Return the messages of `frames` as a batch.

    If a payload is not a message of its type, the batch ends before it and the error names its position: the messages
    before it can still be used.
    """
    error = frames.error
    try:
        uuids = _uuids_of(frames.payloads, message_type)
    # Every exception: a message type is application code.
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
    """Return the messages of `frames` as a batch, with damaged bytes among them, marked `UNREADABLE`.

    Args:
        journal: Its name.
        frames: Of an unframer that reads around damage.
        message_type: How messages are encoded.

    Raises:
        MemoryError: there is no memory left. It is raised because it does not mean that the bytes are damaged.
    """
    if not frames.skipped:
        try:
            uuids = _uuids_of(frames.payloads, message_type)
        except Exception:
            return _with_damage(journal, frames, message_type)  # finds the damaged payload
        columns = parse_uuids(uuids)
        return MessageBatch(
            journal, frames.begins, frames.ends, *columns, frames.payloads, message_type
        )
    return _with_damage(journal, frames, message_type)


def unreadable_apart(batch: MessageBatch) -> Iterator[tuple[MessageBatch, bool]]:
    """Yield a batch in parts, in order; each `UNREADABLE` entry is a part by itself, paired with True."""
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
    """Return the reason why `batch_around_damage` marked these bytes."""
    try:
        _uuid_of(payload, message_type)
    except Exception as error:
        return said_by(error)
    return "bytes that belong to no frame"


def _with_damage(journal: str, frames: Frames, message_type: MessageType) -> MessageBatch:
    found: list[tuple[int, int, bytes, bytes | None]] = [
        (begin, end, content, None)
        for (begin, end), content in zip(frames.skipped, frames.skipped_content, strict=True)
        # Text tools add a line end after a length-prefixed message: it is not damage.
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
