"""An application of a Spark `StatefulProcessor`, as it is, on shards: without a JVM.

    StatefulProcessorApplication(
        Counter(),
        key="user",
        inputSchema="user string, at timestamp",
        outputStructType="user string, n long",
        timeMode="EventTime",
        eventTime="at",
        delay="10 seconds",
        output=JournalOutput(MappedJournal("counts", NDJSON), JsonType()),
    )

Names of arguments are Spark's where they are arguments of `transformWithState`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import Any, Final, Literal, Required, TypedDict
from zoneinfo import ZoneInfo

import cloudpickle
import pyarrow as pa
from pyspark.errors import (
    AnalysisException,
    IllegalArgumentException,
    PySparkRuntimeError,
)
from pyspark.sql.streaming.stateful_processor import StatefulProcessor
from pyspark.sql.types import StructType

from broadsheet.consumer.application import MessageProducer, Shard
from broadsheet.consumer.keyed.application import (
    EventTime,
    JournalOutput,
    KeyedApplication,
    StateOptions,
)
from broadsheet.consumer.keyed.imports.loading import StateImport
from broadsheet.consumer.keyed.imports.manifest import ImportManifest
from broadsheet.consumer.keyed.run import KeyedRun
from broadsheet.consumer.keyed.store import KeyedStore
from broadsheet.consumer.keyed.txn_time import TimeMode
from broadsheet.journals.content.message_type import MessageType
from broadsheet.runtime.clock import Clock
from broadsheet.runtime.errors import ValidationError
from broadsheet.spark_bridge.keyed.hosted import HostedProcessor, Hosting
from broadsheet.spark_bridge.keyed.initial_state import InitialState, Rows, initial_table
from broadsheet.spark_bridge.keyed.input_rows import PandasRows, SparkRows
from broadsheet.spark_bridge.keyed.intervals import milliseconds_of
from broadsheet.spark_bridge.keyed.output_rows import table_of_frames, table_of_rows
from broadsheet.spark_bridge.keyed.output_times import OutputTimes
from broadsheet.spark_bridge.keyed.schemas import arrow_schema, as_nullable, struct_of
from broadsheet.wire.journal_pb2 import JournalSpec

MODES: Final[dict[str, Literal["none", "processing", "event"]]] = {
    "none": "none",
    "processingtime": "processing",
    "eventtime": "event",
}
ROWS_MAX: Final = 10_000
"""Rows of a DataFrame: Spark's default of `spark.sql.execution.arrow.maxRecordsPerBatch`."""
_CONFIG: Final = "spark.modes"
"""The settings that a later start may not change, beside the state."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostingOptions:
    """Settings of the host, which are the session's in Spark, or do not exist there."""

    strict: bool = False
    """Refuse values of state that Spark stores as null in silence; else they are stored so too, and counted."""
    time_zone: str = "UTC"
    """The session's time zone: of timestamps that handlers get, and of times without one that they give."""
    rows_max: int = ROWS_MAX
    """Rows of a DataFrame that a handler gets at once."""
    state: StateOptions | None = None
    """The place and the bounds of state."""
    side: JournalOutput | None = None
    """Output of late rows; None: they are dropped, and counted."""
    clock: Clock | None = None
    """For the batch time; None: the machine's."""


class QueryArguments(TypedDict, total=False):
    """Arguments of a `StatefulProcessorApplication` whose sources are journals, beside processor and output."""

    key: Required[str | Sequence[str]]
    inputSchema: Required[StructType | str]
    outputStructType: Required[StructType | str]
    outputMode: str
    timeMode: str
    eventTime: str | EventTime | None
    delay: str | int | timedelta
    initialState: InitialState | Rows | None
    takeOver: StateImport | None
    eventTimeColumnName: str
    inPandas: bool
    options: HostingOptions | None


