"""Rows of Arrow columns as JSON lines with UUIDs: `{"_meta":{"uuid":"..."},"column":value,...}`.

Each column becomes an array of JSON texts, and one join makes the lines, which then lie one after the other in memory,
ready to be appended. A line is the message that its row is as a dict (`pyarrow.Table.to_pylist`): a map is a list of
pairs, a time has its zone's offset, a decimal is text. Types without a writer of columns are encoded value by value.

Needs pyarrow and orjson (`broadsheet[spark]`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from broadsheet.journals.message.column_texts import (
    Indices,
    InOrder,
    Part,
    base64_text,
    concatenated,
    date_text,
    escaped_text,
    fixed_width_texts,
    number_text,
    plain_text,
    time_parts,
)
from broadsheet.journals.message.framing import check_frame_bytes
from broadsheet.journals.message.json_values import encode_value, is_finite
from broadsheet.journals.message.plain_columns import plain_column, plain_type
from broadsheet.journals.message.row_errors import RowValueError, named_value_error
from broadsheet.journals.message.uuid import Bytes, first_digits, uuid_texts
from broadsheet.serving.tracing import TRACEPARENT

META: Final = "_meta"
"""The field of the UUID, which no column may have for a name."""
_HEAD: Final = ('{"_meta":{"uuid":"', '"}')
_NOT_FINITE: Final = (("nan", "NaN"), ("inf", "Infinity"), ("-inf", "-Infinity"))
"""Written as text, as by Spark's sink, because JSON has no such numbers."""


_NO_NUMBER: Final = "NaN or an infinite number, for which the message type has no field"


class JsonRows:
    """Writes batches of rows as JSON lines."""

    def __init__(
        self,
        *,
        ignore_null_fields: bool = False,
        traceparent: str = "",
        names_not_finite: bool = True,
    ) -> None:
        """Choose how to write.

        Args:
            ignore_null_fields: Leave fields that are null out, instead of writing null. Within lists and maps a null is
                always written.
            traceparent: The trace context of every line, beside its UUID; empty: none.
            names_not_finite: Write numbers that are not finite as text; else they are refused.
        """
        self._ignore_null_fields = ignore_null_fields
        self._traceparent = traceparent
        self._names_not_finite = names_not_finite

    def lines(
        self, rows: pa.RecordBatch, uuids: Bytes, order: Indices | None = None
    ) -> tuple[memoryview, npt.NDArray[np.int32]]:
        """Return the lines of rows, one after the other, and their offsets.

        Args:
            rows: N of them, whose names `check_columns` accepts.
            uuids: In the order of writing; shape (N, 16).
            order: Row indices in the order of writing, shape (N,); None: as they are.

        Returns:
            The bytes, and N + 1 offsets among them.

        Raises:
            RowValueError: a value cannot be written, such as text that is not UTF-8 and a time with parts of a
                microsecond, or a line is longer than readers take.
        """
        parts: list[Part] = _head(uuids, self._traceparent)
        for name, column in zip(rows.schema.names, rows.columns, strict=True):
            parts.extend(self._named_field(name, column))
        content, bounds = concatenated(_merged([*parts, "}\n"]), rows.num_rows, order)
        self._check_lengths(rows, bounds, order)
        return content, bounds

    def _check_lengths(
        self, rows: pa.RecordBatch, bounds: npt.NDArray[np.int32], order: Indices | None
    ) -> None:
        """Refuse a line that is too long; the error names the column with the longest text."""
        lengths = np.diff(bounds) - 1
        longest = int(lengths.argmax()) if len(lengths) else 0
        try:
            check_frame_bytes(int(lengths.max(initial=0)))
        except ValueError as error:
            row = longest if order is None else int(order[longest])
            sizes = [
                (
                    len(join_parts(self._field(name, column.slice(row, 1)), nulls="")[0].as_py()),
                    name,
                )
                for name, column in zip(rows.schema.names, rows.columns, strict=True)
            ]
            raise RowValueError(max(sizes)[1], row, str(error)) from error

    def _named_field(self, name: str, column: Any) -> list[Part]:
        try:
            return self._field(name, column)
        except ModuleNotFoundError:
            raise  # Value by value would work, several times slower, and never say why.
        # Arrow and encoders raise errors of many classes for values that they refuse.
        except Exception as error:
            return self._field_by_value(name, column, error)

    def _field_by_value(self, name: str, column: Any, error: Exception) -> list[Part]:
        """Return a field that cannot be written by columns, which Arrow refuses for some slices of nested lists.

        Raises:
            RowValueError: a value cannot be written at all.
        """
        try:
            return self._written(name, self._texts_by_value(column))
        except Exception as cause:
            raise named_value_error(name, column, self._texts_by_value, error) from cause

    def _field(self, name: str, column: Any) -> list[Part]:
        plain = self._plain(column)
        if plain is None:
            return self._written(name, self._texts_by_value(column))
        return self._written(name, plain, self._value(plain))

    def _written(self, name: str, column: Any, parts: Sequence[Part] | None = None) -> list[Part]:
        """Return a field with its name.

        Args:
            name: The name.
            column: The values, of which some may be null.
            parts: Their texts; None: the column is their text.
        """
        label, texts = f",{_quoted(name)}:", [column] if parts is None else parts
        if not column.null_count:
            return [label, *texts]
        if self._ignore_null_fields:
            return [join_parts([label, *texts])]
        return [label, pc.fill_null(join_parts(texts), "null")]

    def _texts_by_value(self, column: Any) -> Any:
        """Return the JSON of each value, null where it is null."""
        texts: list[str | None] = []
        for value in column.to_pylist():
            if not self._names_not_finite and not is_finite(value):
                raise ValueError(_NO_NUMBER)
            texts.append(None if value is None else encode_value(value).decode())
        return pa.array(texts, pa.string())

    def _plain(self, column: Any) -> Any:
        """Return a column of types that `_value` writes; None if they must be encoded value by value."""
        return plain_column(column, plain_type(column.type))

    def _value(self, column: Any) -> list[Part]:
        """Return a column's values as parts to be joined; the join is null where a value is null."""
        kind = column.type
        if pa.types.is_null(kind):
            return [pa.nulls(len(column), pa.string())]
        if pa.types.is_struct(kind):
            return [self._struct(column)]
        if pa.types.is_map(kind):
            return self._map(column)
        if pa.types.is_list(kind):
            return [
                "[",
                joined_lists(column, self._elements(elements_of(column, column.values))),
                "]",
            ]
        return self._scalar(column)

    def _scalar(self, column: Any) -> list[Part]:
        kind = column.type
        if pa.types.is_integer(kind):
            return [number_text(column)]
        if pa.types.is_floating(kind):
            return [self._numbers(column)]
        if pa.types.is_boolean(kind):
            return [plain_text(column)]
        return ['"', *self._quoted_scalar(column), '"']

    def _quoted_scalar(self, column: Any) -> list[Part]:
        """Return the texts between quotes of values that are no numbers and no truth values."""
        kind = column.type
        if pa.types.is_string(kind):
            return [escaped_text(column)]
        if pa.types.is_date(kind):
            return [date_text(column)]
        if pa.types.is_timestamp(kind):
            return self._time(column)
        if pa.types.is_decimal(kind):
            return [plain_text(column)]
        return [base64_text(column)]

    def _time(self, column: Any) -> list[Part]:
        return time_parts(column)

    def _numbers(self, column: Any, *, quote: str = '"') -> Any:
        if pc.all(pc.is_finite(column)).as_py() is not False:
            return number_text(column)
        if not self._names_not_finite:
            raise ValueError(_NO_NUMBER)
        text = number_text(pc.if_else(pc.is_finite(column), column, pa.scalar(0, column.type)))
        names = plain_text(column)
        for found, written in _NOT_FINITE:
            text = pc.if_else(pc.equal(names, found), f"{quote}{written}{quote}", text)
        return text

    def _map(self, column: Any) -> list[Part]:
        """Return maps as lists of pairs, because a key may be of any type."""
        keys, items = (elements_of(column, each) for each in (column.keys, column.items))
        pairs = join_parts(["[", *self._value(keys), ",", self._elements(items), "]"])
        return ["[", joined_lists(column, pairs), "]"]

    def _elements(self, values: Any) -> Any:
        return pc.fill_null(join_parts(self._value(values)), "null")

    def _struct(self, column: Any) -> Any:
        parts: list[Part] = []
        for field, values in zip(column.type, column.flatten(), strict=True):
            parts.extend(self._field(field.name, values))
        if not parts:
            text = pa.array(["{}"] * len(column), pa.string())
        else:
            # Every field comes with a comma before it; the first comma is removed.
            body = pc.utf8_slice_codeunits(join_parts(parts, nulls=""), 1)
            text = join_parts(["{", body, "}"])
        return pc.if_else(pc.is_valid(column), text, pa.scalar(None, pa.string()))


