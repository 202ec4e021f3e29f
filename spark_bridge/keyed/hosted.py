"""Spark's `StatefulProcessor` as a processor of a keyed shard.

One instance serves a shard for as long as this process is its primary: `init` is called once, and `close` when the
shard leaves. Spark unpickles an instance for each batch, so attributes that handlers set last until the end of the
transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from zoneinfo import ZoneInfo

import pyarrow as pa
from pyspark.sql.streaming.stateful_processor import (
    ExpiredTimerInfo,
    StatefulProcessor,
    TimerValues,
)

from broadsheet.consumer.keyed.grouping import KeyRows
from broadsheet.consumer.keyed.processor import KeyedProcessor, StateHandle
from broadsheet.consumer.keyed.txn_time import TimeMode, TxnTime
from broadsheet.spark_bridge.keyed.guard import ProcessorPhase, StateGuard
from broadsheet.spark_bridge.keyed.handle import HostedHandle
from broadsheet.spark_bridge.keyed.input_rows import frames_of, key_converter
from broadsheet.spark_bridge.keyed.losses import ValueLosses
from broadsheet.spark_bridge.keyed.output_times import OutputTimes


@dataclass(frozen=True, slots=True, kw_only=True)
class Hosting:
    """The settings by which a processor is hosted."""

    key: pa.Schema
    mode: TimeMode
    zone: ZoneInfo
    has_watermark: bool
    in_pandas: bool
    """Rows are DataFrames."""
    strict: bool
    """Refuse values of state that Spark would store as null."""
    rows_max: int
    """Rows of a DataFrame."""
    output_times: OutputTimes | None = None
    """Checks the event times of output."""


class HostedProcessor(KeyedProcessor):
    """A processor of Spark's."""

    def __init__(self, processor: StatefulProcessor, hosting: Hosting) -> None:
        """Take it.

        Args:
            processor: Not initialised; it is not shared with another life of a shard.
            hosting: How to call it.
        """
        self._processor = processor
        self._hosting = hosting
        self._attributes: dict[str, Any] = {}
        self._key = key_converter(hosting.key, hosting.zone, in_pandas=hosting.in_pandas)
        self._time: TxnTime | None = None
        self._timer_values = TimerValues()
        self.losses = ValueLosses(strict=hosting.strict)

    def init(self, state: StateHandle) -> None:
        """Let the processor declare its state."""
        self._guard = StateGuard(state.current, self._hosting.mode)
        handle = HostedHandle(state, self._guard, zone=self._hosting.zone, losses=self.losses)
        self._processor.init(handle)
        self._check()
        self._guard.phase = ProcessorPhase.INITIALIZED
        self._attributes = dict(vars(self._processor))

    def handle_rows(self, key: tuple[Any, ...], rows: KeyRows, time: TxnTime) -> Iterator[Any]:
        """Call `handleInputRows`."""
        made = rows.made
        given = frames_of(made, self._hosting.rows_max) if self._hosting.in_pandas else iter(made)
        times = self._times(time)
        return self._drained(self._processor.handleInputRows(self._key(key), given, times), time)

    def handle_initial(
        self, key: tuple[Any, ...], rows: KeyRows, time: TxnTime
    ) -> Iterable[Any] | None:
        """Call `handleInitialState`: for each row, or for each frame."""
        made, times = rows.made, self._times(time)
        given = frames_of(made, self._hosting.rows_max) if self._hosting.in_pandas else made
        for each in given:
            self._processor.handleInitialState(self._key(key), each, times)
        self._check()
        return None

    def handle_timer(self, key: tuple[Any, ...], expiry_ms: int, time: TxnTime) -> Iterator[Any]:
        """Call `handleExpiredTimer`, by keywords, as Spark does."""
        self._guard.phase = ProcessorPhase.DATA_PROCESSED
        rows = self._processor.handleExpiredTimer(
            key=self._key(key),
            timerValues=self._times(time),
            expiredTimerInfo=ExpiredTimerInfo(expiry_ms),
        )
        return self._drained(rows, time)

    def end_transaction(self) -> None:
        """Give attributes the values that they had after `init`."""
        self._guard.phase = ProcessorPhase.INITIALIZED
        attributes = vars(self._processor)
        attributes.clear()
        attributes.update(self._attributes)

    def close(self) -> None:
        """Close the processor."""
        self._guard.phase = ProcessorPhase.TIMER_PROCESSED
        self._processor.close()

    def _drained(self, rows: Iterable[Any], time: TxnTime) -> Iterator[Any]:
        """Yield what a handler returned; state calls of a generator are of its own key, because it is drained first."""
        check: Callable[[Any, int], None] | None = (
            None if self._hosting.output_times is None else self._hosting.output_times.check
        )
        for row in rows:
            if check is not None:
                check(row, time.watermark_ms)
            yield row
        self._check()

    def _check(self) -> None:
        """Fail if a handler caught an error after which Spark would have failed."""
        if self._guard.error is not None:
            raise self._guard.error

    def _times(self, time: TxnTime) -> TimerValues:
        if time is not self._time:
            self._time = time
            self._timer_values = self._timer_values_of(time)
        return self._timer_values

    def _timer_values_of(self, time: TxnTime) -> TimerValues:
        if self._hosting.mode is TimeMode.NONE:
            return TimerValues(-1, -1)
        return TimerValues(time.batch_ms, time.watermark_ms if self._hosting.has_watermark else 0)