class StatefulProcessorApplication(KeyedApplication):
    """Hosts a `StatefulProcessor`."""

    def __init__(
        self,
        processor: StatefulProcessor | Callable[[], StatefulProcessor],
        *,
        key: str | Sequence[str],
        inputSchema: StructType | str,
        outputStructType: StructType | str,
        outputMode: str = "Append",
        timeMode: str = "None",
        eventTime: str | EventTime | None = None,
        delay: str | int | timedelta = 0,
        initialState: InitialState | Rows | None = None,
        takeOver: StateImport | None = None,
        eventTimeColumnName: str = "",
        inPandas: bool = False,
        output: JournalOutput | None = None,
        source: MessageProducer[Any] | None = None,
        message_type: Callable[[JournalSpec], MessageType] | None = None,
        options: HostingOptions | None = None,
    ) -> None:
        """Describe it.

        Args:
            processor: The processor; each life of a shard gets a copy. Or its class, or a function that makes one.
            key: Columns to group by.
            inputSchema: Columns of the input, as a StructType or a table schema.
            outputStructType: Columns of the output.
            outputMode: "Append" or "Update", which are the same for this operator.
            timeMode: "None", "ProcessingTime" or "EventTime".
            eventTime: Column of event times, of which Spark's `withWatermark` makes the watermark; or an `EventTime`,
                with more settings.
            delay: Of the watermark: an interval such as "10 seconds", milliseconds, or a timedelta.
            initialState: Rows that state begins with; an `InitialState` says which of them are a shard's.
            takeOver: State of a stopped query that `import_state` wrote; `initialState` is not used then.
            eventTimeColumnName: Column of the output whose times may not be before the watermark.
            inPandas: Handlers take and yield DataFrames, as with `transformWithStateInPandas`.
            output: Where rows go; its schema is not used. None: handlers yield none.
            source: Brings the messages, in place of journals.
            message_type: Returns the encoding of a source's messages.
            options: How the processor is hosted.

        Raises:
            ValidationError: an argument is wrong; the error names it.
            IllegalArgumentException: there is no such time mode.
            AnalysisException: there is no such output mode for this operator.
        """
        self._options = hosting = options or HostingOptions()
        input_struct = struct_of(inputSchema, "inputSchema")
        rows = as_nullable(arrow_schema(input_struct, "inputSchema"))
        names = [key] if isinstance(key, str) else list(key)
        mode, self._output_mode = _time_mode(timeMode), _output_mode(outputMode)
        watermark = _event_time(eventTime, delay)
        super().__init__(
            self._new_processor,
            key=_key_schema(names, rows),
            rows=rows,
            time=mode,
            event_time=watermark,
            side=hosting.side,
            state=hosting.state,
            imported=takeOver,
            source=source,
            message_type=message_type,
            clock=hosting.clock,
        )
        self._output = output
        self._output_struct = struct_of(outputStructType, "outputStructType")
        self._output_schema = as_nullable(arrow_schema(self._output_struct, "outputStructType"))
        self._initial = initialState
        self._make = _maker(processor)
        self._zone = ZoneInfo(hosting.time_zone)
        self._in_pandas = inPandas
        make_rows = PandasRows(self._zone) if inPandas else SparkRows(self._zone)
        self.settings = replace(self.settings, make_rows=make_rows)
        self._hosting = Hosting(
            key=self.settings.key.schema,
            mode=TimeMode(mode),
            zone=self._zone,
            has_watermark=watermark is not None,
            in_pandas=inPandas,
            strict=hosting.strict,
            rows_max=hosting.rows_max,
            output_times=self._output_times(eventTimeColumnName),
        )

    def new_run(self, shard: Shard, store: KeyedStore) -> KeyedRun:
        """Return the transactions of a new copy of the processor over a restored store.

        Raises:
            IllegalArgumentException: the time mode or the output mode is another than that of the stored state.
        """
        config = self._modes.encode()
        known = store.meta(_CONFIG.encode())
        if known is not None and known != config:
            raise IllegalArgumentException(
                "[STATE_STORE_INVALID_CONFIG_AFTER_RESTART] Cannot change time mode and output mode from "
                f"{known.decode()} to {config.decode()} between restarts. SQLSTATE: 42K06"
            )
        if known is None:
            store.put_meta(_CONFIG.encode(), config)
        return super().new_run(shard, store)

    def check_import(self, manifest: ImportManifest) -> None:
        """See `KeyedApplication.check_import`."""
        modes = manifest.meta.get(_CONFIG, self._modes)
        if modes != self._modes:
            raise ValidationError(
                "timeMode, outputMode",
                f"expected {modes}, as the query has them, got {self._modes}",
            )
        try:
            super().check_import(manifest)
        except PySparkRuntimeError as error:
            raise ValidationError("processor", str(error)) from error

    @property
    def _modes(self) -> str:
        return f"{self._hosting.mode.value} {self._output_mode}"

    def initial_rows(self, shard: Shard) -> pa.Table | None:
        """Return the rows that a shard's state begins with."""
        if self._initial is None:
            return None
        initial = self._initial
        given = initial if isinstance(initial, InitialState) else InitialState(rows=initial)
        return initial_table(given, self.settings.key.schema, shard)

    def output_table(self, rows: Sequence[Any]) -> pa.Table:
        """Return as columns what handlers yielded."""
        if self._in_pandas:
            return table_of_frames(rows, self._output_schema, self._zone)
        return table_of_rows(rows, self._output_schema)

    def _new_processor(self) -> HostedProcessor:
        return HostedProcessor(self._make(), self._hosting)

    def _output_times(self, column: str) -> OutputTimes | None:
        if not column:
            return None
        names = self._output_schema.names
        if column not in names:
            raise ValidationError(
                "eventTimeColumnName", f"expected a column among {names}, got {column!r}"
            )
        if not pa.types.is_timestamp(self._output_schema.field(column).type):
            raise ValidationError("eventTimeColumnName", f"expected {column} to be a timestamp")
        return OutputTimes(column, self._zone)


