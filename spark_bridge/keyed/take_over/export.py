"""Writes rows of a query's state into the files of an import, on executors.

Each task writes files of its own, and returns their names: only those of tasks that Spark counted as done are named by
the manifest, so a task that runs again, or twice at a time, changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from broadsheet.consumer.keyed.imports.files import ImportFileWriter, ImportPlace
from broadsheet.consumer.keyed.imports.manifest import KEY, ImportedFile
from broadsheet.journals.message.partitioning import BatchMapping
from broadsheet.runtime.errors import ValidationError

WRITTEN: Final = "path string, owner string, rows long"
"""Columns that a task returns: a row a file."""
_WRITTEN: Final = pa.schema([("path", pa.string()), ("owner", pa.string()), ("rows", pa.int64())])
_PENDING_BYTES_MAX: Final = 32 << 20
"""Rows of all owners that a task holds, so that their batches are long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StateExport:
    """Writes the rows of one variable: a function for `DataFrame.mapInArrow`."""

    place: str
    variable: str
    """Its name; empty for timers."""
    schema: pa.Schema
    """Of the files."""
    key: pa.Schema
    """Fields of the key as the application names them, for `journals`."""
    journals: BatchMapping | None
    """Chooses the owner of a key; None: there is one for all."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Write the rows of a partition."""
        writers = _Writers(self)
        for batch in batches:
            if len(batch):
                writers.add(self._with_types(batch))
        written = writers.close()
        if written:
            columns = [[getattr(each, name) for each in written] for name in _WRITTEN.names]
            arrays = [
                pa.array(column, type_)
                for column, type_ in zip(columns, _WRITTEN.types, strict=True)
            ]
            yield pa.RecordBatch.from_arrays(arrays, schema=_WRITTEN)

    def owned(self, rows: pa.Table) -> Iterator[tuple[str, pa.Table]]:
        """Yield the rows of each owner, in their order."""
        if self.journals is None:
            yield "", rows
            return
        # One batch, so that the indices of all rows come at once.
        fields = rows.column(KEY).combine_chunks().flatten()
        keys = pa.RecordBatch.from_arrays(fields, names=self.key.names)
        journals, places = self.journals.journals_of(keys)
        for place in np.unique(places):
            yield journals[int(place)].journal, rows.filter(pa.array(places == place))

    def _with_types(self, batch: pa.RecordBatch) -> pa.Table:
        """Return rows with the types of the file: a session has its own zone, and its own kind of texts."""
        table = pa.Table.from_batches([batch]).select(self.schema.names)
        return table if table.schema.types == self.schema.types else table.cast(self.schema)


class _Writers:
    """The files of a task, one an owner."""

    def __init__(self, export: StateExport) -> None:
        self._export = export
        self._place = ImportPlace(export.place)
        self._files: dict[str, ImportFileWriter] = {}
        self._pending: dict[str, list[pa.Table]] = {}
        self._pending_bytes = 0

    def add(self, rows: pa.Table) -> None:
        for owner, owned in self._export.owned(rows):
            self._pending.setdefault(owner, []).append(owned)
        self._pending_bytes += rows.nbytes
        if self._pending_bytes >= _PENDING_BYTES_MAX:
            self._flush()

    def close(self) -> Sequence[ImportedFile]:
        self._flush()
        return [each.close() for each in self._files.values()]

    def _flush(self) -> None:
        for owner, tables in self._pending.items():
            writer = self._files.get(owner)
            if writer is None:
                export = self._export
                writer = self._place.new_file(owner, export.variable, export.schema)
                self._files[owner] = writer
            writer.write(pa.concat_tables(tables))
        self._pending, self._pending_bytes = {}, 0


def checked_mapping(journals: BatchMapping | None, key: pa.Schema) -> None:
    """Refuse a mapping that cannot choose by the columns of the key alone.

    Raises:
        ValidationError: it cannot.
    """
    if journals is None:
        return
    arrays: list[Any] = [pa.array([], type_) for type_ in key.types]
    try:
        journals.journals_of(pa.RecordBatch.from_arrays(arrays, schema=key))
    except ValidationError as error:
        raise error.under("journals") from error
