"""Formats Arrow columns as text, column by column and never value by value.

Numbers are written so that reading them gives the same value; timestamps in ISO 8601. What would not be read again is
refused: text that is not UTF-8, and years that Python's and Spark's times do not have.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

_DAY_MICROSECONDS: Final = 86_400_000_000
_DATE_CHARACTERS: Final = 10
_SECOND_CHARACTERS: Final = 19
"""Of a time without parts of a second."""
_FIRST_DAY: Final = -719_162
_LAST_DAY: Final = 2_932_896
"""Days of the years 1 to 9999, counted from the epoch."""
_YEARS: Final = "a year that is not one of 1 to 9999, which readers refuse"
_CONTROLS: Final = MappingProxyType({8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r"})
_CONTROLS_END: Final = 32
_ASCII_END: Final = 128
_QUOTE, _BACKSLASH = ord('"'), ord("\\")
# Two decimal digits by value, as two bytes.
_DIGIT_PAIRS: Final = np.frombuffer(
    b"".join(b"%02d" % value for value in range(100)), dtype=np.uint16
)
_COMMA: Final = ord(",")
_TIMESTAMP: Final = b"0000-00-00T00:00:00.000000"

Indices: TypeAlias = npt.NDArray[np.int64]
"""Indices of rows in a batch, or of journals in a write; shape (N,)."""


@dataclass(frozen=True, slots=True)
class InOrder:
    """Texts already in the order in which rows are written."""

    texts: pa.StringArray


Part: TypeAlias = str | pa.StringArray | InOrder
"""A string common to all rows, or a text for each row; null adds nothing."""


def fixed_width_texts(texts: npt.NDArray[np.uint8]) -> pa.StringArray:
    """Return texts of one length as an Arrow array, uncopied; shape (N, characters) becomes (N,)."""
    count, width = texts.shape
    offsets = np.arange(0, (count + 1) * width, width, dtype=np.int32)
    return pa.StringArray.from_buffers(count, pa.py_buffer(offsets), pa.py_buffer(texts))


def concatenated(
    parts: Sequence[Part], count: int, order: Indices | None = None
) -> tuple[memoryview, npt.NDArray[np.int32]]:
    """Return the joined texts of each row, one row after the other, and their offsets.

    Arrow takes the parts out of one array that has them all: two thirds of the time of its join, for any order.

    Args:
        parts: Of each row.
        count: Number of rows.
        order: Row indices in the order of output, shape (count,); None: as they are.

    Returns:
        The bytes, and `count + 1` offsets among them: the beginning of each row, and the end of the last one.
    """
    texts = [part for part in parts if not isinstance(part, str)]
    arrays = [part.texts if isinstance(part, InOrder) else part for part in texts]
    strings = [part for part in parts if isinstance(part, str)]
    known = pa.concat_arrays([*arrays, pa.array(strings, pa.string())])
    kinds = tuple(str if isinstance(part, str) else type(part) for part in parts)
    places = _places(count, kinds) if order is None else _places_of(order, kinds)
    taken = pc.take(known, places, boundscheck=False)
    _, offsets, _ = taken.buffers()
    bounds = np.frombuffer(offsets, dtype=np.int32)[: len(places) + 1 : len(parts)]
    return content_of(taken), bounds


@lru_cache(maxsize=1)
def _places(count: int, kinds: tuple[type, ...]) -> pa.UInt32Array:
    """Return `_places_of` for rows as they are; cached, because most batches have one length."""
    return _places_of(np.arange(count), kinds)


def _places_of(order: Indices, kinds: tuple[type, ...]) -> pa.UInt32Array:
    """Return the index of each part of each row for `concatenated`, by the parts' types."""
    count = len(order)
    places = np.empty((count, len(kinds)), dtype=np.uint32)
    ordered, rows = order.astype(np.uint32), np.arange(count, dtype=np.uint32)
    next_row, next_string = 0, count * (len(kinds) - kinds.count(str))
    for column, kind in enumerate(kinds):
        if kind is str:
            places[:, column] = next_string
            next_string += 1
        else:
            found = rows if kind is InOrder else ordered
            np.add(found, np.uint32(next_row), out=places[:, column])
            next_row += count
    return pa.array(places.ravel())


def content_of(texts: Any) -> memoryview:
    """Return the bytes of all texts of a string array, one after the other, uncopied."""
    _, offsets, data = texts.buffers()
    if data is None or not len(texts):
        return memoryview(b"")
    bounds = np.frombuffer(offsets, dtype=np.int32)
    begin, end = bounds[texts.offset], bounds[texts.offset + len(texts)]
    return memoryview(data).cast("B")[begin:end]


