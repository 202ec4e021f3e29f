"""Maps the rows of a batch to journals: by key as `broadsheet.journals.message.partitioning` does, or by a function.

`publish_dataframe` and the sink choose by the same functions, and so agree with each other and with other publishers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
from pyspark.sql.types import AtomicType, StructType

from broadsheet.journals.message.column_texts import Indices
from broadsheet.journals.message.partitioning import RULES, hashes_of, key_bytes_of
from broadsheet.journals.message.plain_columns import taken
from broadsheet.spark_bridge.errors import PublishError
from broadsheet.spark_bridge.format_options import OptionError, imported
from broadsheet.spark_bridge.journal_sink.options import MODULO, WriteOptions


class RowMapping(Protocol):
    """Chooses the journal of each row. Pickled on the driver, used in tasks."""

    def indices(self, rows: pa.RecordBatch, journals: Sequence[str]) -> Indices:
        """Return the index of each row's journal; shape (N,).

        Raises:
            PublishError: a key is null.
        """
        ...

    def keys(self, rows: pa.RecordBatch, places: Indices) -> list[bytes] | None:
        """Return the keys of the rows at some places, which choose among the parts of a divided journal.

        Returns:
            None if they have none.
        """
        ...


@dataclass(frozen=True, slots=True)
class OneJournal:
    """The mapping to the only journal."""

    def indices(self, rows: pa.RecordBatch, journals: Sequence[str]) -> Indices:
        """Return zeros."""
        del journals
        return np.zeros(rows.num_rows, dtype=np.int64)

    def keys(self, rows: pa.RecordBatch, places: Indices) -> list[bytes] | None:
        """Return None."""
        del rows, places
        return None


@dataclass(frozen=True, slots=True)
class ColumnMapping:
    """A mapping by the value of a column."""

    key: str
    rule: str = MODULO
    """Name of the rule, one of `RULES`."""

    def indices(self, rows: pa.RecordBatch, journals: Sequence[str]) -> Indices:
        """Return the index of each row's journal."""
        return key_indices(rows.column(self.key), journals, name=self.key, rule=self.rule)

    def keys(self, rows: pa.RecordBatch, places: Indices) -> list[bytes] | None:
        """Return the column's values as other publishers hash them."""
        column = rows.select([self.key])
        return key_bytes_of(taken(column, pa.array(places)).column(0))


@dataclass(frozen=True, slots=True)
class ApplicationMapping:
    """A mapping by an application's function of a `pyarrow.RecordBatch` and the journals' names, which returns N
    indices.
    """

    name: str
    """`module:function`; executors import it."""

    def indices(self, rows: pa.RecordBatch, journals: Sequence[str]) -> Indices:
        """Return the index of each row's journal.

        Raises:
            PublishError: the function did not return such indices.
        """
        function = imported(self.name, option="mapping")
        found = np.asarray(function(rows, journals))
        if found.shape != (rows.num_rows,) or not np.issubdtype(found.dtype, np.integer):
            raise PublishError(
                f"mapping {self.name}: expected {rows.num_rows} integers, one a row, got shape "
                f"{found.shape} of {found.dtype}"
            )
        if len(found) and not 0 <= found.min() <= found.max() < len(journals):
            raise PublishError(
                f"mapping {self.name}: expected indices in [0, {len(journals)}), got "
                f"{found.min()} to {found.max()}"
            )
        return found.astype(np.int64)

    def keys(self, rows: pa.RecordBatch, places: Indices) -> list[bytes] | None:
        """Return None: the function tells no key."""
        del rows, places
        return None


def mapping_for(options: WriteOptions, *, journal_count: int, schema: StructType) -> RowMapping:
    """Return the mapping that the options ask for; with one journal no key is needed.

    Raises:
        OptionError: the options do not fit each other or the rows.
    """
    if options.mapping not in RULES:
        imported(options.mapping, option="mapping")
        return ApplicationMapping(options.mapping)
    if options.key is None:
        if journal_count == 1:
            return OneJournal()
        expected = (
            f"the column whose value chooses among {journal_count} journals, one of {schema.names}"
        )
        raise OptionError("key", expected, got=None)
    if options.key not in schema.names:
        raise OptionError("key", f"one of the columns {schema.names}", got=options.key)
    kind = schema[options.key].dataType
    if not isinstance(kind, AtomicType):
        expected = f"a column of plain values; {options.key} holds {kind.simpleString()}"
        raise OptionError("key", expected, got=options.key)
    return ColumnMapping(options.key, options.mapping)


def key_indices(
    keys: pa.Array, journals: Sequence[str], *, name: str, rule: str = MODULO
) -> Indices:
    """Return the index of each key's journal; shape (N,).

    Args:
        keys: Plain values.
        journals: Those to choose among, in the order that all publishers share.
        name: Of the keys' column, for the error.
        rule: Name of the rule, one of `RULES`.

    Raises:
        PublishError: a key is null.
    """
    if keys.null_count:
        raise PublishError(
            f"column {name}: the key of {keys.null_count} rows is null, and no journal can be chosen; "
            "filter them out, or give them a value by coalesce()"
        )
    return RULES[rule].indices(hashes_of(keys), journals)
