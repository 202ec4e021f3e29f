"""A message batch as an Arrow table.

JSON lines and CSV records are parsed where they lie in the buffer that was read; Arrow's parsers release the
interpreter's lock. Arrow messages already are rows. Other messages are decoded one by one. Either way a table has the
values that `MessageBatch.messages` decodes, or it is refused. Needs pyarrow, which is imported at first use.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from broadsheet.journals.errors import FramingError
from broadsheet.journals.message.batch import MessageBatch
from broadsheet.journals.message.framing import ARROW_STREAM, CSV, NDJSON, Payloads
from broadsheet.journals.message.json_columns import integers_of
from broadsheet.journals.message.json_tables import check_text, json_table, may_be_rounded

if TYPE_CHECKING:
    import pyarrow as pa

CSV_UUID_COLUMN: Final = "uuid"


def table_of(batch: MessageBatch, schema: pa.Schema | None) -> pa.Table:
    """Return a batch as a table, as `MessageBatch.to_arrow` describes.

    Args:
        batch: The messages.
        schema: Columns to read; None: all, with the types that the messages suggest.

    Raises:
        FramingError: a message cannot be decoded, or a value does not fit the schema.
    """
    import pyarrow as pa

    content_type = batch.message_type.content_type
    try:
        if content_type == ARROW_STREAM:
            return _rows(batch, schema)
        if not len(batch):
            return (schema or pa.schema([])).empty_table()
        if content_type == NDJSON:
            return json_table(batch, schema)
        if content_type == CSV:
            return _csv(batch, schema)
        return _messages(batch, schema)
    except pa.ArrowException as error:
        for _ in batch.messages():
            pass  # Names the message that is none, if that is the cause.
        raise FramingError(
            batch.journal,
            offset=int(batch.begins[0]),
            end=int(batch.ends[-1]),
            detail=f"these {len(batch)} messages do not fit one table: {error}",
        ) from error


def _rows(batch: MessageBatch, schema: pa.Schema | None) -> pa.Table:
    """Return the rows of Arrow messages, which stay in the memory of their payloads."""
    import pyarrow as pa

    rows = [message.rows for message in batch.messages() if message.rows is not None]
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


def pandas_of(table: pa.Table) -> Any:
    """Return a table as a `pandas.DataFrame` of equal values."""
    # pandas makes floating-point numbers of integers among nulls, for want of a null of that type.
    return table.to_pandas(
        integer_object_nulls=any(_is_rounded_by_pandas(each) for each in integers_of(table))
    )


def _is_rounded_by_pandas(numbers: Any) -> bool:
    return bool(numbers.null_count) and may_be_rounded(numbers)


def _messages(batch: MessageBatch, schema: pa.Schema | None) -> pa.Table:
    """Return messages that have no parser of columns: decoded one by one, with the fields of all of them."""
    import pyarrow as pa

    messages = list(batch.messages())
    if schema is not None:
        return pa.Table.from_pylist(messages, schema)
    return pa.Table.from_struct_array(pa.array(messages))


def _csv(batch: MessageBatch, schema: pa.Schema | None) -> pa.Table:
    """Return records as columns: those of the schema, or `uuid`, `f1`, `f2` and so on, which are text.

    A schema names every field in order; one that begins with `uuid` names the UUID, too.
    """
    import pyarrow as pa
    import pyarrow.csv as pa_csv

    payloads = batch.payloads
    lines = payloads.lines() if isinstance(payloads, Payloads) else None
    content: Any = Payloads.of(list(payloads)).buffer if lines is None else lines
    check_text(batch, np.frombuffer(content, dtype=np.uint8))
    first = next(_records(batch))
    names = [f"f{n}" for n in range(1, len(first))] if schema is None else list(schema.names)
    if names[:1] == [CSV_UUID_COLUMN]:
        del names[0]
    # Never inferred: "007" is no 7, and "NaN" not nothing.
    types = {CSV_UUID_COLUMN: pa.string()} | dict.fromkeys(names, pa.string())
    if schema is not None:
        types |= dict(zip(schema.names, schema.types, strict=True))
    table = pa_csv.read_csv(
        pa.BufferReader(pa.py_buffer(content)),
        read_options=pa_csv.ReadOptions(
            use_threads=False,
            block_size=len(content) + 1,
            column_names=[CSV_UUID_COLUMN, *names],
        ),
        parse_options=pa_csv.ParseOptions(newlines_in_values=True, ignore_empty_lines=False),
        convert_options=pa_csv.ConvertOptions(column_types=types, null_values=[""]),
    )
    if table.num_rows != len(batch):
        raise pa.ArrowInvalid(f"{table.num_rows} rows in {len(batch)} messages")
    return table if schema is None else table.select(schema.names)


def _records(batch: MessageBatch) -> Iterator[list[str]]:
    return batch.messages()
