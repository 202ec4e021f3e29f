"""Streams as they are written: `stream("orders").key_by("user").window(tumbling("10m")).agg(total=sum_("amount"))`.

Each step is checked when it is made: an error names the step, and the columns that there are. Nothing runs before the
application of `to` does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import pyarrow as pa

from broadsheet.consumer.direct import KafkaOutput
from broadsheet.consumer.keyed.event_times import is_time
from broadsheet.consumer.keyed.operators.aggregate import Aggregate
from broadsheet.consumer.keyed.operators.aggregates import MergedAggregates
from broadsheet.consumer.keyed.operators.application import StreamApplication, StreamOptions
from broadsheet.consumer.keyed.operators.deduplicate import Deduplicate
from broadsheet.consumer.keyed.operators.durations import Duration, duration_ms
from broadsheet.consumer.keyed.operators.expressions import checked, require_columns
from broadsheet.consumer.keyed.operators.interval_join import (
    Interval,
    IntervalJoin,
    JoinKind,
    Side,
)
from broadsheet.consumer.keyed.operators.operator import WINDOW_END, WINDOW_START, Operator
from broadsheet.consumer.keyed.operators.plan import (
    Node,
    OperatorNode,
    OperatorPlan,
    RowsNode,
    StreamNode,
)
from broadsheet.consumer.keyed.operators.sessions import SessionAggregate
from broadsheet.consumer.keyed.operators.top import Top, TopRule
from broadsheet.consumer.keyed.operators.windowed import RunningAggregate, WindowAggregate
from broadsheet.consumer.keyed.operators.windows import (
    SessionWindow,
    Spanning,
    Window,
    is_window,
)
from broadsheet.consumer.keyed.row_types import Declared, StateRowType
from broadsheet.journals.message.partitioning import BatchMapping, MappedJournal
from broadsheet.runtime.errors import ValidationError

TimeKind = Literal["event", "processing"]
_DEFAULTS: Mapping[str, pa.DataType] = {
    "sum": pa.float64(),
    "mean": pa.float64(),
    "min": pa.float64(),
    "max": pa.float64(),
    "quantiles": pa.float64(),
}
"""Types of columns of a stream whose rows are not declared, by the aggregate that reads them; others are text."""


def stream(
    name: str,
    rows: Declared | None = None,
    *,
    time: str | None = None,
    delay: Duration = 0,
) -> Stream:
    """Return a stream of rows.

    Args:
        name: Of a journal, or of the prefix of several: `orders` stands for `orders/part-000` too.
        rows: Columns, as of `KeyedApplication`; a field that a message lacks is null. None: those that the steps name:
            keys are text, numbers float64.
        time: Column of event times: a timestamp, or an integer of epoch milliseconds. None: when a message was
            published.
        delay: How far the watermark is behind the latest event time.

    Raises:
        ValidationError: the rows are no schema, the time is no column of them, or the delay no length of time.
    """
    delay_ms = duration_ms("stream.delay", delay, least=0)
    if rows is None:
        schema = pa.schema([] if time is None else [(time, pa.timestamp("us", "UTC"))])
        source = StreamNode(name, schema, time, delay_ms, is_declared=False)
    else:
        try:
            schema = StateRowType(rows).schema
        except ValidationError as error:
            raise error.under("stream.rows") from error
        # Whether a field may be null is a matter of declared state, not of what a producer sends.
        schema = pa.schema([pa.field(each.name, each.type) for each in schema])
        if time is not None:
            require_columns("stream.time", schema, [time])
            if not is_time(schema.field(time).type):
                raise ValidationError(
                    "stream.time",
                    f"expected a timestamp or an integer, got {time!r}, {schema.field(time).type}",
                )
        source = StreamNode(name, schema, time, delay_ms)
    return Stream(source, source.time_type)


@dataclass(frozen=True, slots=True)
class Stream:
    """Rows on their way. Streams never change: each step returns another."""

    node: Node
    time_type: pa.DataType | None
    """Of its event times; None: its rows have none, as those of a running aggregate."""

    @property
    def schema(self) -> pa.Schema:
        """The columns of its rows."""
        return self.node.schema

    # -- rows

    def where(self, condition: Any) -> Stream:
        """Keep the rows for which an expression is true: `where(col("price") > 10)`.

        Raises:
            ValidationError: it is no expression of truth values over these columns.
        """
        _require_declared(self, "where")
        schema = checked("where", self.schema, {"condition": condition})
        if not pa.types.is_boolean(schema.field(0).type):
            raise ValidationError("where", f"expected truth values, got {schema.field(0).type}")
        return Stream(RowsNode((self.node,), self.schema, condition=condition), self.time_type)

    def select(self, *names: str, **expressions: Any) -> Stream:
        """Choose columns: names, and names with expressions or other columns' names.

        `select("auction", price=col("price") * 0.9, seller="who")`. Event times stay with their rows.

        Raises:
            ValidationError: there is no such column, or an expression does not fit.
        """
        _require_declared(self, "select")
        plain = {name: name for name in names}
        plain |= {name: each for name, each in expressions.items() if isinstance(each, str)}
        require_columns("select", self.schema, list(plain.values()))
        computed = {name: each for name, each in expressions.items() if name not in plain}
        found = checked("select", self.schema, computed)
        fields = [
            found.field(name)
            if name in computed
            else pa.field(name, self.schema.field(plain[name]).type)
            for name in [*names, *expressions]
        ]
        if not fields:
            raise ValidationError("select", "expected at least one column")
        node = RowsNode((self.node,), pa.schema(fields), plain=plain, computed=computed)
        return Stream(node, self.time_type)

    def with_columns(self, **expressions: Any) -> Stream:
        """Add columns, or replace those of the same name.

        Raises:
            ValidationError: as `select`.
        """
        kept = [name for name in self.schema.names if name not in expressions]
        return self.select(*kept, **expressions)

    # -- operators

    def key_by(self, *names: str) -> KeyedStream:
        """Group rows by columns. Null is a key.

        Raises:
            ValidationError: there is no such column, or it has a type that no key has.
        """
        if not names:
            raise ValidationError("key_by", "expected at least one column; leave it out for none")
        of = _with_columns(self, {name: pa.string() for name in names})
        require_columns("key_by", of.schema, names)
        if len(set(names)) < len(names):
            raise ValidationError("key_by", f"expected distinct columns, got {', '.join(names)}")
        return KeyedStream(of, names)

    def window(
        self, window: Window, *, lateness: Duration = 0, time: TimeKind = "event"
    ) -> WindowedStream:
        """Divide all rows into windows; see `KeyedStream.window`."""
        return KeyedStream(self, ()).window(window, lateness=lateness, time=time)

    def agg(self, **aggregates: Aggregate) -> Stream:
        """Aggregate all rows so far; see `KeyedStream.agg`."""
        return KeyedStream(self, ()).agg(**aggregates)

    # -- the end

    def explain(self) -> str:
        """Return the plan as text: a line a step, the output first, with what it emits and when."""
        return OperatorPlan(self.node).explain()

    def to(
        self,
        to: str | MappedJournal | BatchMapping | KafkaOutput,
        options: StreamOptions | None = None,
        **changed: Any,
    ) -> StreamApplication:
        """Return the application that publishes these rows.

        Args:
            to: A journal of JSON lines, or what chooses one for each row: `KeyColumn`; or a topic, a `KafkaOutput`.
            options: Of the application.
            changed: Fields of `StreamOptions` to change.

        Raises:
            ValidationError: steps of the plan do not fit each other; or there is no such option.
        """
        known = list(StreamOptions.__dataclass_fields__)
        for name in changed:
            if name not in known:
                raise ValidationError(f"to.{name}", f"expected an option among {', '.join(known)}")
        return StreamApplication(
            OperatorPlan(self.node), to, replace(options or StreamOptions(), **changed)
        )


@dataclass(frozen=True, slots=True)
class KeyedStream:
    """Rows by key."""

    of: Stream
    names: tuple[str, ...]
    """Columns of the key."""

    @property
    def key(self) -> pa.Schema:
        """The columns of the key."""
        return pa.schema([self.of.schema.field(name) for name in self.names])

    def window(
        self, window: Window, *, lateness: Duration = 0, time: TimeKind = "event"
    ) -> WindowedStream:
        """Divide the rows of each key into windows.

        Args:
            window: `tumbling`, `hopping`, `session` or `spanning`.
            lateness: For so long after its end a window takes rows; each transaction with some emits it again.
            time: Of the rows' events, or of the clock of the shard.

        Raises:
            ValidationError: it is no window, or the rows have no event time.
        """
        if not is_window(window):
            raise ValidationError(
                "window", f"expected windows such as tumbling('10m'), got {window!r}"
            )
        lateness_ms = duration_ms("window.lateness", lateness, least=0)
        if time not in ("event", "processing"):
            raise ValidationError("window.time", f"expected 'event' or 'processing', got {time!r}")
        if isinstance(window, Spanning):
            require_columns("window.spanning", self.of.schema, (window.start, window.end))
            for name in (window.start, window.end):
                if not is_time(self.of.schema.field(name).type):
                    raise ValidationError(
                        "window.spanning", f"expected times, got {self.of.schema.field(name)}"
                    )
            time_type = self.of.schema.field(window.start).type
        elif time == "processing":
            time_type = pa.timestamp("ms", "UTC")
        else:
            time_type = _require_time(self.of, "window")
        return WindowedStream(self, window, lateness_ms, time, time_type)

    def agg(self, **aggregates: Aggregate) -> Stream:
        """Aggregate all rows so far by key; each transaction emits the keys that it changed.

        Raises:
            ValidationError: an aggregate does not fit; the error names it.
        """
        of = _reading(self.of, aggregates)
        keyed = replace(self, of=of)
        operator = RunningAggregate(keyed.key, _bound(aggregates, keyed))
        node = OperatorNode((of.node,), operator, "none", "for keys that changed")
        return Stream(node, None)

    def deduplicate(self, *, within: Duration | None = None) -> Stream:
        """Keep the first row of each key.

        Args:
            within: So long after its first row's event time a key is known; None: for ever.

        Raises:
            ValidationError: the length is none, or the rows have no event time.
        """
        within_ms = None if within is None else duration_ms("deduplicate.within", within, least=1)
        if within is not None:
            _require_time(self.of, "deduplicate")
        operator = Deduplicate(self.key, self.of.schema, within_ms)
        time = "none" if within is None else "event"
        node = OperatorNode((self.of.node,), operator, time, "at once")  # type: ignore[arg-type]  # a literal
        return Stream(node, self.of.time_type)

    def top(self, n: int, *, by: str, ties: bool = False, ascending: bool = False) -> Stream:
        """Keep the rows with the greatest values of each key; a key's whole list is emitted when it changed.

        Args:
            n: Rows of a key.
            by: Column of the values. Of equal ones the earlier event counts, then the row that came first.
            ties: Keep all rows whose value is among those.
            ascending: The least values instead.

        Raises:
            ValidationError: there is no such column, or its values have no order.
        """
        rule = _top_rule(self.of, n, by, ties=ties, ascending=ascending)
        operator = Top(self.key, self.of.schema, rule)
        node = OperatorNode((self.of.node,), operator, "none", "for keys whose list changed")
        return Stream(node, None)

    def join(
        self,
        other: KeyedStream,
        *,
        lower: Duration | None,
        upper: Duration | Until | None,
        how: JoinKind = "inner",
        time: str = "event_time",
    ) -> Stream:
        """Join with rows of another stream of the same key whose event times lie in an interval around this one's.

        Args:
            other: The right side. Its columns whose names are taken get `_right` behind them.
            lower: Begin of the interval, from the left row's time on, inclusive; `"-5m"` is before it. None: unbounded.
            upper: End of the interval, inclusive: a length, `until(column)` of the left rows, or None: unbounded.
                Rows are kept until they can meet no other, so those of an unbounded side are kept for ever.
            how: `inner`, `left`, `right` or `full`: rows without a partner come with nulls when they are dropped.
            time: Name of the column with the later of both times.

        Raises:
            ValidationError: keys or times do not fit, or the interval is empty.
        """
        interval = _interval(self.of, lower, upper)
        time_type = _require_time(self.of, "join")
        _require_time(other.of, "join")
        if self.key.types != other.key.types:
            raise ValidationError(
                "join", f"expected keys of the same types, {self.key.types}, got {other.key.types}"
            )
        if how not in ("inner", "left", "right", "full"):
            raise ValidationError("join.how", f"expected inner, left, right or full, got {how!r}")
        sides = _sides(self, other)
        if time in (*self.of.schema.names, *sides[1].renamed):
            raise ValidationError("join.time", f"expected a name that no column has, got {time!r}")
        operator = IntervalJoin(*sides, interval, kind=how, time=pa.field(time, time_type))
        kind: Literal["none", "event"] = "event"
        if lower is None and upper is None and how == "inner":
            # Nothing is late, and nothing is dropped.
            kind = "none"
        node = OperatorNode(
            (self.of.node, other.of.node), operator, kind, "when the later row of a pair comes"
        )
        if isinstance(upper, Until) and how in ("left", "full"):
            # A left row without a partner comes at the end that it names, however long after its own time.
            return Stream(node, None)
        return Stream(node, time_type)


@dataclass(frozen=True, slots=True)
class WindowedStream:
    """Rows by key and window."""

    of: KeyedStream
    kind: Window
    lateness_ms: int
    time: TimeKind
    time_type: pa.DataType

    def agg(self, **aggregates: Aggregate) -> Stream:
        """Aggregate the rows of each window, which is emitted when it ends: key, window_start, window_end, results.

        Raises:
            ValidationError: an aggregate does not fit; the error names it.
        """
        of = _reading(self.of.of, aggregates)
        keyed = replace(self.of, of=of)
        key = self._key(keyed, aggregates)
        parts = _bound(aggregates, keyed)
        operator: Operator
        if isinstance(self.kind, SessionWindow):
            operator = SessionAggregate(key, self.kind, parts, self.time_type, self.lateness_ms)
        else:
            operator = WindowAggregate(key, self.kind, parts, self.time_type, self.lateness_ms)
        return self._emitted(of, operator)

    def top(self, n: int, *, by: str, ties: bool = False, ascending: bool = False) -> Stream:
        """Keep the rows with the greatest values of each window, which is emitted when it ends; see `KeyedStream.top`.

        Raises:
            ValidationError: there is no such column, its values have no order, or the windows are sessions.
        """
        if isinstance(self.kind, SessionWindow):
            raise ValidationError("top", "expected tumbling, hopping or spanning windows")
        rule = _top_rule(self.of.of, n, by, ties=ties, ascending=ascending)
        operator = Top(
            self._key(self.of, ()),
            self.of.of.schema,
            rule,
            self.kind,
            self.time_type,
            self.lateness_ms,
        )
        return self._emitted(self.of.of, operator)

    def _key(self, keyed: KeyedStream, results: Any) -> pa.Schema:
        for name in (WINDOW_START, WINDOW_END):
            if name in keyed.names or name in results:
                raise ValidationError(
                    "window", f"expected another name than {name!r}, which is a window's bound"
                )
        return keyed.key

    def _emitted(self, of: Stream, operator: Operator) -> Stream:
        late = ", again for each transaction with late rows" if self.lateness_ms else ""
        emits = f"when the {'clock' if self.time == 'processing' else 'watermark'} reaches a window's end{late}"
        return Stream(OperatorNode((of.node,), operator, self.time, emits), self.time_type)


@dataclass(frozen=True, slots=True)
class Until:
    """The end of a join's interval: a column of left rows."""

    column: str


