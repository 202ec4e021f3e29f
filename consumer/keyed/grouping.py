"""Rows as columns, sorted by key: no Python for each row, and one encoding for each distinct key."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from operator import itemgetter
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from broadsheet.consumer.keyed.key_codec import KeyCodec
from broadsheet.journals.content.registry import registered
from broadsheet.journals.message.batch import MessageBatch
from broadsheet.journals.message.uuid import Flags
from broadsheet.wire.key_range import KeyRange, group_of

Codes = NDArray[np.int64]
MakeRows = Callable[[pa.Table], Any]
"""Makes of columns what handlers get: something of as many rows, of which a slice has the rows of one key."""


@dataclass(frozen=True, slots=True)
class GroupedRows:
    """Rows in order of keys, those of one key in order of arrival."""

    table: pa.Table
    keys: Sequence[bytes]
    """The distinct keys as bytes, ascending, shape (K,)."""
    values: Sequence[tuple[Any, ...]]
    """The same as values."""
    ends: Sequence[int]
    """Where the rows of each key end, shape (K,)."""


def rows_of(batch: MessageBatch, schema: pa.Schema) -> pa.Table:
    """Return the rows of a run of messages with the columns of a schema; a field that a message lacks is null.

    Acknowledgements are no rows.

    Raises:
        FramingError: a message cannot be decoded, or does not fit.
    """
    kept = np.flatnonzero(batch.flags != Flags.ACK_TXN)
    if len(kept) < len(batch):
        batch = batch.pick(kept)
    content = registered(batch.message_type.content_type)
    if content is not None and content.table_columns is not None and len(batch):
        # Such messages name no fields, so the columns must be all that they have.
        types = dict(zip(schema.names, schema.types, strict=True))
        names = content.table_columns(batch)
        table = batch.to_arrow(pa.schema([(name, types.get(name, pa.string())) for name in names]))
    else:
        table = batch.to_arrow(schema)
    columns = [
        table.column(field.name)
        if field.name in table.schema.names
        else pa.nulls(table.num_rows, field.type)
        for field in schema
    ]
    # Whether a field may be null is a matter of declared state, not of what a producer sends.
    nullable = pa.schema([pa.field(field.name, field.type) for field in schema])
    return pa.table(columns, schema=nullable)


def grouped(table: pa.Table, codec: KeyCodec) -> GroupedRows:
    """Sort rows by key.

    Raises:
        ValidationError: a value of a key cannot be encoded.
    """
    codes, firsts = _codes([table.column(name) for name in codec.schema.names])
    columns = [table.column(name).take(firsts).to_pylist() for name in codec.schema.names]
    encoded = codec.encode_all(columns)
    # By bytes, because several values may be one key: −0 and 0, or several NaN.
    distinct = sorted(set(encoded))
    ranks = {key: rank for rank, key in enumerate(distinct)}
    by_code = np.fromiter(map(ranks.__getitem__, encoded), np.int64, len(encoded))
    row_ranks = by_code[codes] if len(codes) else np.zeros(0, np.int64)
    order = np.argsort(row_ranks, kind="stable")
    ends = np.cumsum(np.bincount(row_ranks, minlength=len(distinct)))
    return GroupedRows(
        table.take(pa.array(order)),
        distinct,
        _values(distinct, encoded, columns, codec),
        ends.tolist(),
    )


def owned_rows(table: pa.Table, codec: KeyCodec, owned: KeyRange) -> NDArray[np.bool_]:
    """Return which rows have keys of some groups, shape (rows,).

    Raises:
        ValidationError: a value of a key cannot be encoded.
    """
    codes, firsts = _codes([table.column(name) for name in codec.schema.names])
    columns = [table.column(name).take(firsts).to_pylist() for name in codec.schema.names]
    groups = map(group_of, codec.encode_all(columns))
    is_owned = np.fromiter((group in owned for group in groups), np.bool_, len(firsts))
    return is_owned[codes]


def _values(
    distinct: Sequence[bytes],
    encoded: Sequence[bytes],
    columns: Sequence[Sequence[Any]],
    codec: KeyCodec,
) -> list[tuple[Any, ...]]:
    """Return keys as values, the same ones that a timer's key is decoded to."""
    if not codec.is_plain:
        return [codec.decode(key)[0] for key in distinct]
    by_key = dict(zip(encoded, zip(*columns, strict=True), strict=True))
    return list(map(by_key.__getitem__, distinct))


