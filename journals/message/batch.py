"""The message batch: a run of messages of one journal, as columns.

Reading, sequencing, delivering and publishing work on batches. A batch is a view of the bytes that the broker sent:
numpy columns for offsets and UUIDs, and the bounds of payloads in one buffer. A payload becomes bytes, and a message an
object, only when the application asks for it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, repeat
from operator import itemgetter
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from broadsheet.journals.content.message_type import (
    MessageType as MessageType,
    said_by,
    undecodable,
)
from broadsheet.journals.errors import FramingError
from broadsheet.journals.message.framing import Frames, Offsets, Payloads
from broadsheet.journals.message.uuid import (
    FLAGS_MAX,
    NIL_UUID,
    UUID_BYTES,
    FlagWords,
    Words,
    parse_uuids,
)
from broadsheet.runtime.libraries import needing

if TYPE_CHECKING:
    import pyarrow as pa

UNREADABLE: Final = FLAGS_MAX + 1
"""Marks an entry in a batch's column of flags as bytes of the journal that are not a message. They have no UUID, so
they are outside sequencing; only shards with a dead-letter journal see them, and no application does."""
_FEW: Final = 64
"""Messages whose columns take less memory than a copy of a part is worth."""
_NO_RESUMES: Final[Mapping[str, bytes]] = MappingProxyType({})
Column: TypeAlias = Sequence[int] | NDArray[np.integer[Any]]
"""What a batch makes a column of: numbers, as a list or an array."""


class Envelope(msgspec.Struct, frozen=True):
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


# Not frozen, because that would double the time of making one; its columns are what must not change.
@dataclass(slots=True, eq=False, init=False, repr=False)
class MessageBatch:
    """N messages of one journal in offset order. Every column has shape (N,). Immutable."""

    journal: str
    begins: Offsets
    """Offsets of first bytes, frames included; int64."""
    ends: Offsets
    producers: Words
    """48-bit producer ids; 0 where a message has no UUID; uint64."""
    clocks: Words
    """UUID clocks (60-bit timestamp << 4 | sequence); 0 where a message opted out of sequencing; uint64."""
    flags: FlagWords
    """uint16."""
    payloads: Sequence[bytes]
    """Unframed. Of a journal they are `Payloads`, views of the bytes that were read."""
    message_type: MessageType
    resumes: Mapping[str, bytes]
    """State by source name, for sources that are not journals: what the source's reader needs to resume at `begins[0]`,
    in the reader's format. Checkpoints hold it as `Source.resume` once the first message here is sequenced. A batch
    with such state and without messages, a note, is committed by itself. Parts of a batch have none."""

    def __init__(
        self,
        journal: str,
        begins: Column,
        ends: Column,
        producers: Column,
        clocks: Column,
        flags: Column,
        payloads: Sequence[bytes],
        message_type: MessageType,
        resumes: Mapping[str, bytes] = _NO_RESUMES,
    ) -> None:
        """Make a batch of columns of equal length; lists become arrays."""
        self.journal = journal
        self.begins = np.asarray(begins, dtype=np.int64)
        self.ends = np.asarray(ends, dtype=np.int64)
        self.producers = np.asarray(producers, dtype=np.uint64)
        self.clocks = np.asarray(clocks, dtype=np.uint64)
        self.flags = np.asarray(flags, dtype=np.uint16)
        self.payloads = payloads
        self.message_type = message_type
        self.resumes = resumes

    def __len__(self) -> int:
        return len(self.begins)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, MessageBatch):
            return NotImplemented
        return (
            self.journal == other.journal
            and all(
                np.array_equal(mine, others)
                for mine, others in zip(self._numbers(), other._numbers(), strict=True)
            )
            and list(self.payloads) == list(other.payloads)
            and self.message_type == other.message_type
            and self.resumes == other.resumes
        )

    __hash__ = None  # type: ignore[assignment]  # arrays have none

    def __repr__(self) -> str:
        numbers = ", ".join(map(str, self._numbers()))
        return f"MessageBatch({self.journal!r}, {numbers}, {list(self.payloads)!r})"

    def _numbers(self) -> tuple[NDArray[Any], ...]:
        return self.begins, self.ends, self.producers, self.clocks, self.flags

    def pick(self, indices: Sequence[int] | NDArray[np.intp]) -> MessageBatch:
        """Return the messages at `indices`, which must ascend."""
        count = len(indices)
        if count and indices[-1] - indices[0] + 1 == count:
            return self.span(int(indices[0]), int(indices[-1]) + 1)
        places = np.asarray(indices, dtype=np.intp)
        return MessageBatch(
            self.journal,
            self.begins[places],
            self.ends[places],
            self.producers[places],
            self.clocks[places],
            self.flags[places],
            _taken(self.payloads, places),
            self.message_type,
        )

    def span(self, start: int, stop: int) -> MessageBatch:
        """Return the messages [start, stop), which share the memory of these; this same object if they are all."""
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

    @property
    def is_sparse(self) -> bool:
        """True if these messages keep more in memory of those that were read with them than they take themselves."""
        whole = self.begins.base
        if isinstance(whole, np.ndarray) and whole.size > 2 * len(self) + _FEW:
            return True
        payloads = self.payloads
        return isinstance(payloads, Payloads) and payloads.is_sparse

    def compact(self) -> MessageBatch:
        """Return a copy that shares no memory, so that a few messages do not keep all that were read with them."""
        payloads = self.payloads
        return MessageBatch(
            self.journal,
            self.begins.copy(),
            self.ends.copy(),
            self.producers.copy(),
            self.clocks.copy(),
            self.flags.copy(),
            payloads.compact() if isinstance(payloads, Payloads) else payloads,
            self.message_type,
        )

    def continues_in(self, following: MessageBatch) -> bool:
        """Tell whether a batch can be joined to this one at little cost, and without loss."""
        return (
            self.journal == following.journal
            and self.message_type is following.message_type
            and isinstance(self.payloads, Payloads)
            and isinstance(following.payloads, Payloads)
            and not (self.resumes or following.resumes)
        )

    @staticmethod
    def note(journal: str, message_type: MessageType, resumes: Mapping[str, bytes]) -> MessageBatch:
        """Return a batch without messages, which makes a shard commit `resumes` by itself.

        Args:
            journal: Name of the source.
            message_type: Of its messages.
            resumes: State by source name, not empty.
        """
        return MessageBatch(journal, [], [], [], [], [], [], message_type, resumes)

    @staticmethod
    def joined(parts: Sequence[MessageBatch]) -> MessageBatch:
        """Return the concatenation of one or more parts, all of one journal and message type."""
        if len(parts) == 1:
            return parts[0]
        return MessageBatch(
            parts[0].journal,
            np.concatenate([part.begins for part in parts]),
            np.concatenate([part.ends for part in parts]),
            np.concatenate([part.producers for part in parts]),
            np.concatenate([part.clocks for part in parts]),
            np.concatenate([part.flags for part in parts]),
            _joined([part.payloads for part in parts]),
            parts[0].message_type,
        )

    def messages(self) -> Iterator[Any]:
        """Decode and yield each message.

        Raises:
            FramingError: the message type cannot decode a message; the error names the message's position.
        """
        decoded = _decoded_at_once(self.payloads, self.message_type)
        if decoded is not None:
            return iter(decoded)
        return self._messages_one_by_one()

    def envelopes(self) -> Iterator[Envelope]:
        """Decode and yield each message with its position. Raises as `messages` does."""
        columns = (column.tolist() for column in self._numbers())
        return map(Envelope, repeat(self.journal), *columns, self.messages())

    def _messages_one_by_one(self) -> Iterator[Any]:
        decode = self.message_type.decode
        for index, payload in enumerate(self.payloads):
            try:
                message = decode(payload)
            # Every exception: a message type is application code, and its libraries raise errors of any class.
            except Exception as error:
                raise undecodable(self, index, error) from error
            yield message

    def to_arrow(self, schema: pa.Schema | None = None) -> pa.Table:
        """Return the messages as a `pyarrow.Table`, parsed in one pass where they are JSON lines.

        Arrow messages give their rows, without a copy.

        Args:
            schema: Columns to read; fields that it does not name are left out. Of CSV records it names every field in
                order, with or without `uuid` before them. None: all columns, with the types that the messages suggest:
                JSON numbers become 64-bit integers or floating-point numbers, texts stay texts, as do all fields of
                CSV records.

        Raises:
            FramingError: a message cannot be decoded, or its values do not fit the columns. Without a schema that is so
                for an integer beyond 64 bits, or one that a column of floating-point numbers would round.
            ExtraMissingError: pyarrow is missing (the extra `spark`).
        """
        with needing("MessageBatch.to_arrow"):
            from broadsheet.journals.content.tables import table_of

            return table_of(self, schema)

    def to_pandas(self, schema: pa.Schema | None = None) -> Any:
        """Return the messages as a `pandas.DataFrame`: `to_arrow`, converted without a copy where types allow.

        Integers among nulls become floating-point numbers, or objects if those would round one of them.

        Args:
            schema: As of `to_arrow`.

        Raises:
            ExtraMissingError: pandas or pyarrow is missing (the extra `spark`).
        """
        with needing("MessageBatch.to_pandas"):
            # Imported here, because pyarrow would name it only once all is parsed.
            import pandas as pd  # type: ignore[import-untyped]  # noqa: F401 - its stubs would be a dependency

            from broadsheet.journals.content.tables import pandas_of, table_of

            return pandas_of(table_of(self, schema))

    def to_polars(self, schema: pa.Schema | None = None) -> Any:
        """Return the messages as a `polars.DataFrame`: `to_arrow`, without a copy where types allow.

        Args:
            schema: As of `to_arrow`.

        Raises:
            ExtraMissingError: polars or pyarrow is missing (the extra `polars`).
        """
        with needing("MessageBatch.to_polars", extra="polars"):
            import polars as pl

            from broadsheet.journals.content.tables import table_of

            return pl.from_arrow(table_of(self, schema))


def _taken(payloads: Sequence[bytes], places: NDArray[np.intp]) -> Sequence[bytes]:
    if isinstance(payloads, Payloads):
        return payloads.take(places)
    # Payloads of other sources carry metadata, so each stays the object that it is.
    return [payloads[place] for place in places.tolist()]


def _joined(parts: Sequence[Sequence[bytes]]) -> Sequence[bytes]:
    views = [part for part in parts if isinstance(part, Payloads)]
    return Payloads.joined(views) if len(views) == len(parts) else list(chain.from_iterable(parts))


def payload_sizes(batch: MessageBatch) -> Offsets:
    """Return the bytes of each payload, shape (N,)."""
    payloads = batch.payloads
    if isinstance(payloads, Payloads):
        return payloads.ends - payloads.begins
    return np.fromiter(map(len, payloads), dtype=np.int64, count=len(payloads))


# Batch construction: payloads get their UUID columns here, the only step of reading that looks into every message.


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


class BulkDecoder(Protocol):
    """The optional bulk path of a message type: all messages of a run in one call."""

    def decode_all(self, payloads: Sequence[bytes]) -> Sequence[Any] | None:
        """Return N messages; None if they must be decoded one by one, for example to find one that is no message."""
        ...


@lru_cache
def _prefers(kind: type, bulk: str, single: str) -> bool:
    """Tell whether a class has a bulk path that its path for one message does not override."""
    for each in kind.__mro__:
        if bulk in vars(each):
            return True
        if single in vars(each):
            return False
    return False


def _decoded_at_once(payloads: Sequence[bytes], message_type: MessageType) -> Sequence[Any] | None:
    if not _prefers(type(message_type), "decode_all", "decode"):
        return None
    return cast("BulkDecoder", message_type).decode_all(payloads)


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
        return MessageBatch(
            journal, frames.begins, frames.ends, *parse_uuids(uuids), frames.payloads, message_type
        )
    return _with_damage(journal, frames, message_type)


def unreadable_apart(batch: MessageBatch) -> Iterator[tuple[MessageBatch, bool]]:
    """Yield a batch in parts, in order; each `UNREADABLE` entry is a part by itself, paired with True."""
    start = 0
    for index in np.flatnonzero(batch.flags == UNREADABLE).tolist():
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
    for begin, end, payload in _each(frames):
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
    columns.flags[[uuid is None for _, _, _, uuid in found]] = UNREADABLE
    return MessageBatch(
        journal,
        [begin for begin, _, _, _ in found],
        [end for _, end, _, _ in found],
        *columns,
        [payload for _, _, payload, _ in found],
        message_type,
    )


def _each(frames: Frames) -> Iterable[tuple[int, int, bytes]]:
    begins, ends = np.asarray(frames.begins), np.asarray(frames.ends)
    return zip(begins.tolist(), ends.tolist(), frames.payloads, strict=True)


def _until_culprit(
    journal: str, frames: Frames, message_type: MessageType
) -> tuple[bytes, FramingError | None]:
    uuids: list[bytes] = []
    for begin, end, payload in _each(frames):
        try:
            uuids.append(_uuid_of(payload, message_type))
        except Exception as cause:
            error = FramingError(journal, offset=begin, end=end, detail=said_by(cause))
            error.__cause__ = cause
            return b"".join(uuids), error
    return b"".join(uuids), None


def _uuids_of(payloads: Sequence[bytes], message_type: MessageType) -> bytes:
    if _prefers(type(message_type), "uuids_of", "uuid_of"):
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
