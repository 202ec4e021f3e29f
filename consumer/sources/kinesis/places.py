"""Starting places in a stream's shards, and their entries in checkpoints.

Offsets of a shard count the bytes of its records, laid end to end from where the application began to read it; a record
takes at least one. They mean nothing to Kinesis, so each batch also notes in the checkpoint the sequence numbers of its
first and its last record:

    offsets     begin          read_through      end
                  |  batch ........|..............|
    numbers     first                            last

If the batch was read to its end, a successor continues after `last`. Otherwise it reads again from `first` on, and
skips the records before `read_through`.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, TypeAlias, TypeVar

import msgspec

from broadsheet.consumer.errors import SourceDataLossError
from broadsheet.consumer.sources.part import AtTimestamp as AtTimestamp, Latest as Latest
from broadsheet.runtime.documents import DocumentError
from broadsheet.runtime.formats import Format, LaterFormatError

EntryT = TypeVar("EntryT", bound=msgspec.Struct)
PLACE: Final = Format(
    "a place in a stream of Kinesis", "let a member of that release serve the shard"
)
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class TrimHorizon:
    """Begin with the oldest record."""


@dataclass(frozen=True, slots=True)
class AtSequence:
    """Begin with the record of this number."""

    number: str


@dataclass(frozen=True, slots=True)
class AfterSequence:
    """Begin after the record of this number."""

    number: str


Start: TypeAlias = TrimHorizon | Latest | AtTimestamp
Place: TypeAlias = Start | AtSequence | AfterSequence


def place_arguments(place: Place) -> dict[str, Any]:  # Any: texts and times, as boto3 takes them.
    """Convert a place into Kinesis' arguments: `Type`, and the value that the type requires."""
    match place:
        case TrimHorizon():
            return {"Type": "TRIM_HORIZON"}
        case Latest():
            return {"Type": "LATEST"}
        case AtTimestamp(at):
            return {"Type": "AT_TIMESTAMP", "Timestamp": at}
        case AtSequence(number):
            return {"Type": "AT_SEQUENCE_NUMBER", "SequenceNumber": number}
        case AfterSequence(number):
            return {"Type": "AFTER_SEQUENCE_NUMBER", "SequenceNumber": number}


class Resume(msgspec.Struct, frozen=True, omit_defaults=True):
    """A shard's entry in a checkpoint, as JSON."""

    begin: int = 0
    """Offset of the batch, bytes."""
    end: int = 0
    """Offset behind it, bytes."""
    first: str = ""
    """Number of its first record of the stream; empty: nothing was read yet."""
    last: str = ""
    """Number of its last record of the stream."""
    ended: bool = False
    """True if the shard was read to its end."""

    def encode(self) -> bytes:
        """Encode the entry for a checkpoint."""
        return msgspec.json.encode(self)


class StreamEntry(msgspec.Struct, frozen=True, omit_defaults=True):
    """A stream's entry in a checkpoint, as JSON: its identity, and where shards begin that have no entry."""

    started_ms: int | None = None
    """When the application began with the latest records, milliseconds since the Unix epoch."""
    arn: str = ""
    """Names account and region beside the stream; empty: unknown."""
    created_ms: int = 0
    """When the stream was created, milliseconds since the Unix epoch. Of two streams of one name, one is the older."""
    again: bool = False
    """True if it is read from its beginning because it was created again."""

    @property
    def identity(self) -> str:
        """Text that two streams never share; empty if it is unknown."""
        return f"{self.arn} of {time_of(self.created_ms).isoformat()}" if self.arn else ""

    def encode(self) -> bytes:
        """Encode the entry for a checkpoint."""
        return msgspec.json.encode(self)


def decode_resume(name: str, content: bytes) -> Resume:
    """Decode a shard's entry in a checkpoint.

    Raises:
        SourceDataLossError: it is none of ours.
    """
    return _decoded(name, content, Resume)


def decode_stream_entry(name: str, content: bytes) -> StreamEntry:
    """Decode a stream's entry in a checkpoint.

    Raises:
        SourceDataLossError: it is none of ours.
    """
    entry = _decoded(name, content, StreamEntry)
    try:
        _ = entry.identity, time_of(entry.started_ms or 0)
    except OverflowError as error:
        raise _unreadable(name, error) from error
    return entry


def _decoded(name: str, content: bytes, kind: type[EntryT]) -> EntryT:
    try:
        return PLACE.decode_json(content, kind)
    except LaterFormatError as error:
        raise SourceDataLossError(name, str(error)) from error
    except DocumentError as error:
        raise _unreadable(name, error) from error


def _unreadable(name: str, error: Exception) -> SourceDataLossError:
    return SourceDataLossError(
        name, f"its checkpoint cannot be read, restore an earlier one: {error}"
    )


@dataclass(frozen=True, slots=True)
class Beginning:
    """Beginning of one reading of a shard."""

    place: Place
    offset: int
    """Offset of the first record to read, bytes."""
    skip_to: int
    """Records that begin below this offset were consumed before, and are skipped."""


def beginning_of(name: str, resume: Resume | None, read_through: int, start: Start) -> Beginning:
    """Return the beginning of a reading that resumes from a checkpoint.

    Args:
        name: Of the shard's messages.
        resume: What the checkpoint holds; None: nothing.
        read_through: The checkpoint's offset, bytes.
        start: Where to begin if nothing was read before.

    Raises:
        SourceDataLossError: the checkpoint contradicts itself.
    """
    if resume is None or not resume.first:
        return Beginning(start, read_through, read_through)
    if read_through == resume.end:
        return Beginning(AfterSequence(resume.last), read_through, read_through)
    if resume.begin <= read_through < resume.end:
        return Beginning(AtSequence(resume.first), resume.begin, read_through)
    raise SourceDataLossError(
        name,
        f"offset {read_through} of its checkpoint is not within [{resume.begin}, {resume.end}]"
        " that belongs to it; restore an earlier one",
    )


def time_of(milliseconds: int) -> datetime:
    """Convert milliseconds since the Unix epoch into a time, exactly."""
    return _EPOCH + timedelta(milliseconds=milliseconds)
