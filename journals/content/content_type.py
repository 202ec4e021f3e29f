"""The record of a content type: everything that depends on it, in one value.

A content type is one module of this package that ends with its record, `CONTENT`. `registry` lists the records.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from broadsheet.journals.content.message_type import MessageRun, MessageType
from broadsheet.journals.content.row_encoding import RowsEncoder
from broadsheet.journals.message.framing import Framing

if TYPE_CHECKING:
    import pyarrow as pa

    from broadsheet.wire.journal_pb2 import LabelSet

Table: TypeAlias = "pa.Table"


def rows_one_by_one(run: MessageRun, schema: pa.Schema | None) -> Table:
    """Return messages that have no parser of columns: decoded one by one, with the fields of all of them."""
    import pyarrow as pa

    messages = list(run.messages())
    if schema is not None:
        return pa.Table.from_pylist(messages, schema)
    return pa.Table.from_struct_array(pa.array(messages))


def not_made_of_values(message_type: MessageType, values: Sequence[Any]) -> Any:
    """Refuse values.

    Raises:
        ValueError: always; messages of this content type are made by programs alone.
    """
    del values
    raise ValueError(f"messages of {message_type.content_type} cannot be made of JSON values")


def no_traceparents(payloads: Sequence[bytes]) -> Iterator[str]:
    """Yield none: the messages have no room for a trace context beside the application's own fields."""
    del payloads
    return iter(())


def no_rows_encoder(message_type: MessageType) -> RowsEncoder | None:
    """Return None: messages are not made of rows of columns."""
    del message_type
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentType:
    """Everything that depends on the content type of a journal."""

    name: str
    """The MIME type, as in a journal's label `content-type`."""
    framing: Framing
    message_type: Callable[[LabelSet, type[Any] | None], MessageType]
    """Returns the type of a journal's messages for tools and Spark, which know its labels and, where the user names
    one, the class of its messages. Raises ValueError if that is not enough; the error says what is missing."""
    shown: Callable[[Any], list[Any]]
    """Returns what a tool shows of a message: values that JSON can hold, one a line; none of an acknowledgement."""
    is_text: bool = False
    """Whether messages are lines of text, so that lines which somebody wrote may be appended as they are."""
    made_of: Callable[[MessageType, Sequence[Any]], Any] = not_made_of_values
    """Returns the message of values as `shown` returns them: of exactly one, or of one or more rows if `holds_rows`. A
    UUID among the values is replaced when the message is published. Raises `ValueError` for values that no message of
    this type holds."""
    holds_rows: bool = False
    """Whether a message holds any number of rows, so that a tool puts many of them into one."""
    table: Callable[[MessageRun, pa.Schema | None], Table] = rows_one_by_one
    """Returns one message or more as a table, of the columns of a schema or of all; see `MessageBatch.to_arrow`. Raises
    `FramingError`, or an error of Arrow, which the caller explains."""
    table_columns: Callable[[MessageRun], Sequence[str]] | None = None
    """Returns the names of all columns of a table, where a schema must name each of them; None: any may be named."""
    rows_encoder: Callable[[MessageType], RowsEncoder | None] = no_rows_encoder
    """Returns the encoder of rows of columns, for `Publisher.publish_batch`; None if this message type has none."""
    traceparents: Callable[[Sequence[bytes]], Iterator[str]] = no_traceparents
    """Yields the trace contexts of some payloads as they are written there, without a look at each payload."""
    labels: tuple[str, ...] = ()
    """Labels of a journal, beside the content type, on which the encoding of its messages depends."""
    spark_columns: str = ""
    """Name of the module in `broadsheet.spark_bridge.content` that reads and writes these messages by columns; empty:
    Spark reads and writes them row by row, because their message type is a `RowType`."""