def plain_text(column: Any) -> Any:
    """Return a column of numbers, truth values, strings or dates as text; null stays null."""
    if pa.types.is_string(column.type):
        return column
    return pc.cast(column, pa.string())


def number_text(column: Any) -> Any:
    """Return a column of integers or finite floating-point numbers as JSON text; null stays null.

    orjson writes such an array faster than Arrow casts it.
    """
    # Imported here, because what checks texts and hashes keys needs Arrow alone.
    import orjson

    if not len(column):
        return plain_text(column)
    values = pc.fill_null(column, 0) if column.null_count else column
    listed = orjson.dumps(values.to_numpy(zero_copy_only=True), option=orjson.OPT_SERIALIZE_NUMPY)
    ends = np.flatnonzero(np.frombuffer(listed, dtype=np.uint8) == _COMMA)
    offsets = np.empty(len(column) + 1, dtype=np.int32)
    offsets[0], offsets[1:-1], offsets[-1] = 0, ends, len(listed) - 1
    # The opening bracket and the commas are gone.
    offsets[1:] -= np.arange(1, len(column) + 1, dtype=np.int32)
    text = pa.StringArray.from_buffers(
        len(column), pa.py_buffer(offsets), pa.py_buffer(listed.translate(None, b"[,]"))
    )
    return _null_where(column, text)


def base64_text(column: Any) -> Any:
    """Return binary values in base 64."""
    return pa.array(
        [
            None if value is None else base64.b64encode(value).decode("ascii")
            for value in column.to_pylist()
        ],
        pa.string(),
    )


def escaped_text(texts: Any) -> Any:
    """Return strings as they are between the quotes of JSON.

    Raises:
        ValueError: one is not UTF-8.
    """
    content = np.frombuffer(content_of(texts), dtype=np.uint8)
    check_utf8(texts, content)
    quotes, backslashes = bool((content == _QUOTE).any()), bool((content == _BACKSLASH).any())
    if backslashes:
        texts = pc.replace_substring(texts, "\\", "\\\\")
    if quotes:
        texts = pc.replace_substring(texts, '"', '\\"')
    for code in np.unique(content[content < _CONTROLS_END]):
        escape = _CONTROLS.get(int(code), f"\\u{int(code):04x}")
        texts = pc.replace_substring(texts, chr(code), escape)
    return texts


def check_utf8(texts: Any, content: npt.NDArray[np.uint8] | None = None) -> None:
    """Check each string of a column.

    Args:
        texts: The strings.
        content: Their bytes, if they are at hand.

    Raises:
        ValueError: one is not UTF-8, which Arrow does not check when it takes bytes for text.
    """
    codes = np.frombuffer(content_of(texts), dtype=np.uint8) if content is None else content
    if int(codes.max(initial=0)) >= _ASCII_END:
        try:
            texts.validate(full=True)
        except pa.ArrowInvalid as error:
            raise ValueError(
                "text that is not UTF-8; decode it, or make the column binary"
            ) from error


def date_text(column: Any) -> Any:
    """Return dates as `2024-02-03`.

    Raises:
        ValueError: a year is not one of 1 to 9999.
    """
    days = pc.min_max(column.cast(pa.int32())).as_py()
    if days["min"] is not None and not _FIRST_DAY <= days["min"] <= days["max"] <= _LAST_DAY:
        raise ValueError(_YEARS)
    return plain_text(column)


def timestamp_text(column: Any) -> Any:
    """Return timestamps as `2024-02-03T04:05:06.000007`; those with a zone in UTC, with a `Z`.

    Arrow's own cast to text takes about 1.8 microseconds a value; this takes a tenth of that.

    Raises:
        ValueError: a year is not one of 1 to 9999.
        pyarrow.ArrowInvalid: a time has parts of a microsecond.
    """
    zone = b"Z" if column.type.tz is not None else b""
    micros = _microseconds(column)
    return _null_where(column, fixed_width_texts(_time_texts(micros, _TIMESTAMP + zone)))


