"""The transactions of one shard of a stream, between two restores of its checkpoint.

    begin       freeze the times
    add         rows arrive, and are observed for the watermark
    finish      node after node, from the sources: an operator takes its rows, then closes what is due
                what the output node has is emitted

An operator that does not close all that is due in one transaction holds the watermark of those behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import msgspec
import numpy as np
import pyarrow as pa
import structlog

from broadsheet.consumer.keyed.committed_index import CommittedRowsView
from broadsheet.consumer.keyed.event_times import Times, event_ms_of
from broadsheet.consumer.keyed.operators.operator import KEY
from broadsheet.consumer.keyed.operators.plan import (
    OperatorNode,
    OperatorPlan,
    RowsNode,
    StreamNode,
)
from broadsheet.consumer.keyed.operators.stage_queries import AskedStage
from broadsheet.consumer.keyed.operators.stage_rows import (
    DUE_ROWS,
    StageRows,
    StoredRow,
    stored_row,
)
from broadsheet.consumer.keyed.operators.timed_rows import (
    NEVER_LATE,
    NO_TIME,
    TimedRows,
    joined,
    no_rows,
)
from broadsheet.consumer.keyed.operators.windows import StageTime
from broadsheet.consumer.keyed.queries import StoreQueries
from broadsheet.consumer.keyed.row_types import fits
from broadsheet.consumer.keyed.store import KeyedStore
from broadsheet.consumer.keyed.txn_time import (
    TIMES,
    Backlog,
    TimeMode,
    TimeState,
    begun,
    next_txn_after_ms,
    observe,
)
from broadsheet.consumer.keyed.watermark import WatermarkRules
from broadsheet.journals.message.uuid import UNIX_EPOCH_TICKS
from broadsheet.runtime.clock import Clock
from broadsheet.runtime.errors import ValidationError

_log = structlog.get_logger()
_PLAN: Final = b"plan"
_TYPES: Final = b"types"
_STAGES: Final = b"stages"
_FUTURE: Final = "future"
_TIME_MAX: Final = 1 << 60
"""Event times beyond are none: sums with lengths of time must fit into 64 bits."""
_CLOCK_BITS: Final = 4
_TICKS_PER_MS: Final = 10_000
_ROWS_PER_TABLE: Final = 16_384

Emit = Callable[[pa.Table], None]
"""Takes rows of output."""
SetApart = Callable[[pa.Table, str], None]
"""Takes rows that no window takes, and the reason."""


class _StageClock(msgspec.Struct):
    """The progress of an operator, by watermarks of the sources: epoch milliseconds."""

    tried: int = NEVER_LATE
    """Watermark that it last went by: what belongs before it is late."""
    done: int = NEVER_LATE
    """Watermark up to which all is closed."""


@dataclass(frozen=True, slots=True)
class RunSettings:
    """The settings of transactions."""

    journals: Sequence[str]
    """The shard's sources."""
    rules: WatermarkRules
    """Without a delay: each stream has its own."""
    has_side: bool
    clock: Clock
    due_rows: int = DUE_ROWS
    """Rows of an operator that one transaction closes, about."""