def modes_of(time_mode: str, output_mode: str) -> tuple[str, dict[str, str]]:
    """Return what a query's modes are here: the kind of time, and what is kept beside state.

    Args:
        time_mode: As a checkpoint has it.
        output_mode: The same.
    """
    mode = _time_mode("None" if time_mode == "NoTime" else time_mode)
    return mode, {_CONFIG: f"{mode} {_output_mode(output_mode)}"}


def _maker(
    processor: StatefulProcessor | Callable[[], StatefulProcessor],
) -> Callable[[], StatefulProcessor]:
    if isinstance(processor, StatefulProcessor):
        # As it is now, whatever becomes of it: Spark too takes a copy when the query is defined.
        content = cloudpickle.dumps(processor)
        return lambda: cloudpickle.loads(content)
    if not callable(processor):
        raise ValidationError(
            "processor",
            f"expected a StatefulProcessor, its class, or a function that makes one; got {type(processor).__name__}",
        )
    return processor


def _key_schema(names: Sequence[str], rows: pa.Schema) -> pa.Schema:
    for name in names:
        if name not in rows.names:
            raise ValidationError("key", f"expected columns among {rows.names}, got {name!r}")
    return pa.schema([rows.field(name) for name in names])


def _event_time(given: str | EventTime | None, delay: str | int | timedelta) -> EventTime | None:
    if given is None or isinstance(given, EventTime):
        return given
    return EventTime(column=given, delay_ms=milliseconds_of(delay, "delay"))


def _time_mode(given: str) -> Literal["none", "processing", "event"]:
    mode = MODES.get(given.lower())
    if mode is None:
        raise IllegalArgumentException(
            f"[STATEFUL_PROCESSOR_UNKNOWN_TIME_MODE] Unknown time mode {given}. Accepted timeMode modes are 'none', "
            "'processingTime', 'eventTime' SQLSTATE: 42K09"
        )
    return mode


def _output_mode(given: str) -> str:
    mode = given.lower()
    if mode in ("append", "update"):
        return mode
    if mode == "complete":
        raise AnalysisException(
            "[STREAMING_OUTPUT_MODE.UNSUPPORTED_OPERATION] Invalid streaming output mode: complete. This output mode "
            "is not supported for transformWithState on streaming DataFrames/DataSets. SQLSTATE: 42KDE"
        )
    raise IllegalArgumentException(
        f"[STREAMING_OUTPUT_MODE.INVALID] Invalid streaming output mode: {given}. Accepted output modes are 'Append', "
        "'Complete', 'Update'. SQLSTATE: 42KDE"
    )
