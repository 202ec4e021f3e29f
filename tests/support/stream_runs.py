"""Operators without a member: one over a state in memory with watermarks as given, and lives of a whole plan."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from broadsheet.consumer.application import Shard
from broadsheet.consumer.keyed.event_times import event_ms_of
from broadsheet.consumer.keyed.operators.builder import Stream
from broadsheet.consumer.keyed.operators.operator import Operator
from broadsheet.consumer.keyed.operators.plan import OperatorNode, OperatorPlan
from broadsheet.consumer.keyed.operators.run import RunSettings, StreamRun
from broadsheet.consumer.keyed.operators.stage_rows import DUE_ROWS, StageRows
from broadsheet.consumer.keyed.operators.timed_rows import NEVER_LATE, TimedRows
from broadsheet.consumer.keyed.operators.windows import StageTime
from broadsheet.consumer.keyed.store import IndexKind, KeyedStore
from broadsheet.consumer.keyed.watermark import WatermarkRules
from broadsheet.testing.stores.recorded_log import MirroredFiles, RecordedLog
from broadsheet.testing.stores.subject import (
    FixedShard,
    RecordedSubject,
    offset_of,
    reading,
    wait,
)
from tests.support.keyed_runs import SteppedClock

Rows = list[dict[str, Any]]


class StoreLives:
    """The store of one shard, whose state is in a log in memory, through its lives."""

    def __init__(self, directory: Path, *, index: IndexKind = "memory", **store: Any) -> None:
        def new_store(shard: Shard) -> KeyedStore:
            return KeyedStore(shard, index=index, **store)

        def nothing(*_: Any) -> dict[str, int]:
            return {}

        self._subject = RecordedSubject(
            directory, new_store=new_store, put=lambda *_: None, committed=nothing
        )
        self._shard = FixedShard()
        self._store: Any = None
        self.commits = 0
        self.reopen()

    @property
    def store(self) -> KeyedStore:
        """Of the present life."""
        store: KeyedStore = self._store
        return store

    @property
    def log(self) -> RecordedLog:
        """The recovery log."""
        return self._subject.log_of(self._shard)

    def reopen(self) -> None:
        """Die, and live on from what the log replays to."""
        self.end()
        self._store = self._subject.open(self._shard)
        self.restore()

    def reopen_at(self, files: MirroredFiles) -> None:
        """Live on from where the log is cut off."""
        self.end()
        self._store = self._subject.open_log(self._shard, RecordedLog(files=files.copy()))
        self.restore()

    def restore(self) -> None:
        """Give the running transaction up."""
        self.commits = offset_of(self._store.restore_checkpoint(self._shard))

    def commit(self) -> None:
        """Commit the running transaction."""
        self.commits += 1
        wait(self._store.start_commit(self._shard, reading(self.commits), ()))

    def end(self) -> None:
        """Destroy the store."""
        if self._store is not None:
            self._store.destroy()
            self._store = None


class OperatorLife:
    """One operator of a stream, driven by watermarks as they are given."""

    def __init__(self, lives: StoreLives, of: Stream) -> None:
        node = of.node
        assert isinstance(node, OperatorNode)
        self._node = node
        self._lives = lives
        self._late = NEVER_LATE
        self.late: Rows = []

    @property
    def operator(self) -> Operator:
        """The operator."""
        return self._node.operator

    def step(self, *inputs: pa.Table, times: str = "t", watermark: int | None = None) -> Rows:
        """Run a transaction with rows, a watermark, or both; return what is emitted."""
        tables = inputs or tuple(each.schema.empty_table() for each in self._node.inputs)
        timed = [TimedRows(table, event_ms_of(table.column(times))[0]) for table in tables]
        mark = self._late if watermark is None else watermark
        state = StageRows(self._lives.store, 1)
        out: Rows = []
        done = self.operator.process(timed, state, StageTime(self._late, mark))
        out += done.rows.table.to_pylist()
        self.late = [row for table, _ in done.apart for row in table.to_pylist()]
        self._lives.commit()
        while done.has_more:
            done = self.operator.process(
                [each.pick(np.zeros(0, np.int64)) for each in timed], state, StageTime(mark, mark)
            )
            out += done.rows.table.to_pylist()
            self._lives.commit()
        self._late = mark
        return out


class PlanLives:
    """One shard of a stream through its lives, with a clock that stands still."""

    def __init__(
        self,
        lives: StoreLives,
        of: Stream,
        *,
        journals: Sequence[str],
        due_rows: int = DUE_ROWS,
        **rules: Any,
    ) -> None:
        self.clock = SteppedClock()
        self._lives = lives
        self._plan = OperatorPlan(of.node)
        self._settings = RunSettings(
            journals=journals,
            rules=WatermarkRules(**rules),
            has_side=True,
            clock=self.clock,
            due_rows=due_rows,
        )
        self.apart: list[tuple[str, Rows]] = []
        self.run: StreamRun
        self.restore()

    def restore(self) -> None:
        """Begin the plan over what the store has."""
        self.run = StreamRun(self._plan, self._lives.store, self._settings)

    def transact(self, rows: dict[str, Rows] | None = None, *, commits: bool = True) -> Rows:
        """Run a transaction with rows by journal; return its output."""
        out: Rows = []
        self.run.begin()
        for journal, of in (rows or {}).items():
            schema = self.run.source_of(journal).schema
            table = pa.Table.from_pylist(of, schema)
            clocks = np.zeros(len(table), np.uint64)
            self.run.add(table, journal, clocks, self._set_apart)
        self.run.finish(lambda table: out.extend(table.to_pylist()), self._set_apart)
        if commits:
            self._lives.commit()
        return out

    def drain(self) -> Rows:
        """Run the transactions that are due without rows."""
        out: Rows = []
        while self.run.next_txn_after() == 0:
            out += self.transact()
        return out

    def _set_apart(self, table: pa.Table, reason: str) -> None:
        self.apart.append((reason, table.to_pylist()))