def check_columns(schema: pa.Schema) -> None:
    """Refuse names of columns that JSON messages cannot have.

    Raises:
        ValueError: a column has the name of the UUID's field, or that of another column.
    """
    for name in schema.names:
        if name == META:
            raise ValueError(
                f"column {META}: it holds the UUID of a JSON message; rename the column"
            )
        if schema.names.count(name) > 1:
            raise ValueError(f"column {name}: expected one of this name, got more")


def _head(uuids: Bytes, traceparent: str) -> list[Part]:
    """Return the beginning of each line, up to the closing brace of `_meta`."""
    before, after = _HEAD
    if traceparent:
        after = f'","{TRACEPARENT}":"{traceparent}{after}'
    found = first_digits(uuids)
    if found is None:
        return [before, InOrder(fixed_width_texts(uuid_texts(uuids))), after]
    digits, rest = found
    return [before, InOrder(fixed_width_texts(digits)), rest.decode() + after]


def joined_lists(column: Any, texts: Any) -> Any:
    """Return the texts of each list's elements, separated by commas; see `elements_of`."""
    # Copied, because Arrow takes no mask with the offsets of a slice.
    offsets = np.array(column.offsets)
    lists = pa.ListArray.from_arrays(
        pa.array(offsets - offsets[0]), texts, mask=column.is_null() if column.null_count else None
    )
    return pc.binary_join(lists, ",")


def elements_of(column: Any, values: Any) -> Any:
    """Return of the values behind lists those that these lists hold, and not those that others of the batch hold."""
    offsets = column.offsets
    first, last = offsets[0].as_py(), offsets[-1].as_py()
    return values.slice(first, last - first)


def join_parts(parts: Sequence[Part], *, nulls: str | None = None) -> Any:
    """Join parts line by line; a line with a null part is null, or that part is `nulls`."""
    merged = _merged(parts)
    if len(merged) == 1 and not isinstance(merged[0], str):
        return merged[0] if nulls is None else pc.fill_null(merged[0], nulls)
    if nulls is None:
        return pc.binary_join_element_wise(*merged, "")
    return pc.binary_join_element_wise(*merged, "", null_handling="replace", null_replacement=nulls)


def _merged(parts: Sequence[Part]) -> list[Part]:
    """Return the parts, with consecutive strings merged."""
    merged: list[Part] = []
    for part in parts:
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] += part
        else:
            merged.append(part)
    return merged


def _quoted(name: str) -> str:
    return encode_value(name).decode("utf-8")
