"""Hashes a column of keys, and chooses journals by the hashes, without a loop over rows.

Hash and use agree with `broadsheet.journals.message.mapping`, and so with Gazette's publishers: every publisher maps a
key to the same journal. A key is the UTF-8 bytes of its column's text, or the bytes of a binary column.

Needs pyarrow (`broadsheet[spark]`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from broadsheet.journals.message.column_texts import Indices, content_of, plain_text
from broadsheet.journals.message.mapping import fnv1a_32
from broadsheet.journals.message.plain_columns import plain_type

Hashes: TypeAlias = npt.NDArray[np.uint32]

_BLOCK_BYTES = 16
"""Bytes of each key that are fetched at once; fetching one byte of each takes as long."""
_UINT16_MAX = np.iinfo(np.uint16).max
_FNV_OFFSET, _FNV_PRIME = np.uint32(0x811C9DC5), np.uint32(0x01000193)


def modulo_indices(hashes: Hashes, count: int) -> Indices:
    """Return the index of each key's journal among `count`, by the rule of `modulo_mapping`."""
    return (hashes % np.uint32(count)).astype(np.int64)


def rendezvous_indices(hashes: Hashes, journals: Sequence[str]) -> Indices:
    """Return the index of each key's journal, by the rule of `rendezvous_mapping`."""
    best = np.zeros(len(hashes), dtype=np.int64)
    best_scores = np.zeros(len(hashes), dtype=np.uint32)
    for index, journal in enumerate(journals):
        scores = hashes ^ np.uint32(fnv1a_32(journal.encode()))
        # A score of 0 does not exceed the initial one, so the first journal always counts.
        better = scores > best_scores if index else np.ones(len(hashes), dtype=bool)
        best[better] = index
        best_scores[better] = scores[better]
    return best


def hashes_of(column: Any) -> Hashes:
    """Return the FNV-1a hash of each key of a column without nulls; shape (N,)."""
    return fnv1a_32_of(_key_texts(column))


def fnv1a_32_of(texts: Any) -> Hashes:
    """Return the hash of each string or binary value, shape (N,): position by position, longest values first."""
    lengths = pc.binary_length(texts).to_numpy(zero_copy_only=False)
    content = np.frombuffer(content_of(texts), dtype=np.uint8)
    begins = np.cumsum(lengths, dtype=np.int64) - lengths
    order = stable_order(lengths.max(initial=0) - lengths)
    begins, descending = begins[order], -lengths[order]
    hashes = np.full(len(lengths), _FNV_OFFSET, dtype=np.uint32)
    blocks = _blocks(content)
    for position in range(int(lengths.max(initial=0))):
        count = int(np.searchsorted(descending, -position, side="left"))
        place = position % _BLOCK_BYTES
        if not place:
            block = blocks[begins[:count] + position].view(np.uint8).reshape(count, _BLOCK_BYTES)
        hashes[:count] = (hashes[:count] ^ block[:count, place]) * _FNV_PRIME
    found = np.empty_like(hashes)
    found[order] = hashes
    return found


def _blocks(content: npt.NDArray[np.uint8]) -> npt.NDArray[np.void]:
    """Return the block that begins at each byte, shape (bytes + 1,); the last ones are padded with arbitrary bytes."""
    padded = np.append(content, np.zeros(_BLOCK_BYTES, dtype=np.uint8))
    return np.ndarray((len(content) + 1,), f"V{_BLOCK_BYTES}", padded, strides=(1,))


def stable_order(values: npt.NDArray[np.signedinteger[Any]]) -> Indices:
    """Return indices that sort non-negative values stably; narrow integers, because NumPy radix-sorts those."""
    small = not len(values) or values.max() <= _UINT16_MAX
    return np.argsort(values.astype(np.uint16) if small else values, kind="stable")


def plain_keys(column: Any) -> Any:
    """Return keys without their layout: a dictionary's values, texts and binaries that lie one after the other."""
    kind = plain_type(column.type, widens=False)
    # Others, such as times with nanoseconds, have a text of their own.
    is_layout = kind is not None and (
        pa.types.is_dictionary(column.type) or pa.types.is_string(kind) or pa.types.is_binary(kind)
    )
    return pc.cast(column, kind) if is_layout else column


def _key_texts(column: Any) -> Any:
    plain = plain_keys(column)
    return plain if pa.types.is_binary(plain.type) else plain_text(plain)