def until(column: str) -> Until:
    """Return the end of a join's interval that left rows name: `join(bids, lower=0, upper=until("expires"))`."""
    return Until(column)


def _interval(left: Stream, lower: Duration | None, upper: Duration | Until | None) -> Interval:
    begin = None if lower is None else duration_ms("join.lower", lower)
    if isinstance(upper, Until):
        require_columns("join.upper", left.schema, [upper.column])
        if not is_time(left.schema.field(upper.column).type):
            raise ValidationError("join.upper", f"expected a time, got {upper.column!r}")
        return Interval(lower=begin, upper=upper.column)
    end = None if upper is None else duration_ms("join.upper", upper)
    if begin is not None and end is not None and end < begin:
        raise ValidationError(
            "join.upper", f"expected at least join.lower, {lower!r}, got {upper!r}"
        )
    return Interval(lower=begin, upper=end)


def _sides(left: KeyedStream, right: KeyedStream) -> tuple[Side, Side]:
    kept = [name for name in left.of.schema.names if name not in left.names]
    taken = {*left.names, *kept}
    renamed = []
    for name in right.of.schema.names:
        if name not in right.names:
            new = f"{name}_right" if name in taken else name
            if new in taken:
                raise ValidationError("join", f"expected no column {new!r}: rename it with select")
            taken.add(new)
            renamed.append(new)
    return (
        Side(left.names, left.of.schema, kept),
        Side(right.names, right.of.schema, renamed),
    )


