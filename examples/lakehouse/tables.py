"""The two tables, as any program reads and compacts them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import pyarrow as pa
from deltalake import DeltaTable
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import CommitFailedException
from pyiceberg.table import Table, TableProperties

CATALOG: Final = "lakehouse"
"""A SQL catalog keeps its name with each table: it is the one that `shardctl sink iceberg` was told."""
ICEBERG_TABLE: Final = "lake.alerts"


def delta_table(directory: Path) -> DeltaTable:
    """Return the Delta table as it is now."""
    return DeltaTable(str(directory.resolve() / "delta"))


@contextmanager
def iceberg_table(directory: Path) -> Iterator[Table]:
    """Lend the Iceberg table as it is now. Its catalog is a SQLite file, as `shardctl sink iceberg` was told."""
    uri = f"sqlite:///{directory.resolve()}/catalog.db"
    with closing(load_catalog(CATALOG, type="sql", uri=uri)) as catalog:
        yield catalog.load_table(ICEBERG_TABLE)


def compact_delta(directory: Path) -> tuple[int, int]:
    """Join small files; return how many went, and how many came. Commits that come between are not disturbed."""
    metrics = delta_table(directory).optimize.compact()
    return metrics["numFilesRemoved"], metrics["numFilesAdded"]


def compact_iceberg(directory: Path, *, tries: int = 20) -> tuple[int, int]:
    """Join all files; return how many went, and how many came.

    pyiceberg has no compaction, so the whole table is overwritten with its own rows: for small tables only. A commit
    that comes between is not in these rows, so such an overwrite is refused, and made from the newer snapshot.

    Raises:
        CommitFailedException: others committed between, each time.
    """
    for number in range(tries):
        with iceberg_table(directory) as table:
            before = _files(table)
            if before < 2:
                return 0, 0
            # With retries, the client would decide what becomes of rows that came after the scan.
            properties = {**table.metadata.properties, TableProperties.COMMIT_NUM_RETRIES: "0"}
            table.metadata = table.metadata.model_copy(update={"properties": properties})
            try:
                table.overwrite(table.scan().to_arrow())
            except CommitFailedException:
                if number == tries - 1:
                    raise
                continue
            return before, _files(table)
    return 0, 0


def delta_rows(directory: Path) -> pa.Table:
    """Return the rows of the Delta table."""
    return delta_table(directory).to_pyarrow_table()


def iceberg_rows(directory: Path) -> pa.Table:
    """Return the rows of the Iceberg table."""
    with iceberg_table(directory) as table:
        return table.scan().to_arrow()


def _files(table: Table) -> int:
    return sum(1 for _ in table.scan().plan_files())
