"""The registry of content types: one record for each, which holds everything that depends on the content type.

Nothing else in the project asks for a content type by name. To add one, write a module beside this one that defines its
`CONTENT`, and add the line of the module to `_MODULES`. Its messages then work in shards, in `shardctl journals read`
and, if its message type is a `RowType`, in Spark. `broadsheet.spark_bridge.content.registry` lists those that have
readers and writers of their own there, which work on columns.

A record is loaded at first use, so that a process imports only the libraries of the content types that it meets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from broadsheet.journals.content.message_type import MessageRun, MessageType
from broadsheet.journals.errors import ContentTypeError
from broadsheet.journals.message.framing import ARROW_STREAM, CSV, NDJSON, PROTOBUF_FIXED, Framing

if TYPE_CHECKING:
    import pyarrow as pa

    from broadsheet.wire.journal_pb2 import LabelSet

AVRO: Final = "application/vnd.apache.avro"
"""The content type of Avro messages."""

_MODULES: Final[Mapping[str, str]] = MappingProxyType(
    {
        NDJSON: "json",
        CSV: "csv",
        PROTOBUF_FIXED: "protobuf",
        ARROW_STREAM: "arrow",
        AVRO: "avro",
    }
)
"""Module of each content type, in this package."""

Table: TypeAlias = "pa.Table"


def rows_one_by_one(run: MessageRun, schema: pa.Schema | None) -> Table:
    """Return messages that have no parser of columns: decoded one by one, with the fields of all of them."""
    import pyarrow as pa

    messages = list(run.messages())
    if schema is not None:
        return pa.Table.from_pylist(messages, schema)
    return pa.Table.from_struct_array(pa.array(messages))


def _not_made(message_type: MessageType, values: Sequence[Any]) -> Any:
    del values
    raise ValueError(f"messages of {message_type.content_type} cannot be made of JSON values")


def no_traceparents(payloads: Sequence[bytes]) -> Iterator[str]:
    """Yield none: the messages have no room for a trace context beside the application's own fields."""
    del payloads
    return iter(())


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
    made_of: Callable[[MessageType, Sequence[Any]], Any] = _not_made
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
    traceparents: Callable[[Sequence[bytes]], Iterator[str]] = no_traceparents
    """Yields the trace contexts of some payloads as they are written there, without a look at each payload."""
    labels: tuple[str, ...] = ()
    """Labels of a journal, beside the content type, on which the encoding of its messages depends."""


_found: Final[dict[str, ContentType]] = {}


def content_types() -> tuple[str, ...]:
    """Return the names of all content types of messages."""
    return tuple(_MODULES)


def content_of(content_type: str, *, journal: str = "") -> ContentType:
    """Return the record of a content type; the error names `journal`.

    Raises:
        ContentTypeError: there is none, or the library that it needs is not installed.
    """
    found = _found.get(content_type)
    return _load(content_type, journal) if found is None else found


def registered(content_type: str) -> ContentType | None:
    """Return the record of a content type; None for one that only an application knows, such as of a Kafka source."""
    return content_of(content_type) if content_type in _MODULES else None


def framing_for(content_type: str, *, journal: str = "") -> Framing:
    """Return the framing of a content type; the error names `journal`.

    Raises:
        ContentTypeError: no framing of messages has this content type.
    """
    found = _found.get(content_type)
    return (_load(content_type, journal) if found is None else found).framing


def _load(content_type: str, journal: str) -> ContentType:
    module = _MODULES.get(content_type)
    if module is None:
        raise ContentTypeError(journal, content_type, f"expected one of {', '.join(_MODULES)}")
    content: ContentType = import_module(f"broadsheet.journals.content.{module}").CONTENT
    _found[content_type] = content
    return content
