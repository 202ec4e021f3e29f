"""A query as a shard drives it: transactions of rows of columns, committed to a store in RocksDB.

The recorder takes what the store ships and drops it; what is measured is the query, its state, and its commits. Rows
are columns already, as Flink's source makes its rows inside of itself.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa

from bench.nexmark.generator import Events
from bench.stores.driven import DroppingRecorder
from broadsheet.consumer.keyed.operators.plan import OperatorPlan
from broadsheet.consumer.keyed.operators.run import RunSettings, StreamRun
from broadsheet.consumer.keyed.store import KeyedStore
from broadsheet.consumer.keyed.watermark import WatermarkRules
from broadsheet.consumer.recoverylog.local_state import LocalState
from broadsheet.keyed import Stream
from broadsheet.runtime.clock import SystemClock
from broadsheet.testing.stores.subject import FixedShard, reading, wait

_FOREVER: Final = 1 << 62


class Timing:
    """Seconds that a query took."""

    def __init__(self) -> None:
        self.wall = 0.0
        self.cpu = 0.0
        self.rows_out = 0


def run_query(
    query: Stream, runs: Sequence[Events], directory: Path, *, output: list[pa.Table] | None = None
) -> Timing:
    """Run a query over runs of events, a transaction each.

    Args:
        query: The query.
        runs: In order.
        directory: Empty; for the store.
        output: Gets what is emitted.
    """
    shard = FixedShard(local_state=LocalState(directory, recorder=DroppingRecorder()))
    store = KeyedStore(shard)
    store.restore_checkpoint(shard)
    plan = OperatorPlan(query.node)
    names = [source.name for source in plan.sources]
    rules = WatermarkRules(max_future_ms=_FOREVER)
    run = StreamRun(
        plan, store, RunSettings(journals=names, rules=rules, has_side=False, clock=SystemClock())
    )
    timing = Timing()

    def emit(rows: pa.Table) -> None:
        timing.rows_out += len(rows)
        if output is not None:
            output.append(rows)

    def transact(of: Events | None, number: int) -> None:
        run.begin()
        for source in plan.sources if of is not None else ():
            rows = getattr(of, source.name)
            run.add(rows, source.name, np.zeros(len(rows), np.uint64), lambda *_: None)
        run.finish(emit, lambda *_: None)
        wait(store.start_commit(shard, reading(number), ()))

    try:
        wall, cpu = time.perf_counter(), time.process_time()
        number = 0
        for each in runs:
            number += 1
            transact(each, number)
        # What time alone makes due; not the end of windows of the clock.
        while run.next_txn_after() == 0:
            number += 1
            transact(None, number)
        timing.wall, timing.cpu = time.perf_counter() - wall, time.process_time() - cpu
    finally:
        store.destroy()
    return timing
