"""The event times of output, of which none may be older than the watermark."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

from pyspark.errors import PySparkRuntimeError


class OutputTimes:
    """Checks the column that `eventTimeColumnName` names."""

    def __init__(self, column: str, zone: ZoneInfo) -> None:
        """Check a column.

        Args:
            column: Of the output; its values are timestamps.
            zone: Of those without one in frames; in Rows they are UTC's.
        """
        self._column = column
        self._zone = zone

    def check(self, output: Any, watermark_ms: int) -> None:
        """Refuse a Row or a DataFrame with an event time before the watermark.

        Raises:
            PySparkRuntimeError: there is one.
        """
        if isinstance(output, tuple):
            # A Row, whose fields go by name.
            time = getattr(output, self._column, None)
            zone: Any = UTC
        else:
            zone = self._zone
            time = output[self._column].min() if self._column in output else None
            time = None if time is None else time.to_pydatetime()
        if time is None or time != time:
            return
        emitted_ms = _epoch_ms(time, zone)
        if emitted_ms < watermark_ms:
            raise PySparkRuntimeError(
                "[EMITTING_ROWS_OLDER_THAN_WATERMARK_NOT_ALLOWED] Previous node emitted a row with "
                f"eventTime={emitted_ms} which is older than current_watermark_value={watermark_ms}. This can lead to "
                "correctness issues in the stateful operators downstream in the execution pipeline. Please correct the "
                "operator logic to emit rows after current global watermark value. SQLSTATE: 42815"
            )


def _epoch_ms(time: datetime, zone: Any) -> int:
    aware = time if time.tzinfo is not None else time.replace(tzinfo=zone)
    return int(aware.timestamp() * 1000)
