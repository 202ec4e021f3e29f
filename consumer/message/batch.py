"""The unit of data: a run of messages of one journal, as columns.

Reading, sequencing, delivering and publishing work on these runs. Payloads are decoded only when the application asks
for a message, so a path that never does (Arrow, or a native codec) can come later without changing an application.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, Protocol

import msgspec

from consumer.errors import FramingError
from consumer.message.uuid import FLAGS_MAX

UNREADABLE: Final = FLAGS_MAX + 1
"""In a batch's column of flags: not a message, but bytes of the journal that are none. They have no UUID, so they are
outside sequencing; only shards with a dead-letter journal see them, and no application does."""
_UNCHECKED_NESTING_MAX: Final = 256
"""Brackets of a JSON message that need no look at how they are nested."""


class MessageType(Protocol):
    """How the payloads of a journal become messages, and messages become payloads.

    `Any` stands for the application's own message class: a dict, a msgspec Struct, a protobuf message.
    """

    content_type: str
    """The framing these payloads travel in, e.g. `application/x-ndjson`."""

    def decode(self, payload: bytes) -> Any:
        """Return the message of one unframed payload.

        Raises:
            ValueError: the payload is no such message. What else it raises is taken for the same.
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
    """One message and where it stands."""

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
    """Of sources that are no journals, by name: what their reader needs to go on from `begins[0]`, in its own form.
    Checkpoints hold it, as `Source.resume`, from when the first message here is sequenced. Parts have none."""

    def __len__(self) -> int:
        return len(self.begins)

    def pick(self, indices: Sequence[int]) -> MessageBatch:
        """Return the messages at `indices`, which grow."""
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
        """Return the messages [start, stop): ourselves, if these are all of ours."""
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
        """Return the messages of one part after the other; there is one part at least, all of one journal and type."""
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
            FramingError: the message type cannot decode one; it names the message's place.
        """
        decode = self.message_type.decode
        for index, payload in enumerate(self.payloads):
            try:
                message = decode(payload)
            # Of any kind: a message type is the application's, and its libraries raise what they like.
            except Exception as error:
                raise undecodable(self, index, error) from error
            yield message

    def envelopes(self) -> Iterator[Envelope]:
        """Decode and yield each message with its place. Raises as `messages` does."""
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
            # Arrow's parser has no bound for nesting but the thread's stack, whose end is the end of the process.
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
            pass  # no JSON: it has no nesting, and is refused by whoever parses it


def undecodable(batch: MessageBatch, index: int, cause: Exception) -> FramingError:
    """Return the error that says which message of a batch could not be decoded, and why."""
    return FramingError(
        batch.journal,
        offset=batch.begins[index],
        end=batch.ends[index],
        detail=f"cannot be decoded: {said_by(cause)}",
    )


def said_by(cause: Exception) -> str:
    """Return what the error of a decoder says: `ValueError` is its documented way to say it, others are named."""
    if isinstance(cause, ValueError) and str(cause):
        return str(cause)
    return f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__
