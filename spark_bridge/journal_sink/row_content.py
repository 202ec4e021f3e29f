"""A fingerprint of rows that does not depend on their order, by which a repeated micro-batch is compared with the
committed one.

Column sums instead of a hash of each row, because they cost a few hundredths of what encoding the rows costs. They find
other rows, and are not meant to withstand an adversary. Floating-point values count by number only: Spark sums them in
any order, so the last digits of an aggregate may differ when a batch is repeated.

Pure.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from broadsheet.journals.message.column_texts import content_of

_MASK = (1 << 64) - 1
_BLOCK_BYTES = 16 << 20
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(frozen=True, slots=True)
class RowContent:
    """Number and fingerprint of rows; those of several tasks add up."""

    rows: int = 0
    digest: int = 0
    """64 bits."""

    def __add__(self, other: RowContent) -> RowContent:
        return RowContent(self.rows + other.rows, self.digest + other.digest & _MASK)

    @property
    def text(self) -> str:
        """The digest as records keep it, 16 hexadecimal digits."""
        return f"{self.digest:016x}"


def content_of_rows(rows: pa.RecordBatch) -> RowContent:
    """Return the content of a batch of rows."""
    digest = 0
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        # By name, so that values that changed columns count as others. Odd, so that no bit of the sum is lost.
        weight = zlib.crc32(name.encode()) << 1 | 1
        digest += weight * _sum_of(column)
    return RowContent(rows.num_rows, digest & _MASK)


def _sum_of(column: Any) -> int:
    """Return the sum of a column's values as integers. `Any`: of each Arrow type."""
    nulls: int = column.null_count
    values = column.drop_null() if nulls else column
    kind = values.type
    total = 0x9E37_79B9 * nulls
    if not len(values) or pa.types.is_null(kind) or pa.types.is_floating(kind):
        return total
    if pa.types.is_boolean(kind):
        return total + int(values.true_count)
    if pa.types.is_struct(kind):
        for place, child in enumerate(values.flatten()):
            total += 3**place * _sum_of(child)
        return total
    if pa.types.is_map(kind):
        begin, end = values.offsets[0].as_py(), values.offsets[-1].as_py()
        keys, items = values.keys[begin:end], values.items[begin:end]
        return total + len(keys) + _sum_of(keys) + 3 * _sum_of(items)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        items = values.flatten()
        return total + len(items) + _sum_of(items)
    if pa.types.is_string(kind) or pa.types.is_binary(kind):
        return total + _sum_of_bytes(values)
    if pa.types.is_large_string(kind) or pa.types.is_large_binary(kind):
        narrow = pa.string() if pa.types.is_large_string(kind) else pa.binary()
        return total + _sum_of_bytes(pc.cast(values, narrow))
    return total + _sum_of_words(values)


def _sum_of_bytes(texts: Any) -> int:
    content = np.frombuffer(content_of(texts), dtype=np.uint8)
    # Summed in 32 bits, which takes half the time; a block's sum does not overflow them.
    blocks = range(0, len(content), _BLOCK_BYTES)
    total = sum(int(content[i : i + _BLOCK_BYTES].sum(dtype=np.uint32)) for i in blocks)
    return (len(content) << 32) + total


def _sum_of_words(values: Any) -> int:
    """Return the sum of values of a fixed width; of others nothing but their number counts."""
    try:
        width = values.type.bit_width // 8
    except ValueError:
        return 0
    word = min(width, 8)
    if word not in _WORDS or width % word:
        return 0
    buffer = values.buffers()[1]
    begin = values.offset * width
    words = np.frombuffer(buffer, dtype=_WORDS[word])[
        begin // word : (begin + len(values) * width) // word
    ]
    return int(words.sum(dtype=np.uint64))
