"""Writes rows into journals, exactly once: `df.write.format("journal")` and `df.writeStream.format("journal")`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from broadsheet.runtime.interpreter import freeze_imports

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter
    from pyspark.sql.types import StructType


def batch_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceWriter:
    """Return the writer that publishes a DataFrame once.

    Raises:
        OptionError: an option is unknown, missing or wrong.
        PublishError: the mode or a column does not fit; the message names it.
    """
    _refuse_overwrite(overwrite, 'mode: expected mode("append")')
    from broadsheet.spark_bridge.journal_sink.options import write_options
    from broadsheet.spark_bridge.journal_sink.writers import BatchJournalWriter

    writer = BatchJournalWriter(write_options(options), schema)
    freeze_imports()
    return writer


def stream_writer(
    options: Mapping[str, str], schema: StructType, overwrite: bool
) -> DataSourceStreamWriter:
    """Return the writer that publishes a stream of micro-batches.

    Raises:
        OptionError: an option is unknown, missing or wrong.
        PublishError: the output mode or a column does not fit; the message names it.
    """
    _refuse_overwrite(
        overwrite, 'outputMode: expected outputMode("append") or outputMode("update")'
    )
    from broadsheet.spark_bridge.journal_sink.options import write_options
    from broadsheet.spark_bridge.journal_sink.writers import StreamJournalWriter

    writer = StreamJournalWriter(write_options(options), schema)
    freeze_imports()
    return writer


def _refuse_overwrite(overwrite: bool, expected: str) -> None:
    from broadsheet.spark_bridge.errors import PublishError

    if overwrite:
        raise PublishError(f"{expected}: a journal only grows, nothing in it can be replaced")
