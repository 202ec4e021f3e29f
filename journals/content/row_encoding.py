"""The encoding of rows of columns as messages, for content types whose messages hold rows.

Needs pyarrow, which is imported at first use.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from broadsheet.journals.content.message_type import CarriesTrace, MessageType
from broadsheet.journals.message.framing import Framing
from broadsheet.journals.message.row_errors import RowValueError
from broadsheet.journals.message.uuid import Bytes

if TYPE_CHECKING:
    import pyarrow as pa


class Stamps(Protocol):
    """The UUIDs and the trace context of messages that are published together."""

    @property
    def traceparent(self) -> str:
        """The trace context, as W3C Trace Context writes it; empty if nothing is traced."""
        ...

    def take(self, count: int) -> Bytes:
        """Return the UUIDs of the next messages, one or more, in the order of their clocks; shape (count, 16)."""
        ...


RowsEncoder: TypeAlias = Callable[["pa.RecordBatch", Stamps], bytes]
"""Returns the frames of one row or more, stamped, in their order. Raises `RowValueError` for a value that cannot be
encoded, or an error of any class if no row can."""


@runtime_checkable
class MadeOfRows(Protocol):
    """A message type whose messages are made of rows of columns, many at once."""

    def message_of(self, rows: pa.RecordBatch) -> Any:
        """Return the message of one row or more; see `RowType.message_of`."""
        ...


def pieces_encoder(framing: Framing, message_type: MessageType) -> RowsEncoder | None:
    """Return the encoder that makes one message of all rows, or several if they are many; None without `message_of`."""
    if not isinstance(message_type, MadeOfRows):
        return None
    return partial(_encode_pieces, framing, message_type)


def _encode_pieces(
    framing: Framing, message_type: Any, rows: pa.RecordBatch, stamps: Stamps
) -> bytes:
    from broadsheet.journals.message.arrow_ipc import cut_rows

    carries_trace = bool(stamps.traceparent) and isinstance(message_type, CarriesTrace)
    frames: list[bytes] = []
    row = 0
    for piece in cut_rows(rows):
        message = message_type.message_of(piece)
        message_type.set_uuid(message, stamps.take(1).tobytes())
        if carries_trace:
            message_type.set_traceparent(message, stamps.traceparent)
        try:
            frames.append(framing.frame(message_type.encode(message)))
        except RowValueError as error:
            raise error.at(row + error.row) from error
        except ValueError as error:
            # A piece that is too long is one row; other errors are not those of a value.
            if piece.num_rows > 1:
                raise
            sizes = zip(piece.columns, piece.schema.names, strict=True)
            _, name = max((column.nbytes, name) for column, name in sizes)
            raise RowValueError(name, row, str(error)) from error
        row += piece.num_rows
    return b"".join(frames)
