"""A sink in Python that drops its rows: what Spark itself takes to bring rows to any sink in Python.

It is a module of its own because Spark's workers import it, and must not import the benchmark with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from pyspark.sql.datasource import (
    DataSource,
    DataSourceArrowWriter,
    DataSourceWriter,
    WriterCommitMessage,
)

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


class DroppingFormat(DataSource):
    """`format("dropping")`."""

    @classmethod
    def name(cls) -> str:
        """Return the format's name."""
        return "dropping"

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        """Return the writer of a DataFrame."""
        del schema, overwrite
        return _Dropping()


class _Dropping(DataSourceArrowWriter):
    """Reads all rows, as Arrow batches."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterCommitMessage:
        """Take a task's rows."""
        for _ in iterator:
            pass
        return WriterCommitMessage()

    def commit(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Nothing is to be done."""

    def abort(self, messages: Sequence[WriterCommitMessage | None]) -> None:
        """Nothing is to be undone."""
