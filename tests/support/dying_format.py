"""The format "dying_journal": the journal sink of a driver that dies at a step of a batch's commit, by SIGKILL.

`killAt` is the step and the batch, `recorded:0`; `driver` the process id of the driver's Python. Its JVM dies with it,
and the process that Spark commits in.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import psutil

from broadsheet.spark_bridge.formats import JournalFormat

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter
    from pyspark.sql.types import StructType

    from broadsheet.spark_bridge.journal_sink.commit import CommitStep


class DyingFormat(JournalFormat):
    """The journal format, whose commit kills the driver."""

    @classmethod
    def name(cls) -> str:
        """The format's name."""
        return "dying_journal"

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:  # noqa: N802 - Spark's name
        """Return the sink's writer, with a commit that is watched."""
        from broadsheet.spark_bridge.journal_sink.options import write_options
        from broadsheet.spark_bridge.journal_sink.writers import StreamJournalWriter

        del overwrite
        ours = ("killat", "driver")  # Spark's mapping has the names in lower case.
        options = {name: value for name, value in self.options.items() if name not in ours}
        killer = CommitKiller(self.options["killat"], driver_pid=int(self.options["driver"]))
        return StreamJournalWriter(write_options(options), schema, on_step=killer)


class CommitKiller:
    """Kills at a step of a batch's commit."""

    def __init__(self, kill_at: str, *, driver_pid: int) -> None:
        """Kill at `kill_at`, the step and the batch."""
        step, _, batch = kill_at.partition(":")
        self._at = (step, int(batch))
        self._driver_pid = driver_pid

    def __call__(self, step: CommitStep, batch: int) -> None:
        """Kill if it is the step."""
        if (step.value, batch) != self._at:
            return
        jvm = next(parent for parent in psutil.Process().parents() if parent.name() == "java")
        for pid in (self._driver_pid, jvm.pid, os.getpid()):
            os.kill(pid, signal.SIGKILL)
