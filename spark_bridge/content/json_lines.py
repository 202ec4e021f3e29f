"""Encodes rows of Spark columns as JSON lines, with values as Spark's JSON sink writes them.

A map is an object, whose keys are texts; a decimal is a number; a time with a zone is UTC.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    StructType,
)

from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.message.column_texts import Indices, Part, plain_text, timestamp_text
from broadsheet.journals.message.framing import LineFraming
from broadsheet.journals.message.json_rows import JsonRows, elements_of, join_parts, joined_lists
from broadsheet.journals.message.plain_columns import plain_column, plain_type
from broadsheet.journals.message.row_errors import named_value_error
from broadsheet.journals.message.uuid import format_uuid
from broadsheet.spark_bridge.content.encoder import Encoded, Stretches, check_columns
from broadsheet.spark_bridge.errors import PublishError
from broadsheet.spark_bridge.journal_sink.stamps import Stamper


class _SparkRows(JsonRows):
    """Writes values in Spark's forms."""

    def _plain(self, column: Any) -> Any:
        plain = plain_column(column, plain_type(column.type, widens=False))
        if plain is None:
            raise ValueError(f"JSON lines have nothing for {column.type}")
        return plain

    def _field_by_value(self, name: str, column: Any, error: Exception) -> list[Part]:
        # Spark's forms have no encoder of single values, and Spark's types need none.
        raise named_value_error(
            name, column, lambda some: self._field(name, some), error
        ) from error

    def _scalar(self, column: Any) -> list[Part]:
        if pa.types.is_decimal(column.type):
            return [plain_text(column)]
        return super()._scalar(column)

    def _time(self, column: Any) -> list[Part]:
        return [timestamp_text(column)]

    def _map(self, column: Any) -> list[Part]:
        keys, items = (elements_of(column, each) for each in (column.keys, column.items))
        texts = ['"', *self._key_texts(keys), '":', self._elements(items)]
        return ["{", joined_lists(column, join_parts(texts)), "}"]

    def _key_texts(self, keys: Any) -> list[Part]:
        kind = keys.type
        # Names of numbers that are not finite have no quotes of their own here.
        if pa.types.is_floating(kind):
            return [self._numbers(keys, quote="")]
        if pa.types.is_integer(kind) or pa.types.is_boolean(kind) or pa.types.is_decimal(kind):
            return self._scalar(keys)
        return self._quoted_scalar(keys)


class JsonLines:
    """Encodes batches of rows as JSON lines; a null field is left out, as by Spark's JSON sink, unless asked for."""

    content_type = NDJSON

    def __init__(self, schema: StructType, *, ignore_null_fields: bool = True) -> None:
        """Describe the rows.

        Args:
            schema: Their columns.
            ignore_null_fields: Leave out fields that are null.

        Raises:
            PublishError: a column cannot be written, or has the name of the UUID's field.
        """
        check_columns(schema, form="JSON", nested=True)
        if "_meta" in schema.names:
            raise PublishError(
                "column _meta: it holds the UUID of a JSON message; drop the column or rename it"
            )
        self._rows = _SparkRows(ignore_null_fields=ignore_null_fields)

    def encode(
        self,
        rows: pa.RecordBatch,
        stretches: Stretches,
        stamper: Stamper,
        order: Indices | None = None,
    ) -> Encoded:
        """Return the lines of each stretch of rows, and how many they are."""
        content, bounds = self._rows.lines(rows, stamper.stamp_messages(rows.num_rows), order)
        return Encoded(
            [content[bounds[begin] : bounds[end]] for begin, end in stretches],
            [end - begin for begin, end in stretches],
        )

    def acknowledgement(self, uuid: bytes) -> bytes:
        """Return the line of an acknowledgement, given its UUID."""
        return LineFraming().frame(JsonType().encode({"_meta": {"uuid": format_uuid(uuid)}}))
