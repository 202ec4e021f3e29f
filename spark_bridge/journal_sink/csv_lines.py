r"""Rows as lines of comma-separated values, the UUID first: `uuid,value,...\n`.

Strings stand in quotes, so that an empty one differs from null, which is nothing at all. A string may hold line ends.

Source: gazette/core message/csv_framing.go (CSVRecord: the UUID is the first field; all records have as many).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.csv as pa_csv

from consumer.message.framing import CSV
from consumer.message.uuid import format_uuid
from spark_bridge.journal_sink.columns import check_columns
from spark_bridge.journal_sink.encoder import Encoded, Stretches, in_order
from spark_bridge.journal_sink.stamps import Stamper, uuid_texts
from spark_bridge.journal_sink.texts import (
    Indices,
    base64_text,
    fixed_width_texts,
    timestamp_text,
)

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_UUID_COLUMN = "uuid"


class CsvLines:
    """Encodes batches of rows."""

    content_type = CSV

    def __init__(self, schema: StructType) -> None:
        """Describe the rows.

        Raises:
            PublishError: a column is a list, a map or a struct, or of a type that has no text.
        """
        check_columns(schema, form="CSV", nested=False)
        self._columns = len(schema.fields)

    def encode(
        self,
        rows: pa.RecordBatch,
        stretches: Stretches,
        stamper: Stamper,
        order: Indices | None = None,
    ) -> Encoded:
        """Return the lines of each stretch of rows, and how many they are."""
        rows = in_order(rows, order)
        uuids = stamper.stamp_messages(rows.num_rows)
        lines = pa.RecordBatch.from_arrays(
            [fixed_width_texts(uuid_texts(uuids)), *map(_writable, rows.columns)],
            [_UUID_COLUMN, *rows.schema.names],
        )
        contents = [_written(lines.slice(begin, end - begin)) for begin, end in stretches]
        return Encoded(contents, [end - begin for begin, end in stretches])

    def acknowledgement(self, uuid: bytes) -> bytes:
        """Return a line of the UUID and as many empty fields as there are columns."""
        return format_uuid(uuid).encode() + b"," * self._columns + b"\n"


def _writable(column: Any) -> Any:
    if pa.types.is_timestamp(column.type):
        return timestamp_text(column)
    if pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type):
        return base64_text(column)
    if pa.types.is_null(column.type):
        return pa.nulls(len(column), pa.string())
    return column


def _written(lines: pa.RecordBatch) -> bytes:
    if not lines.num_rows:
        return b""
    content = pa.BufferOutputStream()
    pa_csv.write_csv(lines, content, pa_csv.WriteOptions(include_header=False))
    return bytes(content.getvalue())