def _top_rule(of: Stream, n: int, by: str, *, ties: bool, ascending: bool) -> TopRule:
    if n < 1:
        raise ValidationError("top.n", f"expected at least 1, got {n!r}")
    _require_declared(of, "top")
    require_columns("top.by", of.schema, [by])
    return TopRule(n=n, by=by, ties=ties, ascending=ascending)


def _reading(of: Stream, aggregates: Mapping[str, Any]) -> Stream:
    columns = {
        each.field: _DEFAULTS.get(each.kind, pa.string())
        for each in aggregates.values()
        if isinstance(each, Aggregate) and each.field is not None
    }
    return _with_columns(of, columns)


def _bound(aggregates: Mapping[str, Any], keyed: KeyedStream) -> MergedAggregates:
    for name in aggregates:
        if name in keyed.names:
            raise ValidationError(f"agg.{name}", "expected another name than a column of the key")
    return MergedAggregates(aggregates, keyed.of.schema)


def _require_declared(of: Stream, step: str) -> None:
    if isinstance(of.node, StreamNode) and not of.node.is_declared:
        raise ValidationError(
            step,
            f"expected declared rows: stream({of.node.name!r}, 'user string, amount double')",
        )


def _with_columns(of: Stream, columns: Mapping[str, pa.DataType]) -> Stream:
    """Add columns that a step names to a source whose rows are not declared."""
    node = of.node
    if not isinstance(node, StreamNode) or node.is_declared:
        return of
    added = [pa.field(*each) for each in columns.items() if each[0] not in node.schema.names]
    return replace(of, node=replace(node, schema=pa.schema([*node.schema, *added])))


def _require_time(of: Stream, step: str) -> pa.DataType:
    if of.time_type is None:
        raise ValidationError(
            step,
            "expected rows with event times: a running aggregate, a running top, or an outer join until a column emits "
            "rows without",
        )
    return of.time_type
