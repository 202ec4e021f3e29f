"""Implements Spark's readers of a source: offsets of batches, their partitions, and the rows of one.

Spark creates a reader in each process that it asks, and pickles it to the tasks. A reader therefore holds only options,
and opens connections where it needs them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from broadsheet.spark_bridge.format_options import OptionError
from broadsheet.spark_bridge.journal_source.columns import RowColumns
from broadsheet.spark_bridge.journal_source.options import LATEST, ReadMode, ReadOptions
from broadsheet.spark_bridge.journal_source.partition_reader import read_partition
from broadsheet.spark_bridge.journal_source.raw_decoder import check_raw

if TYPE_CHECKING:
    import pyarrow as pa

    from broadsheet.spark_bridge.journal_source.stream_plan import StreamPlan


def columns_of_read(schema: StructType, options: ReadOptions) -> RowColumns:
    """Return the columns of a read.

    Raises:
        OptionError: a column or an option does not fit.
    """
    corrupt = options.corrupt_column if options.mode is ReadMode.PERMISSIVE else None
    columns = RowColumns(schema, include_metadata=options.include_metadata, corrupt=corrupt)
    if not options.decode:
        check_raw(columns)  # raised here, because Spark would retry tasks
    return columns


class JournalBatchReader(DataSourceReader):
    """Reads the messages that are committed when a query is planned."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Take what to read.

        Raises:
            OptionError: a column or an option does not fit.
        """
        self._options = options
        self._columns = columns_of_read(schema, options)
        for name, value in (
            ("maxRowsPerTrigger", options.rows_max),
            ("maxBytesPerTrigger", options.bytes_max),
        ):
            if value is not None:
                raise OptionError(name, "none but with readStream", got=str(value))
        if options.start == LATEST:
            raise OptionError(
                "start", "latest but with readStream only: nothing follows", got="latest"
            )

    def partitions(self) -> Sequence[InputPartition]:
        """Return the partitions."""
        from broadsheet.spark_bridge.journal_source.planner import batch_partitions

        return asyncio.run(batch_partitions(self._options))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a partition's messages."""
        return read_partition(partition, options=self._options, columns=self._columns)


class JournalStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Reads messages in micro-batches, as they are committed."""

    def __init__(self, options: ReadOptions, schema: StructType) -> None:
        """Take what to read.

        Raises:
            OptionError: a column or an option does not fit.
        """
        self._options = options
        self._columns = columns_of_read(schema, options)
        if options.end != LATEST:
            raise OptionError("end", "none but with read: a stream has no end", got="offsets")
        self._plan: StreamPlan | None = None

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        """Return the stream's beginning as the option gives it, because it is looked up with the first batch."""
        return {"start": self._options.start_text}

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Return the limit of micro-batches; one object carries both limits, because Spark takes only one."""
        if self._options.rows_max is not None:
            return ReadMaxRows(self._options.rows_max)
        if self._options.bytes_max is not None:
            return ReadMaxBytes(self._options.bytes_max)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802
        """Return the end of the micro-batch that begins at `start`."""
        limited = not isinstance(limit, ReadAllAvailable)
        return self._opened().latest_offset(start, limited=limited)

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        """Return the latest known ends of the journals, for Spark's progress report."""
        return self._plan.reported() if self._plan is not None else None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        """Note the current ends of the journals, at which the query stops."""
        self._opened().stop_at_heads()

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        """Return the partitions of the micro-batch."""
        return self._opened().partitions(start, end)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield a partition's messages."""
        return read_partition(partition, options=self._options, columns=self._columns)

    def stop(self) -> None:
        """Close the plan and its connections."""
        if self._plan is not None:
            self._plan.close()
            self._plan = None

    def _opened(self) -> StreamPlan:
        if self._plan is None:
            from broadsheet.spark_bridge.journal_source.stream_plan import StreamPlan

            self._plan = StreamPlan(self._options)
        return self._plan


def batch_reader(options: Mapping[str, Any], schema: StructType) -> JournalBatchReader:
    """Return the reader of a batch read.

    Raises:
        OptionError: an option or a column is wrong.
    """
    from broadsheet.spark_bridge.journal_source.options import read_options

    return JournalBatchReader(read_options(options), schema)


def stream_reader(options: Mapping[str, Any], schema: StructType) -> JournalStreamReader:
    """Return the reader of a stream.

    Raises:
        OptionError: an option or a column is wrong.
    """
    from broadsheet.spark_bridge.journal_source.options import read_options

    return JournalStreamReader(read_options(options), schema)
