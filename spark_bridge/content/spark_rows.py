"""Rows of Spark columns as JSON lines, as Spark's JSON sink writes their values.

A map is an object, whose keys are texts; a decimal is a number; a time with a zone is UTC.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from broadsheet.journals.message.column_texts import Part, plain_text, timestamp_text
from broadsheet.journals.message.json_rows import JsonRows, elements_of, join_parts, joined_lists
from broadsheet.journals.message.plain_columns import plain_column, plain_type
from broadsheet.journals.message.row_errors import named_value_error


class SparkRows(JsonRows):
    """Writes batches of Spark's rows as JSON lines."""

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
