"""The plan of a stream: sources, steps over rows, and operators, from the sources to the output.

A plan is made once, by `stream(…)`, and holds no state. Operators are numbered from the sources on: the number is that
of their rows in the store, so a plan whose operators differ from those that wrote the state is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from broadsheet.consumer.keyed.operators.durations import shown_duration
from broadsheet.consumer.keyed.operators.expressions import evaluated
from broadsheet.consumer.keyed.operators.operator import Operator
from broadsheet.consumer.keyed.operators.timed_rows import TimedRows
from broadsheet.consumer.keyed.txn_time import TimeMode
from broadsheet.runtime.errors import ValidationError

PUBLISHED: pa.DataType = pa.timestamp("ms", "UTC")
"""Type of times of rows that have none of their own: when they were published."""


@dataclass(frozen=True, eq=False, slots=True)
class StreamNode:
    """Rows of one source."""

    name: str
    schema: pa.Schema
    time: str | None = None
    """Column of event times; None: the clock with which a message was published."""
    delay_ms: int = 0
    is_declared: bool = True
    """False: columns are those that operators name."""
    inputs: tuple[Node, ...] = ()

    @property
    def time_type(self) -> pa.DataType:
        """The type of its event times."""
        return PUBLISHED if self.time is None else self.schema.field(self.time).type

    def __str__(self) -> str:
        time = self.time or "when published"
        delay = f", delay {shown_duration(self.delay_ms)}" if self.delay_ms else ""
        columns = ", ".join(f"{each.name} {each.type}" for each in self.schema)
        return f"stream {self.name} ({columns}; time {time}{delay})"


@dataclass(frozen=True, eq=False, slots=True)
class RowsNode:
    """A filter, or a choice of columns."""

    inputs: tuple[Node, ...]
    schema: pa.Schema
    condition: Any = None
    """Expression; None: all rows."""
    plain: Mapping[str, str] = field(default_factory=dict)
    """Columns of the input by their new names."""
    computed: Mapping[str, Any] = field(default_factory=dict)
    """Expressions by name."""

    def apply(self, rows: TimedRows) -> TimedRows:
        """Return the rows that it makes of some."""
        if self.condition is not None:
            mask = evaluated(rows.table, {"kept": self.condition}).column(0)
            # Null is not true, as in SQL.
            kept = mask.fill_null(False).to_numpy(zero_copy_only=False)
            return rows if kept.all() else rows.pick(kept)
        columns = {name: rows.table.column(source) for name, source in self.plain.items()}
        if self.computed:
            found = evaluated(rows.table, self.computed)
            columns |= {name: found.column(name) for name in self.computed}
        table = pa.table([columns[name] for name in self.schema.names], schema=self.schema)
        return TimedRows(table, rows.times)

    def __str__(self) -> str:
        if self.condition is not None:
            return f"where {self.condition}"
        parts = [
            f"{name} = {self.computed[name]}"
            if name in self.computed
            else name
            if self.plain[name] == name
            else f"{name} = {self.plain[name]}"
            for name in self.schema.names
        ]
        return f"select {', '.join(parts)}"


@dataclass(frozen=True, eq=False, slots=True)
class OperatorNode:
    """An operator over its inputs."""

    inputs: tuple[Node, ...]
    operator: Operator
    time: Literal["none", "event", "processing"]
    """The kind of time that it depends on."""
    emits: str
    """The moment at which rows come out of it, for people."""

    @property
    def schema(self) -> pa.Schema:
        """Of its output."""
        return self.operator.schema

    def at(self, rows: TimedRows, batch_ms: int) -> TimedRows:
        """Return its input with the times that it goes by."""
        if self.time != "processing":
            return rows
        return TimedRows(rows.table, np.full(len(rows), batch_ms, np.int64))

    def __str__(self) -> str:
        columns = ", ".join(f"{each.name} {each.type}" for each in self.schema)
        return f"{self.operator.identity}\n  emits ({columns}) {self.emits}"


Node = StreamNode | RowsNode | OperatorNode


class WatermarkLag(NamedTuple):
    """How far what comes out of a node is behind the watermark of the sources, milliseconds.

    The two differ by one at most. A window that ends when the watermark is at W emits a row whose time is the last
    before W. The next one to end may emit a row of time W itself: windows up to W are complete then, rows of time W are
    not.
    """

    windows: int
    """No row will have a time below the watermark less this."""
    rows: int
    """No row will have a time up to the watermark less this."""


class OperatorPlan:
    """A stream from its sources to its output."""

    def __init__(self, output: Node) -> None:
        """Put its nodes in order.

        Raises:
            ValidationError: operators of event time and of processing time are mixed, or sources of one name differ.
        """
        self.output = output
        self.nodes: Sequence[Node] = tuple(dict.fromkeys(_from_sources(output)))
        """Each after its inputs."""
        self.sources = [node for node in self.nodes if isinstance(node, StreamNode)]
        self.operators = [node for node in self.nodes if isinstance(node, OperatorNode)]
        times = {node.time for node in self.operators} - {"none"}
        if len(times) > 1:
            raise ValidationError(
                "time",
                "expected operators of one kind of time, event or processing; give the second kind a stream of its own",
            )
        self.mode = TimeMode(times.pop() if times else "none")
        self.behind_ms = _operators_behind(self.nodes)
        """How far each operator goes behind the watermark of the sources, so that no row of its inputs is late there
        which was not late in the sources."""
        names = [source.name for source in self.sources]
        for name in names:
            if names.count(name) > 1:
                raise ValidationError(
                    f"stream.{name}",
                    "expected one declaration of each stream; use the same stream object on both sides of a join",
                )

    @property
    def identities(self) -> list[str]:
        """The parts of each operator that must not change between two lives of the state."""
        return [node.operator.identity for node in self.operators]

    def explain(self) -> str:
        """Return the plan as text, a step a line, the output first."""
        return "\n".join(_explained(self.output, 0))


def _from_sources(node: Node) -> Iterator[Node]:
    for each in node.inputs:
        yield from _from_sources(each)
    yield node


def _operators_behind(nodes: Sequence[Node]) -> Mapping[OperatorNode, int]:
    lags: dict[Node, WatermarkLag] = {}
    found: dict[OperatorNode, int] = {}
    for node in nodes:
        inputs = [lags[each] for each in node.inputs] or [WatermarkLag(0, 0)]
        lag = WatermarkLag(max(each.windows for each in inputs), max(each.rows for each in inputs))
        if isinstance(node, OperatorNode):
            by_windows = node.operator.goes_by == "windows"
            behind = found[node] = lag.windows if by_windows else lag.rows
            if node.time != "none":
                gap = 1 if by_windows else lag.rows - lag.windows
                windows = (behind if by_windows else behind - gap) + node.operator.wait_ms
                lag = WatermarkLag(windows, windows + gap)
        lags[node] = lag
    return found


def _explained(node: Node, depth: int) -> Iterator[str]:
    for number, line in enumerate(str(node).splitlines()):
        yield "  " * depth + ("  " if number else "└ " if depth else "") + line.strip()
    for each in node.inputs:
        yield from _explained(each, depth + 1)
