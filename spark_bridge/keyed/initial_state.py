"""The rows that a query's state begins with, and which of them are a shard's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.sql.types import Row

from broadsheet.consumer.application import Shard
from broadsheet.journals.message.partitioning import BatchMapping
from broadsheet.runtime.errors import ValidationError

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped]  # it ships no types

Rows: TypeAlias = "pa.Table | pd.DataFrame | Sequence[Row]"
"""Initial rows, as an Arrow table, a pandas DataFrame or Rows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class InitialState:
    """Rows that state begins with, in a query that starts for the first time."""

    rows: Rows | Callable[[Shard], Rows]
    """The rows, with the key's columns among theirs; or a function that returns those of a shard."""
    journals: BatchMapping | None = None
    """Chooses the journal of each row, as the producers of the sources do: a shard takes the rows of its own journals.
    None: each shard takes all rows, so there may be one shard only, or `rows` is a function.
    """


def initial_table(initial: InitialState, key: pa.Schema, shard: Shard) -> pa.Table:
    """Return the rows of a shard.

    Raises:
        ValidationError: they lack a column of the key, or have another type there.
    """
    rows = initial.rows(shard) if callable(initial.rows) else initial.rows
    table = _table(rows)
    for field in key:
        if field.name not in table.schema.names:
            raise ValidationError(
                f"initialState.{field.name}",
                f"expected a column of the key among {table.schema.names}",
            )
    table = _with_key_types(table, key)
    return table if initial.journals is None else _own(table, initial.journals, shard)


def _own(table: pa.Table, mapping: BatchMapping, shard: Shard) -> pa.Table:
    """Return the rows whose journal is one of a shard's sources."""
    own = {source.journal for source in shard.spec.sources}
    batches = []
    for batch in table.to_batches():
        journals, places = mapping.journals_of(batch)
        is_own = np.asarray([each.journal in own for each in journals], np.bool_)
        batches.append(batch.filter(pa.array(is_own[places])))
    return pa.Table.from_batches(batches, schema=table.schema)


def _with_key_types(table: pa.Table, key: pa.Schema) -> pa.Table:
    for field in key:
        place = table.schema.get_field_index(field.name)
        if table.schema.field(place).type == field.type:
            continue
        try:
            column = table.column(place).cast(field.type)
        except pa.ArrowException as error:
            raise ValidationError(
                f"initialState.{field.name}", f"expected {field.type}, as in the key: {error}"
            ) from error
        table = table.set_column(place, pa.field(field.name, field.type), column)
    return table


def _table(rows: Any) -> pa.Table:
    if isinstance(rows, pa.Table):
        return rows
    if hasattr(rows, "iloc"):
        return pa.Table.from_pandas(rows, preserve_index=False)
    return pa.Table.from_pylist([row.asDict(True) for row in rows])
