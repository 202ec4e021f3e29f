"""The interfaces between a content type and the rest: codecs of messages, and runs of messages to be shown as rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from broadsheet.journals.errors import FramingError

if TYPE_CHECKING:
    import pyarrow as pa

    from broadsheet.journals.message.framing import Offsets


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


@runtime_checkable
class CarriesTrace(Protocol):
    """A `MessageType` whose messages have room for a trace context."""

    # `Any`: the application's own message class.
    def set_traceparent(self, message: Any, traceparent: str) -> None:
        """Write a context into a message that has its UUID."""
        ...


class RowType(MessageType, Protocol):
    """A message type whose messages hold rows, so that Spark needs no code of this content type.

    Objects of it are pickled to tasks. A message without rows is an acknowledgement.
    """

    def schema_of(self, message: Any) -> pa.Schema | None:
        """Return the columns of a message's rows; None if it has no rows.

        Raises:
            ValueError: Arrow has no such columns.
        """
        ...

    def rows_of(self, message: Any) -> list[dict[str, Any]]:
        """Return a message's rows, as Python values by column."""
        ...

    def columns(self) -> pa.Schema:
        """Return the columns that messages made of rows have.

        Raises:
            ValueError: messages cannot be made; the error says what is missing.
        """
        ...

    def message_of(self, rows: pa.RecordBatch) -> Any:
        """Return the message of one row or more. `encode` raises `RowValueError` for a value that it cannot hold."""
        ...


class MessageRun(Protocol):
    """The part that a content type needs of a run of messages of one journal; a `MessageBatch` is one."""

    @property
    def journal(self) -> str:
        """Name of the journal."""
        ...

    @property
    def begins(self) -> Offsets:
        """Offsets of first bytes, shape (N,)."""
        ...

    @property
    def ends(self) -> Offsets:
        """Offsets after last bytes, shape (N,)."""
        ...

    @property
    def payloads(self) -> Sequence[bytes]:
        """Unframed payloads."""
        ...

    @property
    def message_type(self) -> MessageType:
        """Codec of the payloads."""
        ...

    def __len__(self) -> int:
        """Return N."""
        ...

    def messages(self) -> Iterator[Any]:
        """Decode and yield each message.

        Raises:
            FramingError: one cannot be decoded; the error names its position.
        """
        ...


def undecodable(run: MessageRun, index: int, cause: Exception) -> FramingError:
    """Return the error that names the message that could not be decoded, and the cause."""
    return FramingError(
        run.journal,
        offset=int(run.begins[index]),
        end=int(run.ends[index]),
        detail=f"cannot be decoded: {said_by(cause)}",
    )


def said_by(cause: Exception) -> str:
    """Return the text of a decoder's error, with its class unless that is `ValueError`, the documented one."""
    if isinstance(cause, ValueError) and str(cause):
        return str(cause)
    return f"{type(cause).__name__}: {cause}" if str(cause) else type(cause).__name__
