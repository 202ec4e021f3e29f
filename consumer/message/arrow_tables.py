"""A message batch as an Arrow table.

JSON lines and CSV records are parsed where they lie in the buffer that was read; Arrow's parsers release the
interpreter's lock. Arrow messages already are rows. Other messages are decoded one by one. Needs pyarrow, which is
imported at first use.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from numpy.typing import NDArray

from broadsheet.consumer.errors import FramingError
from broadsheet.consumer.message.batch import MessageBatch, undecodable
from broadsheet.consumer.message.framing import ARROW_STREAM, CSV, NDJSON, Payloads
from broadsheet.consumer.message.types import json_lines

if TYPE_CHECKING:
    import pyarrow as pa

_UNCHECKED_NESTING_MAX: Final = 256
"""Number of brackets in a JSON message up to which its nesting needs no check."""
_OPENING_BRACE: Final = ord("{")
_LOWER: Final = 0x20
"""Makes an opening brace of an opening bracket, and of no other character."""
_ASCII_END: Final = 128
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
            return _json(batch, schema)
        if content_type == CSV:
            return _csv(batch, schema)
        return pa.Table.from_pylist(list(batch.messages()), schema)
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


def _json(batch: MessageBatch, schema: pa.Schema | None) -> pa.Table:
    import pyarrow as pa
    import pyarrow.json as pa_json

    lines = json_lines(batch.payloads)
    payloads = Payloads.of(list(batch.payloads)) if lines is None else batch.payloads
    assert isinstance(payloads, Payloads), "lines are in one buffer"
    content: Any = payloads.buffer if lines is None else lines
    codes = np.frombuffer(content, dtype=np.uint8)
    _check_nesting(batch, payloads, codes)
    _check_text(batch, codes)
    table = pa_json.read_json(
        pa.BufferReader(pa.py_buffer(content)),
        # One block, so that each column is one array; and no threads, because shards share the cores.
        read_options=pa_json.ReadOptions(use_threads=False, block_size=len(content) + 1),
        parse_options=pa_json.ParseOptions(
            explicit_schema=schema,
            unexpected_field_behavior="infer" if schema is None else "ignore",
        ),
    )
    # An empty line, or two objects on one, would shift the rows after it.
    if table.num_rows != len(batch):
        raise pa.ArrowInvalid(f"{table.num_rows} rows in {len(batch)} messages")
    return table if schema is None else table.select(schema.names)


def _check_nesting(batch: MessageBatch, payloads: Payloads, codes: NDArray[np.uint8]) -> None:
    """Refuse what is nested too deep: Arrow's parser overflows the thread's stack, which kills the process."""
    # The usual case: each message is too short for so many brackets.
    if int((payloads.ends - payloads.begins).max()) <= _UNCHECKED_NESTING_MAX:
        return
    opening = np.flatnonzero((codes | _LOWER) == _OPENING_BRACE)
    starts = payloads.begins - payloads.begins[0]
    bounds = opening.searchsorted(np.append(starts, len(codes)))
    for index in np.flatnonzero(np.diff(bounds) > _UNCHECKED_NESTING_MAX).tolist():
        try:
            msgspec.json.decode(batch.payloads[index])
        except RecursionError as error:
            raise undecodable(batch, index, error) from error
        except (msgspec.MsgspecError, UnicodeDecodeError):
            pass  # Not JSON: it has no nesting, and the parser refuses it.


def _check_text(batch: MessageBatch, codes: NDArray[np.uint8]) -> None:
    """Refuse bytes that are not UTF-8, which Arrow's parsers pass on as text."""
    if int(codes.max(initial=0)) < _ASCII_END:
        return
    for index, payload in enumerate(batch.payloads):
        try:
            payload.decode("utf-8")
        except UnicodeDecodeError as error:
            raise undecodable(batch, index, error) from error


def _csv(batch: MessageBatch, schema: pa.Schema | None) -> pa.Table:
    """Return records as columns: the UUID, then those of the schema, or `f1`, `f2` and so on."""
    import pyarrow as pa
    import pyarrow.csv as pa_csv

    payloads = batch.payloads
    lines = payloads.lines() if isinstance(payloads, Payloads) else None
    content: Any = Payloads.of(list(payloads)).buffer if lines is None else lines
    _check_text(batch, np.frombuffer(content, dtype=np.uint8))
    first = next(_records(batch))
    names = schema.names if schema is not None else [f"f{n}" for n in range(1, len(first))]
    types = {CSV_UUID_COLUMN: pa.string()}
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
        convert_options=pa_csv.ConvertOptions(column_types=types),
    )
    if table.num_rows != len(batch):
        raise pa.ArrowInvalid(f"{table.num_rows} rows in {len(batch)} messages")
    return table if schema is None else table.select(schema.names)


def _records(batch: MessageBatch) -> Iterator[list[str]]:
    return batch.messages()
