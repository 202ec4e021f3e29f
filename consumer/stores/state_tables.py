"""Optional part of a store: exposes its contents as Arrow tables.

    with store.scan("counts") as scan:      # any thread; transactions and queries go on
        for batch in scan.batches: ...      # of the last commit, whose checkpoint is scan.checkpoint

The stores of this project have it. It needs pyarrow (`broadsheet[spark]`), which is imported when it is used.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING, Any, Final, Protocol, runtime_checkable

from broadsheet.consumer.errors import StoreError
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.shard_pb2 import Checkpoint

if TYPE_CHECKING:
    import pyarrow as pa

ROWS_PER_BATCH: Final = 16_384
"""Rows that a scan turns into Arrow at a time: it stops for queries, and notices its end, in between."""


@dataclass(frozen=True, slots=True)
class TableScan:
    """The rows of a table as of one commit. Valid only within the `with` block that created it."""

    checkpoint: Checkpoint
    """Committed together with the rows."""
    schema: pa.Schema
    """Of every batch."""
    batches: Iterator[pa.RecordBatch]
    """To be taken once, on one thread."""


@runtime_checkable
class ScannableStore(Protocol):
    """Optional part of a store: shows its last durable commit as tables. Both methods may be called on any thread,
    at any time.
    """

    def tables(self) -> Mapping[str, pa.Schema]:
        """Return the tables and their columns.

        Raises:
            StoreError: the store is not restored, or is destroyed.
        """
        ...

    def scan(self, table: str, columns: Sequence[str] = ()) -> AbstractContextManager[TableScan]:
        """Return a table's rows, in no particular order, and the checkpoint that they were committed with.

        Neither the scan nor transactions or queries wait for each other for longer than a batch takes. The store is
        not destroyed before the block ends.

        Args:
            table: One of `tables`.
            columns: Of it, in this order; none: all.

        Raises:
            ValidationError: there is no such table or column.
            StoreError: the store cannot be read.
        """
        ...


@runtime_checkable
class CopyReader(Protocol):
    """Optional part of a scannable store: opens a copy of a standby's played files, instead of being restored."""

    def open_copy(self) -> None:
        """Open the state for scans only; called once, instead of `restore_checkpoint`.

        The shard's `local_state` is a copy made for this store only, without a recorder, and is removed after
        `destroy`. State outside of it must not be changed: its primary must not be fenced.

        Raises:
            StoreError: the state is in neither the copy nor a place that standbys can read.
        """
        ...


def require_table(tables: Mapping[str, pa.Schema], table: str) -> pa.Schema:
    """Return a table's columns.

    Raises:
        ValidationError: there is no such table.
    """
    schema = tables.get(table)
    if schema is None:
        known = ", ".join(sorted(tables)) or "none: this store shows no tables"
        raise ValidationError("table", f"expected one of {known}; got {table!r}")
    return schema


def picked(schema: pa.Schema, columns: Sequence[str]) -> pa.Schema:
    """Return the selected columns, in their order; all if none are named.

    Raises:
        ValidationError: the table has no such column.
    """
    import pyarrow as pa

    if not columns:
        return schema
    for index, column in enumerate(columns):
        if column not in schema.names:
            raise ValidationError(
                f"columns[{index}]", f"expected one of {', '.join(schema.names)}; got {column!r}"
            )
    return pa.schema([schema.field(column) for column in columns])


# Rows of Python values as Arrow batches.


def row_batch(rows: Sequence[Sequence[Any]], schema: pa.Schema, *, fqn: str) -> pa.RecordBatch:
    """Return rows, with values in the order of the columns, as one batch.

    Args:
        rows: At least one.
        schema: Of the batch.
        fqn: The shard, for errors.

    Raises:
        StoreError: a value does not fit its column.
    """
    import pyarrow as pa

    columns = zip(*rows, strict=True)
    arrays = [_array(values, field, fqn) for values, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def row_batches(
    rows: Iterable[Sequence[Any]], schema: pa.Schema, *, fqn: str
) -> Iterator[pa.RecordBatch]:
    """Yield rows as batches."""
    iterator = iter(rows)
    while part := list(islice(iterator, ROWS_PER_BATCH)):
        yield row_batch(part, schema, fqn=fqn)


def _array(values: Sequence[Any], field: pa.Field, fqn: str) -> pa.Array:
    import pyarrow as pa

    try:
        if pa.types.is_boolean(field.type):
            # SQLite's booleans are the integers 0 and 1.
            values = [None if value is None else bool(value) for value in values]
        return pa.array(values, type=field.type)
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
        raise StoreError(
            fqn,
            f"column {field.name} holds a value that is no {field.type} ({error}); read other columns, "
            "or show a view that converts it",
        ) from error


# Runs of rows as Python values, for stores that take runs.


def lists_of(rows: Any) -> dict[str, list[Any]]:
    """Return the columns of a run as lists of Python values.

    Args:
        rows: Columns by name (lists, numpy or Arrow arrays), or anything that pyarrow makes a table of.

    Raises:
        ValidationError: the columns differ in length.
    """
    if not isinstance(rows, Mapping):
        import pyarrow as pa

        table = rows if isinstance(rows, pa.Table | pa.RecordBatch) else pa.table(rows)
        rows = dict(zip(table.schema.names, table.columns, strict=True))
    lists = {name: list_of(column) for name, column in rows.items()}
    if len({len(column) for column in lists.values()}) > 1:
        lengths = ", ".join(f"{name} {len(column)}" for name, column in lists.items())
        raise ValidationError("rows", f"expected columns of one length, got {lengths}")
    return lists


def list_of(column: Any) -> list[Any]:
    """Return a list, tuple, numpy array or Arrow array as a list of Python values."""
    for method in ("to_pylist", "tolist"):
        if hasattr(column, method):
            values: list[Any] = getattr(column, method)()
            return values
    return column if isinstance(column, list) else list(column)