def time_parts(column: Any) -> list[Part]:
    """Return timestamps as Python writes them in ISO 8601, in parts to be joined; null where a value is null.

    Microseconds are left out where they are zero. A time with a zone is that zone's, with its offset, `Z` for none.

    Raises:
        ValueError: a year is not one of 1 to 9999, here or in the zone.
        pyarrow.ArrowInvalid: a time has parts of a microsecond.
    """
    micros = _microseconds(column)
    zones: list[Part] = []
    if column.type.tz is not None:
        local = _microseconds(
            pc.local_timestamp(pc.cast(column, pa.timestamp("us", column.type.tz)))
        )
        zones = _offsets_text(local - micros, column)
        micros = local
    texts = _time_texts(micros, _TIMESTAMP)
    is_whole = micros % 1_000_000 == 0
    if not is_whole.any():
        found = fixed_width_texts(texts)
    elif is_whole.all():
        found = fixed_width_texts(np.ascontiguousarray(texts[:, :_SECOND_CHARACTERS]))
    else:
        kept = np.ones(texts.shape, dtype=bool)
        kept[is_whole, _SECOND_CHARACTERS:] = False
        offsets = np.zeros(len(texts) + 1, dtype=np.int32)
        np.cumsum(np.where(is_whole, _SECOND_CHARACTERS, len(_TIMESTAMP)), out=offsets[1:])
        found = pa.StringArray.from_buffers(
            len(texts), pa.py_buffer(offsets), pa.py_buffer(texts[kept])
        )
    return [_null_where(column, found), *zones]


def _offsets_text(offsets: npt.NDArray[np.int64], column: Any) -> list[Part]:
    """Return offsets from UTC, microseconds, as `Z` or `+02:00`, minutes cut off as Python's encoders do."""
    if column.null_count:
        valid = column.is_valid().to_numpy(zero_copy_only=False)
        # A null has no offset, and must not make a text for each row.
        offsets = np.where(valid, offsets, offsets[valid][0] if valid.any() else 0)
    known, places = np.unique(offsets, return_inverse=True)
    texts = [_offset_text(int(each) // 1_000_000) for each in known]
    if len(set(texts)) == 1:
        return [texts[0]]
    return [pa.array(texts, pa.string()).take(pa.array(places))]


def _offset_text(seconds: int) -> str:
    minutes = abs(seconds) // 60
    if not minutes:
        return "Z"
    return f"{'-' if seconds < 0 else '+'}{minutes // 60:02}:{minutes % 60:02}"


def _microseconds(column: Any) -> npt.NDArray[np.int64]:
    """Return timestamps as microseconds since the epoch, zero for null; shape (N,)."""
    micros = pc.cast(column, pa.timestamp("us", column.type.tz)).cast(pa.int64())
    values: npt.NDArray[np.int64] = pc.fill_null(micros, 0).to_numpy(zero_copy_only=False)
    if len(values) and not (
        values.min() >= _FIRST_DAY * _DAY_MICROSECONDS
        and values.max() < (_LAST_DAY + 1) * _DAY_MICROSECONDS
    ):
        raise ValueError(_YEARS)
    return values


def _time_texts(micros: npt.NDArray[np.int64], template: bytes) -> npt.NDArray[np.uint8]:
    """Return times as characters, shape (N, those of the template)."""
    days = micros // _DAY_MICROSECONDS
    dates = pc.cast(pa.array(days.astype(np.int32)).cast(pa.date32()), pa.string())
    texts = np.empty((len(micros), len(template)), dtype=np.uint8)
    texts[:] = np.frombuffer(template, dtype=np.uint8)
    date_bytes = np.frombuffer(content_of(dates), dtype=np.uint8)
    texts[:, :_DATE_CHARACTERS] = date_bytes.reshape(len(micros), _DATE_CHARACTERS)
    _write_time_of_day(texts, micros - days * _DAY_MICROSECONDS)
    return texts


def _null_where(column: Any, text: Any) -> Any:
    """Return texts, null where the column is null."""
    if not column.null_count:
        return text
    return pc.if_else(pc.is_valid(column), text, pa.scalar(None, pa.string()))


def _write_time_of_day(texts: npt.NDArray[np.uint8], micros: npt.NDArray[np.int64]) -> None:
    seconds, fraction = np.divmod(micros, 1_000_000)
    parts = (
        (11, seconds // 3600),
        (14, seconds // 60 % 60),
        (17, seconds % 60),
        (20, fraction // 10_000),
        (22, fraction // 100 % 100),
        (24, fraction % 100),
    )
    for place, values in parts:
        digits = _DIGIT_PAIRS[values].view(np.uint8)
        texts[:, place : place + 2] = digits.reshape(len(values), 2)
