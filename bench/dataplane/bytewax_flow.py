"""The count and sum as a Bytewax dataflow: `python bytewax_flow.py rows.json recovery_directory`, in Bytewax's venv.

Prints the seconds and CPU seconds of the run, and the last sums of each key.
"""

import json
import sys
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

import bytewax.operators as op  # type: ignore[import-not-found]
import orjson
from bytewax.connectors.files import FileSource  # type: ignore[import-not-found]
from bytewax.dataflow import Dataflow  # type: ignore[import-not-found]
from bytewax.outputs import DynamicSink, StatelessSinkPartition  # type: ignore[import-not-found]
from bytewax.recovery import RecoveryConfig  # type: ignore[import-not-found]
from bytewax.run import cli_main  # type: ignore[import-not-found]

SNAPSHOTS = timedelta(seconds=10)
"""Bytewax's own default."""
LATEST: dict[str, list[int]] = {}


def row_of(line: str) -> tuple[str, int] | None:
    """Return key and value; None of an acknowledgement."""
    found = orjson.loads(line)
    return (found["k"], found["v"]) if "k" in found else None


def add(state: list[int] | None, value: int) -> tuple[list[int], list[int]]:
    """Count a row."""
    state = state or [0, 0]
    state[0] += 1
    state[1] += value
    return state, state


class _Latest(StatelessSinkPartition):  # type: ignore[misc]
    def write_batch(self, items: list[Any]) -> None:
        LATEST.update(items)


class _LatestSink(DynamicSink):  # type: ignore[misc]
    def build(self, step_id: str, worker_index: int, worker_count: int) -> _Latest:
        del step_id, worker_index, worker_count
        return _Latest()


def main() -> None:
    """Run the flow over a file."""
    flow = Dataflow("sums")
    lines = op.input("lines", flow, FileSource(Path(sys.argv[1]), batch_size=1000))
    rows = op.filter_map("decode", lines, row_of)
    op.output("latest", op.stateful_map("sums", rows, add), _LatestSink())
    began, cpu_began = time.perf_counter(), time.process_time()
    recovery = RecoveryConfig(sys.argv[2], timedelta(0))
    cli_main(flow, workers_per_process=1, epoch_interval=SNAPSHOTS, recovery_config=recovery)
    seconds, cpu_seconds = time.perf_counter() - began, time.process_time() - cpu_began
    sys.stdout.write(json.dumps({"seconds": seconds, "cpu_seconds": cpu_seconds, "sums": LATEST}))


if __name__ == "__main__":
    main()
