"""Arrow messages: a UUID and an IPC stream of one record batch each, length-prefixed.

The trace context is in the metadata of the message's schema.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from broadsheet.journals.content.message_type import MessageRun, MessageType
from broadsheet.journals.content.registry import ContentType
from broadsheet.journals.message.framing import ARROW_STREAM, FixedFraming
from broadsheet.journals.message.trace_contexts import traceparents_in_heads
from broadsheet.journals.message.types import ArrowMessage, ArrowType
from broadsheet.wire.journal_pb2 import LabelSet

if TYPE_CHECKING:
    import pyarrow as pa


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
    framing=FixedFraming(ARROW_STREAM),
    message_type=_message_type,
    shown=_shown,
    made_of=_made_of,
    holds_rows=True,
    table=_table,
    traceparents=traceparents_in_heads,
)
