"""Rows of Arrow columns as JSON lines with UUIDs: `{"_meta":{"uuid":"..."},"column":value,...}`.

Each column becomes an array of JSON texts, and one join makes the lines, which then lie one after the other in memory,
ready to be appended. Within lists and maps a null is always written.

Needs pyarrow and orjson (`broadsheet[spark]`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from broadsheet.consumer.message.column_texts import (
    Indices,
    InOrder,
    Part,
    base64_text,
    concatenated,
    content_of,
    fixed_width_texts,
    number_text,
    plain_text,
    timestamp_text,
)
from broadsheet.consumer.message.types import JsonType
from broadsheet.consumer.message.uuid import Bytes, first_digits, uuid_texts
from broadsheet.consumer.tracing import TRACEPARENT

META: Final = "_meta"
"""The field of the UUID, which no column may have for a name."""
_HEAD: Final = ('{"_meta":{"uuid":"', '"}')
_JSON_LINES_NOT_FINITE: Final = MappingProxyType(
    {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}
)
"""Written as strings, as by Spark's sink, because JSON has no such numbers."""
_CONTROLS: Final = MappingProxyType({8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r"})
_CONTROLS_END: Final = 32
_QUOTE, _BACKSLASH = ord('"'), ord("\\")


class JsonRows:
    """Writes batches of rows as JSON lines."""

    def __init__(self, *, ignore_null_fields: bool = False, traceparent: str = "") -> None:
        """Choose how to write.

        Args:
            ignore_null_fields: Leave fields that are null out, instead of writing null.
            traceparent: The trace context of every line, beside its UUID; empty: none.
        """
        self._ignore_null_fields = ignore_null_fields
        self._traceparent = traceparent

    def lines(
        self, rows: pa.RecordBatch, uuids: Bytes, order: Indices | None = None
    ) -> tuple[memoryview, npt.NDArray[np.int32]]:
        """Return the lines of rows, one after the other, and their offsets.

        Args:
            rows: N of them, whose types `check_columns` accepts.
            uuids: In the order of writing; shape (N, 16).
            order: Row indices in the order of writing, shape (N,); None: as they are.

        Returns:
            The bytes, and N + 1 offsets among them.

        Raises:
            pyarrow.ArrowException: a value cannot be written, such as a timestamp with parts of a microsecond.
        """
        parts: list[Part] = _head(uuids, self._traceparent)
        for name, column in zip(rows.schema.names, rows.columns, strict=True):
            parts.extend(self._field(name, column))
        return concatenated(_merged([*parts, "}\n"]), rows.num_rows, order)

    def _field(self, name: str, column: Any) -> list[Part]:
        label = f",{_quoted(name)}:"
        parts = self._value(column)
        if not column.null_count:
            return [label, *parts]
        if self._ignore_null_fields:
            return [_join([label, *parts])]
        return [label, pc.fill_null(_join(parts), "null")]

    def _value(self, column: Any) -> list[Part]:
        """Return a column's values as parts to be joined; the join is null where a value is null."""
        kind = column.type
        if pa.types.is_null(kind):
            return [pa.nulls(len(column), pa.string())]
        for is_kind, write in _WRITERS:
            if is_kind(kind):
                return write(column)
        if pa.types.is_struct(kind):
            return [self._struct(column)]
        if pa.types.is_map(kind):
            return ["{", _joined_lists(column, self._entries(column)), "}"]
        return ["[", _joined_lists(column, self._elements(column.values)), "]"]

    def _elements(self, values: Any) -> Any:
        return pc.fill_null(_join(self._value(values)), "null")

    def _entries(self, column: Any) -> Any:
        keys = column.keys
        # JSON keys are strings, whatever their Arrow type.
        texts = self._value(keys) if _is_quoted(keys.type) else ['"', *self._value(keys), '"']
        return _join([*texts, ":", self._elements(column.items)])

    def _struct(self, column: Any) -> Any:
        parts: list[Part] = []
        for field, values in zip(column.type, column.flatten(), strict=True):
            parts.extend(self._field(field.name, values))
        if not parts:
            text = pa.array(["{}"] * len(column), pa.string())
        else:
            # Every field comes with a comma before it; the first comma is removed.
            body = pc.utf8_slice_codeunits(_join(parts, nulls=""), 1)
            text = _join(["{", body, "}"])
        return pc.if_else(pc.is_valid(column), text, pa.scalar(None, pa.string()))


def plain_columns(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Return rows whose dictionary-encoded columns are decoded."""
    if not any(pa.types.is_dictionary(kind) for kind in rows.schema.types):
        return rows
    columns = [
        column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        for column in rows.columns
    ]
    return pa.RecordBatch.from_arrays(columns, names=rows.schema.names)


def check_columns(schema: pa.Schema) -> None:
    """Refuse columns that JSON lines cannot hold.

    Raises:
        ValueError: a column is of such a type, has the name of the UUID's field, or that of another column.
    """
    for field in schema:
        if field.name == META:
            raise ValueError(
                f"column {META}: it holds the UUID of a JSON message; rename the column"
            )
        if schema.names.count(field.name) > 1:
            raise ValueError(f"column {field.name}: expected one of this name, got more")
        if not _is_writable(field.type):
            raise ValueError(f"column {field.name}: JSON lines have nothing for {field.type}")


def _is_writable(kind: pa.DataType) -> bool:
    if pa.types.is_null(kind) or any(is_kind(kind) for is_kind, _ in _WRITERS):
        return True
    if pa.types.is_struct(kind):
        return all(_is_writable(field.type) for field in kind)
    if pa.types.is_map(kind):
        # A key becomes a string, which a list or a null cannot.
        has_key_text = any(is_kind(kind.key_type) for is_kind, _ in _WRITERS)
        return has_key_text and _is_writable(kind.item_type)
    return bool(pa.types.is_list(kind)) and _is_writable(kind.value_type)


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


def _joined_lists(column: Any, texts: Any) -> Any:
    """Return the texts of each list's elements, separated by commas."""
    # Copied, because Arrow takes no mask with the offsets of a slice.
    offsets = pa.array(np.array(column.offsets))
    lists = pa.ListArray.from_arrays(
        offsets, texts, mask=column.is_null() if column.null_count else None
    )
    return pc.binary_join(lists, ",")


def _join(parts: Sequence[Part], *, nulls: str | None = None) -> Any:
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
    return JsonType().encode(name).decode("utf-8")


def _json_lines_string(column: Any) -> list[Part]:
    return ['"', _escaped(plain_text(column)), '"']


def _escaped(texts: Any) -> Any:
    content = np.frombuffer(content_of(texts), dtype=np.uint8)
    quotes, backslashes = bool((content == _QUOTE).any()), bool((content == _BACKSLASH).any())
    if backslashes:
        texts = pc.replace_substring(texts, "\\", "\\\\")
    if quotes:
        texts = pc.replace_substring(texts, '"', '\\"')
    for code in np.unique(content[content < _CONTROLS_END]):
        escape = _CONTROLS.get(int(code), f"\\u{int(code):04x}")
        texts = pc.replace_substring(texts, chr(code), escape)
    return texts


def _json_lines_floating(column: Any) -> list[Part]:
    if pc.all(pc.is_finite(column)).as_py() is not False:
        return [number_text(column)]
    text = plain_text(column)
    for found, written in _JSON_LINES_NOT_FINITE.items():
        text = pc.if_else(pc.equal(text, found), f'"{written}"', text)
    return [text]


def _json_lines_integer(column: Any) -> list[Part]:
    return [number_text(column)]


def _plain(column: Any) -> list[Part]:
    return [plain_text(column)]


def _json_lines_date(column: Any) -> list[Part]:
    return ['"', plain_text(column), '"']


def _json_lines_timestamp(column: Any) -> list[Part]:
    return ['"', timestamp_text(column), '"']


def _json_lines_binary(column: Any) -> list[Part]:
    return ['"', base64_text(column), '"']


_WRITERS: Final[Sequence[tuple[Callable[[Any], bool], Callable[[Any], list[Part]]]]] = (
    (pa.types.is_integer, _json_lines_integer),
    (pa.types.is_boolean, _plain),
    (pa.types.is_decimal, _plain),
    (pa.types.is_floating, _json_lines_floating),
    (pa.types.is_string, _json_lines_string),
    (pa.types.is_large_string, _json_lines_string),
    (pa.types.is_date, _json_lines_date),
    (pa.types.is_timestamp, _json_lines_timestamp),
    (pa.types.is_binary, _json_lines_binary),
    (pa.types.is_large_binary, _json_lines_binary),
)


def _is_quoted(kind: Any) -> bool:
    return any(
        is_kind(kind)
        for is_kind, write in _WRITERS
        if write not in (_json_lines_integer, _plain, _json_lines_floating)
    )
