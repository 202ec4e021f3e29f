"""Arrow messages: a UUID and an IPC stream of one record batch each, length-prefixed.

The trace context is in the metadata of the message's schema.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from broadsheet.journals.content.content_type import ContentType
from broadsheet.journals.content.message_type import MessageRun, MessageType
from broadsheet.journals.content.row_encoding import pieces_encoder
from broadsheet.journals.content.traceparents import traceparents_in_heads
from broadsheet.journals.message.arrow_ipc import check_texts, check_values, read_stream
from broadsheet.journals.message.framing import FixedFraming
from broadsheet.journals.message.uuid import NIL_UUID, UUID_BYTES
from broadsheet.runtime.libraries import needing
from broadsheet.serving.tracing import TRACEPARENT
from broadsheet.wire.journal_pb2 import LabelSet

if TYPE_CHECKING:
    import pyarrow as pa

ARROW_STREAM: Final = "application/vnd.apache.arrow.stream"
"""The content type of Arrow messages."""
_FRAMING: Final = FixedFraming()


@dataclass(slots=True)
class ArrowMessage:
    """Rows that were published together."""

    rows: pa.RecordBatch | None
    """None in an acknowledgement."""
    uuid: bytes = NIL_UUID
    traceparent: str = ""
    """The trace context, which becomes metadata of the schema when the message is encoded."""


class ArrowType:
    """Arrow messages: a UUID, then an IPC stream of one record batch. Needs pyarrow (the extra `spark`).

    The UUID precedes the stream, so that sequencing parses no Arrow; an acknowledgement is only a UUID.
    """

    content_type = ARROW_STREAM

    def __init__(self) -> None:
        """See that pyarrow is there: a shard without it must not start.

        Raises:
            ExtraMissingError: it is not.
        """
        with needing("Arrow messages"):
            import pyarrow as pa  # noqa: F401

    def decode(self, payload: bytes) -> Any:
        """Return the rows of a payload, validated; they share its memory."""
        import pyarrow as pa

        uuid = self.uuid_of(payload)
        if len(payload) == UUID_BYTES:
            return ArrowMessage(None, uuid)
        _, batches = read_stream(pa.py_buffer(payload).slice(UUID_BYTES))
        if not batches:
            raise ValueError("not an Arrow stream of one batch: it has none")
        return ArrowMessage(batches[0], uuid)

    def encode(self, message: Any) -> bytes:
        """Return the UUID followed by the stream.

        Raises:
            RowValueError: readers would refuse a value: text that is not UTF-8, or a list of too many nulls.
            ValueError: the rows are more than readers take in one message.
        """
        import pyarrow as pa

        if message.rows is None:
            return bytes(message.uuid)
        check_texts(message.rows)
        check_values(message.rows)
        sink = pa.BufferOutputStream()
        sink.write(message.uuid)
        schema = message.rows.schema
        if message.traceparent:
            schema = schema.with_metadata(
                {**(schema.metadata or {}), TRACEPARENT: message.traceparent}
            )
        with pa.ipc.new_stream(sink, schema) as stream:
            stream.write_batch(message.rows)
        return bytes(sink.getvalue())

    def uuid_of(self, payload: bytes) -> bytes:
        """Return the first 16 bytes."""
        if len(payload) < UUID_BYTES:
            raise ValueError(f"{len(payload)} bytes hold no UUID")
        return payload[:UUID_BYTES]

    def set_uuid(self, message: Any, uuid: bytes) -> None:
        """Set the UUID."""
        message.uuid = uuid

    def set_traceparent(self, message: Any, traceparent: str) -> None:
        """Set the context."""
        message.traceparent = traceparent

    def new_acknowledgement(self, journal: str) -> Any:
        """Return a message without rows."""
        del journal
        return ArrowMessage(None)

    def message_of(self, rows: pa.RecordBatch) -> Any:
        """See `RowMessages.message_of`."""
        return ArrowMessage(rows)


# ---- The content type ----


def _message_type(labels: LabelSet, message_class: type[Any] | None) -> MessageType:
    del labels
    if message_class is not None:
        raise ValueError("expected no class of messages: Arrow messages name their columns")
    return ArrowType()


def _shown(message: ArrowMessage) -> list[Any]:
    return [] if message.rows is None else message.rows.to_pylist()


def _made_of(message_type: MessageType, values: Sequence[Any]) -> ArrowMessage:
    del message_type
    import pyarrow as pa

    if not all(isinstance(value, dict) and value for value in values):
        raise ValueError("expected a JSON object, the columns of a row")
    try:
        # Of all rows: `from_pylist` would take the columns of the first, and drop others.
        return ArrowMessage(pa.RecordBatch.from_struct_array(pa.array(values)))
    except (pa.ArrowException, OverflowError) as error:
        raise ValueError(" ".join(str(error).split())) from error


def _table(run: MessageRun, schema: pa.Schema | None) -> pa.Table:
    """Return the rows of Arrow messages, which stay in the memory of their payloads."""
    import pyarrow as pa

    rows = [message.rows for message in run.messages() if message.rows is not None]
    if not rows:
        return (schema or pa.schema([])).empty_table()
    if schema is not None:
        return pa.Table.from_batches([_fitted(each, schema) for each in rows], schema)
    if all(each.schema.equals(rows[0].schema) for each in rows):
        return pa.Table.from_batches(rows)
    return pa.concat_tables(
        [pa.Table.from_batches([each]) for each in rows], promote_options="default"
    )


def _fitted(rows: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """Return the columns of a schema, with its types; those that are absent are null."""
    import pyarrow as pa

    present = set(rows.schema.names)
    columns = [
        rows.column(field.name).cast(field.type)
        if field.name in present
        else pa.nulls(rows.num_rows, field.type)
        for field in schema
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


CONTENT: Final = ContentType(
    name=ARROW_STREAM,
    framing=_FRAMING,
    message_type=_message_type,
    shown=_shown,
    table=_table,
    made_of=_made_of,
    holds_rows=True,
    rows_encoder=lambda message_type: pieces_encoder(_FRAMING, message_type),
    traceparents=traceparents_in_heads,
    spark_columns="arrow",
)
