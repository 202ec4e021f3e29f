r"""Rows as JSON lines, `{"_meta":{"uuid":"..."},"column":value,...}\n`, a whole batch at a time.

Every column becomes an array of JSON texts, and all of them are concatenated row by row: the lines lie one after the
other in memory, ready to be appended. A field that is null is left out, as Spark's own JSON sink does it, unless nulls
are asked for; within lists and maps it is always written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from consumer.message.framing import NDJSON, LineFraming
from consumer.message.types import JsonType
from consumer.message.uuid import format_uuid
from spark_bridge.errors import PublishError
from spark_bridge.journal_sink.columns import check_columns
from spark_bridge.journal_sink.encoder import Encoded, Stretches
from spark_bridge.journal_sink.stamps import Bytes, Stamper, first_digits, uuid_texts
from spark_bridge.journal_sink.texts import (
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

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

_HEAD: Final = ('{"_meta":{"uuid":"', '"}')
_NOT_FINITE: Final = MappingProxyType({"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"})
"""JSON has no such numbers; Spark's sink writes them as strings too."""
_CONTROLS: Final = MappingProxyType({8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r"})
_CONTROLS_END: Final = 32
_QUOTE, _BACKSLASH = ord('"'), ord("\\")


class JsonLines:
    """Encodes batches of rows."""

    content_type = NDJSON

    def __init__(self, schema: StructType, *, ignore_null_fields: bool = True) -> None:
        """Describe the rows.

        Args:
            schema: Their columns.
            ignore_null_fields: Leave out fields that are null.

        Raises:
            PublishError: a column cannot be written, or is named as the message's UUID is.
        """
        check_columns(schema, form="JSON", nested=True)
        if "_meta" in schema.names:
            raise PublishError(
                "column _meta: the UUID of a JSON message stands there; drop the column or rename it"
            )
        self._ignore_null_fields = ignore_null_fields

    def encode(
        self,
        rows: pa.RecordBatch,
        stretches: Stretches,
        stamper: Stamper,
        order: Indices | None = None,
    ) -> Encoded:
        """Return the lines of each stretch of rows, and how many they are."""
        parts: list[Part] = _head(stamper.stamp_messages(rows.num_rows))
        for name, column in zip(rows.schema.names, rows.columns, strict=True):
            parts.extend(self._field(name, column))
        content, bounds = concatenated(_merged([*parts, "}\n"]), rows.num_rows, order)
        return Encoded(
            [content[bounds[begin] : bounds[end]] for begin, end in stretches],
            [end - begin for begin, end in stretches],
        )

    def acknowledgement(self, uuid: bytes) -> bytes:
        """Return the line that acknowledges, given its UUID."""
        return LineFraming().frame(JsonType().encode({"_meta": {"uuid": format_uuid(uuid)}}))

    def _field(self, name: str, column: Any) -> list[Part]:
        label = f",{_quoted(name)}:"
        parts = self._value(column)
        if not column.null_count:
            return [label, *parts]
        if self._ignore_null_fields:
            return [_join([label, *parts])]
        return [label, pc.fill_null(_join(parts), "null")]

    def _value(self, column: Any) -> list[Part]:
        """Return a column's values as parts to be joined; the join is null where a value is."""
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
        # A key of JSON is a string, whatever it is in Arrow.
        texts = self._value(keys) if _is_quoted(keys.type) else ['"', *self._value(keys), '"']
        return _join([*texts, ":", self._elements(column.items)])

    def _struct(self, column: Any) -> Any:
        parts: list[Part] = []
        for field, values in zip(column.type, column.flatten(), strict=True):
            parts.extend(self._field(field.name, values))
        if not parts:
            text = pa.array(["{}"] * len(column), pa.string())
        else:
            # Every field brings a comma before it, and the first of them is one too many.
            body = pc.utf8_slice_codeunits(_join(parts, nulls=""), 1)
            text = _join(["{", body, "}"])
        return pc.if_else(pc.is_valid(column), text, pa.scalar(None, pa.string()))


def _head(uuids: Bytes) -> list[Part]:
    """Return what lines begin with, up to the UUID's closing brace."""
    before, after = _HEAD
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
    """Return the parts, with strings that follow each other made one."""
    merged: list[Part] = []
    for part in parts:
        if isinstance(part, str) and merged and isinstance(merged[-1], str):
            merged[-1] += part
        else:
            merged.append(part)
    return merged


def _quoted(name: str) -> str:
    return JsonType().encode(name).decode("utf-8")


def _string(column: Any) -> list[Part]:
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


def _floating(column: Any) -> list[Part]:
    if pc.all(pc.is_finite(column)).as_py() is not False:
        return [number_text(column)]
    text = plain_text(column)
    for found, written in _NOT_FINITE.items():
        text = pc.if_else(pc.equal(text, found), f'"{written}"', text)
    return [text]


def _integer(column: Any) -> list[Part]:
    return [number_text(column)]


def _plain(column: Any) -> list[Part]:
    return [plain_text(column)]


def _date(column: Any) -> list[Part]:
    return ['"', plain_text(column), '"']


def _timestamp(column: Any) -> list[Part]:
    return ['"', timestamp_text(column), '"']


def _binary(column: Any) -> list[Part]:
    return ['"', base64_text(column), '"']


_WRITERS: Final[Sequence[tuple[Callable[[Any], bool], Callable[[Any], list[Part]]]]] = (
    (pa.types.is_integer, _integer),
    (pa.types.is_boolean, _plain),
    (pa.types.is_decimal, _plain),
    (pa.types.is_floating, _floating),
    (pa.types.is_string, _string),
    (pa.types.is_large_string, _string),
    (pa.types.is_date, _date),
    (pa.types.is_timestamp, _timestamp),
    (pa.types.is_binary, _binary),
    (pa.types.is_large_binary, _binary),
)


def _is_quoted(kind: Any) -> bool:
    return any(
        is_kind(kind) for is_kind, write in _WRITERS if write not in (_integer, _plain, _floating)
    )
