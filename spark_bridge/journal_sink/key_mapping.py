"""Maps the rows of a batch to journals by key, without a loop over rows.

Hash and use agree with `broadsheet.journals.message.mapping`, and so with Gazette's publishers: every publisher maps a
key to the same journal. A key is the UTF-8 bytes of its column's text, or the bytes of a binary column.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa
from pyspark.sql.types import AtomicType, StructType

from broadsheet.journals.message.column_texts import Indices
from broadsheet.journals.message.key_columns import (
    Hashes,
    hashes_of,
    modulo_indices,
    rendezvous_indices,
)
from broadsheet.spark_bridge.errors import PublishError
from broadsheet.spark_bridge.format_options import OptionError, imported
from broadsheet.spark_bridge.journal_sink.options import MODULO, RENDEZVOUS, WriteOptions


class RowMapping(Protocol):
    """Chooses the journal of each row. Pickled on the driver, used in tasks."""

    def indices(self, rows: pa.RecordBatch, journals: Sequence[str]) -> Indices:
        """Return the index of each row's journal; shape (N,).

        Raises:
            PublishError: a key is null.
        """
        ...


@dataclass(frozen=True, slots=True)
class OneJournal:
    """The mapping to the only journal."""

    def indices(self, rows: pa.RecordBatch, journals: Sequence[str]) -> Indices:
        """Return zeros."""
        del journals
        return np.zeros(rows.num_rows, dtype=np.int64)


@dataclass(frozen=True, slots=True)
class IndexColumn:
    """A mapping by a column that holds the journal's index."""

    name: str

    def indices(self, rows: pa.RecordBatch, journals: Sequence[str]) -> Indices:
        """Return the column."""
        del journals
        found: Indices = rows.column(self.name).to_numpy(zero_copy_only=False).astype(np.int64)
        return found


@dataclass(frozen=True, slots=True)
class ModuloMapping:
    """A mapping by the key's hash, modulo the number of journals."""

    key: str

    def indices(self, rows: pa.RecordBatch, journals: Sequence[str]) -> Indices:
        """Return the index of each row's journal."""
        return modulo_indices(key_hashes(rows, self.key), len(journals))


@dataclass(frozen=True, slots=True)
class RendezvousMapping:
    """A mapping to the journal whose hash, combined with the key's, is the greatest: few keys move when journals are
    added.
    """

    key: str

    def indices(self, rows: pa.RecordBatch, journals: Sequence[str]) -> Indices:
        """Return the index of each row's journal."""
        return rendezvous_indices(key_hashes(rows, self.key), journals)


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


def mapping_for(options: WriteOptions, *, journal_count: int, schema: StructType) -> RowMapping:
    """Return the mapping that the options ask for; with one journal no key is needed.

    Raises:
        OptionError: the options do not fit each other or the rows.
    """
    if options.mapping not in (MODULO, RENDEZVOUS):
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
    return (
        ModuloMapping(options.key) if options.mapping == MODULO else RendezvousMapping(options.key)
    )


def key_hashes(rows: pa.RecordBatch, key: str) -> Hashes:
    """Return the FNV-1a hash of each row's key.

    Raises:
        PublishError: a key is null.
    """
    column = rows.column(key)
    if column.null_count:
        raise PublishError(
            f"column {key}: the key of {column.null_count} rows is null, and no journal can be chosen; "
            "filter them out, or give them a value by coalesce()"
        )
    return hashes_of(column)
