"""The job: a `StatefulProcessor` of Spark's, which knows nothing of shards."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

VISIT_MS = 30 * 60 * 1000
"""A visit ends so long after its last click."""
ROWS = "user string, page string, at timestamp"
OUTPUT = "user string, clicks long, ended boolean"


class Visits(StatefulProcessor):
    """Counts the clicks of a visit, and the pages that it saw; it ends half an hour after its last click."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the state of a visit."""
        self._handle = handle
        self._visit = handle.getValueState("visit", "clicks long, end long")
        self._pages = handle.getMapState("pages", "page string", "clicks long")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Row]:  # noqa: N802, N803 - Spark's names
        """Count a user's clicks."""
        del timerValues
        clicks, end = self._visit.get() or (0, 0)
        if end:
            self._handle.deleteTimer(end)
        for row in rows:
            clicks += 1
            end = max(end, int(row.at.timestamp() * 1000) + VISIT_MS)
            before = self._pages.getValue((row.page,))
            self._pages.updateValue((row.page,), ((before[0] if before else 0) + 1,))
        self._handle.registerTimer(end)
        self._visit.update((clicks, end))
        yield Row(user=key[0], clicks=clicks, ended=False)

    def handleExpiredTimer(  # noqa: N802 - Spark's names
        self,
        key: Any,
        timerValues: Any,  # noqa: N803
        expiredTimerInfo: Any,  # noqa: N803
    ) -> Iterator[Row]:
        """End a visit."""
        del timerValues, expiredTimerInfo
        clicks, _ = self._visit.get() or (0, 0)
        self._visit.clear()
        self._pages.clear()
        yield Row(user=key[0], clicks=clicks, ended=True)