def _codes(columns: Sequence[pa.ChunkedArray]) -> tuple[Codes, NDArray[np.intp]]:
    """Return a number for each row, equal for equal keys, and the first row of each number."""
    codes: Codes = np.zeros(len(columns[0]), np.int64)
    for column in columns:
        chunk = column.combine_chunks()
        if isinstance(chunk, pa.ChunkedArray):
            chunk = (
                pa.concat_arrays(chunk.chunks) if chunk.num_chunks else pa.array([], column.type)
            )
        encoded = pc.dictionary_encode(chunk, null_encoding="encode")
        size = len(encoded.dictionary) + 1
        codes = codes * size + encoded.indices.to_numpy(zero_copy_only=False)
        # Dense again after each column, so that products of sizes stay below the number of rows times one size.
        _, firsts, codes = np.unique(codes, return_index=True, return_inverse=True)
    return codes.reshape(-1).astype(np.int64), firsts


class RowMaker:
    """Makes row objects of columns: tuples with a property for each field that is an identifier."""

    def __init__(self, names: Sequence[str]) -> None:
        """Make the class of the rows."""
        properties = {
            name: property(itemgetter(place))
            for place, name in enumerate(names)
            if name.isidentifier() and not hasattr(tuple, name)
        }
        fields = {"__slots__": (), "_fields": tuple(names), "__repr__": _row_text}
        self._class = type("Row", (tuple,), {**properties, **fields})

    def __call__(self, table: pa.Table) -> list[Any]:
        """Return the rows of a table."""
        columns = [column.to_pylist() for column in table.columns]
        return list(map(partial(tuple.__new__, self._class), zip(*columns, strict=True)))


def _row_text(row: Any) -> str:
    fields = zip(row._fields, tuple(row), strict=True)
    return f"Row({', '.join(f'{name}={value!r}' for name, value in fields)})"


class _Block:
    """The rows of all keys of a transaction, which become Python values together, if any key asks for them."""

    def __init__(self, table: pa.Table, make_rows: MakeRows) -> None:
        self.table = table
        self._make_rows = make_rows
        # `Any`: a list of rows, unless the application has another form of them.
        self._rows: Any = None

    def rows(self, begin: int, end: int) -> Any:
        if self._rows is None:
            self._rows = self._make_rows(self.table)
        return self._rows[begin:end]


class KeyRows:
    """The rows of one key in one transaction: iterate over them, or take them as columns.

    Rows are tuples whose fields are attributes too: `row.amount`, `row[2]`.
    """

    __slots__ = ("_begin", "_block", "_end")

    def __init__(self, block: _Block, begin: int, end: int) -> None:
        self._block = block
        self._begin, self._end = begin, end

    def __iter__(self) -> Iterator[Any]:
        return iter(self._block.rows(self._begin, self._end))

    def __len__(self) -> int:
        return self._end - self._begin

    @property
    def made(self) -> Any:
        """The rows in the form in which the application has them made: a list of tuples, if it says nothing."""
        return self._block.rows(self._begin, self._end)

    def to_arrow(self) -> pa.Table:
        """Return the rows as columns, without a copy."""
        return self._block.table.slice(self._begin, len(self))


def rows_by_key(
    rows: GroupedRows, make_rows: MakeRows
) -> Iterator[tuple[bytes, tuple[Any, ...], KeyRows]]:
    """Yield each key, as bytes and as values, with its rows."""
    block = _Block(rows.table, make_rows)
    begin = 0
    for key, value, end in zip(rows.keys, rows.values, rows.ends, strict=True):
        yield key, value, KeyRows(block, begin, end)
        begin = end