class StreamRun:
    """Runs transactions of a plan over a store that was restored."""

    def __init__(self, plan: OperatorPlan, store: KeyedStore, settings: RunSettings) -> None:
        """Check the plan against the state.

        Raises:
            ValidationError: the state is of another plan; or a journal is of no stream, or of several.
        """
        self._plan = plan
        self._store = store
        self._settings = settings
        self._stages = {
            node: (
                number,
                StageRows(
                    store, number, due_rows=settings.due_rows, behind_ms=plan.behind_ms[node]
                ),
            )
            for number, node in enumerate(plan.operators, 1)
        }
        for journal in settings.journals:
            self.source_of(journal)
        stored = store.meta(TIMES)
        self._times = (
            TimeState() if stored is None else msgspec.msgpack.decode(stored, type=TimeState)
        )
        clocks = store.meta(_STAGES)
        self._clocks = (
            {} if clocks is None else msgspec.msgpack.decode(clocks, type=dict[int, _StageClock])
        )
        self._check_plan()
        self._check_types()
        self._tables: dict[StreamNode, list[TimedRows]] = {}
        self.rows = self.input_bytes = 0
        """Of the running transaction."""
        self.next_due_ms: int | None = None
        """The earliest time at which a window ends, or before it, as of the last transaction."""
        self.apart_rows = 0
        """Rows that were set apart in this life."""

    def _check_plan(self) -> None:
        written = self._store.meta(_PLAN)
        wanted = self._plan.identities
        if written is None:
            self._store.put_meta(_PLAN, msgspec.msgpack.encode(wanted))
            return
        before = msgspec.msgpack.decode(written, type=list[str])
        for number, (old, new) in enumerate(zip(before, wanted, strict=False), 1):
            if old != new:
                raise ValidationError(
                    f"plan.{number}",
                    f"expected the operator of its state, {old!r}, got {new!r}; give another plan a shard of its own",
                )
        if len(before) != len(wanted):
            raise ValidationError(
                "plan",
                f"expected the {len(before)} operators of its state, got {len(wanted)}; give another plan a shard of "
                "its own",
            )

    def _check_types(self) -> None:
        """Refuse columns of other types than state has, which would be read as if they were those."""
        wanted = [dict(node.operator.state_types) for node in self._plan.operators]
        written = self._store.meta(_TYPES)
        before = (
            [] if written is None else msgspec.msgpack.decode(written, type=list[dict[str, str]])
        )
        for number, (old, new) in enumerate(zip(before, wanted, strict=False), 1):
            for name in old.keys() & new.keys():
                is_key = name.startswith(f"{KEY}.")
                if old[name] != new[name] and (is_key or not fits(old[name], new[name])):
                    raise ValidationError(
                        f"plan.{number}.{name}",
                        f"expected {old[name]}, as in its state, got {new[name]}; give another plan a shard of its own",
                    )
        if before != wanted:
            self._store.put_meta(_TYPES, msgspec.msgpack.encode(wanted))

    def source_of(self, journal: str) -> StreamNode:
        """Return the stream that a journal, or a partition of another source, is of.

        Raises:
            ValidationError: there is none.
        """
        sources = self._plan.sources
        if len(sources) == 1:
            return sources[0]
        matching = [
            each for each in sources if journal == each.name or journal.startswith(f"{each.name}/")
        ]
        if not matching:
            names = ", ".join(each.name for each in sources)
            raise ValidationError(
                "sources", f"expected journals of the streams {names}, got {journal!r}"
            )
        # The most special one: of `a` and `a/b`.
        return max(matching, key=lambda each: len(each.name))

    # -- a transaction

    def begin(self) -> None:
        """Begin a transaction: freeze its times."""
        now_ms = int(self._settings.clock.wall_seconds() * 1000)
        settings = self._settings
        self._times = begun(self._times, settings.rules, settings.journals, now_ms)
        self._tables = {}
        self.rows = self.input_bytes = 0

    def add(
        self,
        table: pa.Table,
        journal: str,
        clocks: np.ndarray[tuple[int], np.dtype[np.uint64]],
        set_apart: SetApart,
    ) -> None:
        """Add rows of a source.

        Args:
            table: With the columns of its stream.
            journal: The source.
            clocks: Of the rows' UUIDs, shape (rows,).
            set_apart: Takes rows that are too far in the future, if there is a side journal.
        """
        if not len(table):
            return
        source = self.source_of(journal)
        rows = TimedRows(table, times_of(table, source.time, clocks))
        if self._plan.mode is TimeMode.EVENT:
            rows = self._observed(rows, source, journal, set_apart)
        self._tables.setdefault(source, []).append(rows)
        self.rows += len(rows)
        self.input_bytes += table.nbytes

    def _observed(
        self, rows: TimedRows, source: StreamNode, journal: str, set_apart: SetApart
    ) -> TimedRows:
        """Note the latest event time; return the rows that are to be handled."""
        times = rows.times
        limit = self._times.batch_ms + self._settings.rules.max_future_ms
        is_future = times > limit
        moving = times[(times != NO_TIME) & ~is_future]
        latest = int(moving.max()) - source.delay_ms if len(moving) else None
        observe(self._times, journal, latest)
        # Without a side journal, a row of the future is handled: it only does not move the watermark.
        if not (self._settings.has_side and is_future.any()):
            return rows
        set_apart(rows.pick(is_future).table, _FUTURE)
        return rows.pick(~is_future)

    def finish(self, emit: Emit, set_apart: SetApart) -> None:
        """Take the rows through the plan; the changes are in the store then, to be committed.

        Args:
            emit: Takes the output, in order.
            set_apart: Takes rows that no operator takes.
        """
        made: dict[object, TimedRows] = {}
        marks: dict[object, int] = {}
        for node in self._plan.nodes:
            match node:
                case StreamNode():
                    made[node] = joined(self._tables.get(node, ()), node.schema)
                    marks[node] = self._watermark()
                case RowsNode():
                    (of,) = node.inputs
                    rows = made[of]
                    made[node] = node.apply(rows) if len(rows) else no_rows(node.schema)
                    marks[node] = marks[of]
                case OperatorNode():
                    inputs = [node.at(made[of], self._times.batch_ms) for of in node.inputs]
                    mark = min(marks[of] for of in node.inputs)
                    made[node], marks[node] = self._process(node, inputs, mark, set_apart)
        self._tables = {}
        output = made[self._plan.output].table
        for begin in range(0, len(output), _ROWS_PER_TABLE):
            emit(output.slice(begin, _ROWS_PER_TABLE))
        if self._plan.mode is not TimeMode.NONE or self._stages:
            self._store.put_meta(TIMES, msgspec.msgpack.encode(self._times))
            self._store.put_meta(_STAGES, msgspec.msgpack.encode(self._clocks))

    def _process(
        self,
        node: OperatorNode,
        inputs: Sequence[TimedRows],
        watermark: int,
        set_apart: SetApart,
    ) -> tuple[TimedRows, int]:
        """Return what an operator emits, and the watermark of what is behind it."""
        number, state = self._stages[node]
        clock = self._clocks.setdefault(number, _StageClock())
        watermark = max(watermark, clock.tried)
        late = clock.tried
        if node.time == "processing":
            # Rows of the same millisecond come in several transactions.
            late = min(late, self._times.batch_ms - 1)
        behind = self._plan.behind_ms[node]
        at = StageTime(late - behind, watermark - behind)
        if node.time == "none":
            # Nothing is late for it; to those behind it the watermark goes on.
            at = StageTime(NEVER_LATE, NEVER_LATE)
        done = node.operator.process(inputs, state, at)
        clock.tried = watermark
        if not done.has_more:
            clock.done = watermark
        for table, reason in done.apart:
            self._count(len(table), reason, number)
            set_apart(table, reason)
        return done.rows, clock.done

    def _watermark(self) -> int:
        match self._plan.mode:
            case TimeMode.PROCESSING:
                return self._times.batch_ms
            case TimeMode.EVENT if self._times.watermark_ms:
                return self._times.watermark_ms
            case _:
                # 0 is what sources make before all of them had rows.
                return NEVER_LATE

    def next_txn_after(self) -> float | None:
        """Return after how many seconds a transaction is due though no row comes; None: only with rows."""
        mode = self._plan.mode
        next_due = None if mode is TimeMode.NONE else self._store.first_filed_ms()
        self.next_due_ms = next_due
        if mode is TimeMode.EVENT and not self._times.watermark_ms:
            next_due = None
        now_ms = int(self._settings.clock.wall_seconds() * 1000)
        after = next_txn_after_ms(
            self._times, mode, self._settings.rules, Backlog(next_due, has_expired=False), now_ms
        )
        return None if after is None else after / 1000

    def _count(self, rows: int, reason: str, number: int) -> None:
        before, self.apart_rows = self.apart_rows, self.apart_rows + rows
        # Each time that there are twice as many, so that a source which is always late does not fill the log.
        if self.apart_rows.bit_length() > before.bit_length():
            _log.warning(
                "stream.rows_set_apart",
                rows=self.apart_rows,
                reason=reason,
                operator=number,
                kept=self._settings.has_side,
            )

    # -- queries

    @property
    def watermark_ms(self) -> int:
        """The watermark of the last transaction, Unix milliseconds."""
        return self._times.watermark_ms

    @cached_property
    def queries(self) -> StoreQueries:
        """Answers about keys, on any thread."""
        tables = {
            name: AskedStage(
                name,
                node.operator,
                self._stages[node][1].variable,
                behind_ms=self._plan.behind_ms[node],
            )
            for name, node, _ in self._shown()
        }
        return StoreQueries(self._store, tables, self._plan.mode)

    def tables(self) -> Mapping[str, pa.Schema]:
        """Return the tables of what operators have open, by name."""
        return {name: schema for name, _, schema in self._shown()}

    def open_rows(
        self, view: CommittedRowsView, name: str, rows_per_batch: int
    ) -> Iterator[pa.Table]:
        """Yield what an operator has open as of a commit."""
        node, state = next(
            (node, self._stages[node][1]) for each, node, _ in self._shown() if each == name
        )
        part: list[StoredRow] = []
        for content in view.rows():
            row = stored_row(*content, state.variable)
            if row is not None:
                part.append(row)
            if len(part) >= rows_per_batch:
                yield _shown(node, part)
                part = []
        if part:
            yield _shown(node, part)

    def _shown(self) -> list[tuple[str, OperatorNode, pa.Schema]]:
        return [
            (f"operator_{number}", node, node.operator.shown_schema)
            for node, (number, _) in self._stages.items()
            if node.operator.shown_schema is not None
        ]


def _shown(node: OperatorNode, rows: Sequence[StoredRow]) -> pa.Table:
    table = node.operator.shown(rows)
    assert table is not None, "it has a schema"
    return table


def times_of(
    table: pa.Table, column: str | None, clocks: np.ndarray[tuple[int], np.dtype[np.uint64]]
) -> Times:
    """Return the event time of each row, epoch milliseconds; `NO_TIME` where there is none.

    Args:
        table: The rows.
        column: Of event times; None: rows have the time of their publication.
        clocks: Of the rows' UUIDs; 0: of none.
    """
    if column is not None:
        times, is_null = event_ms_of(table.column(column))
        is_none = is_null | (times > _TIME_MAX) | (times < -_TIME_MAX)
    else:
        ticks = (clocks >> np.uint64(_CLOCK_BITS)).astype(np.int64)
        times = (ticks - UNIX_EPOCH_TICKS) // _TICKS_PER_MS
        is_none = clocks == 0
    return np.where(is_none, NO_TIME, times)
