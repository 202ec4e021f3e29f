"""Count and sum by key, beside Spark's own: `make bench BENCH=vs_structured_streaming`.

    broadsheet                     two members on the executors of a standalone Spark; see `broadsheet.py`
    structured_streaming           groupBy().agg() on the same, its state in RocksDB, Kafka to Kafka; see `spark.py`
    transform_with_state           the same by a StatefulProcessor in Python, row by row
    transform_with_state_pandas    the same with rows in pandas frames
    real_time                      groupBy().agg() in real-time mode, whose results are seen before they are committed
    real_time_1ms                  the same, with the shuffle's network buffers sent after 1 ms
    kafka_streams                  two instances, exactly once, a commit every 5 ms; see `kafka_streams.py`

All get the same rows (`rows.py`) and the same warm-up, run in turn, each alone on the machine, and end with a check
that every row was counted once. Names of systems as arguments measure only those, e.g.
`python -m bench.vs_structured_streaming --rounds 1 broadsheet kafka_streams`. A peer that fails, or does not show all
rows in time, is left out of that round with a line on standard error; a failure of ours ends the benchmark.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from bench.report import emit, keep_logs_apart
from bench.vs_structured_streaming import broadsheet, kafka_streams, spark
from bench.vs_structured_streaming.kafka import why_left_out
from bench.vs_structured_streaming.results import ROWS, Measured
from bench.vs_structured_streaming.rows import KEYS, Chunk, make_chunks
from broadsheet.runtime.interpreter import serve_only

BENCH = "vs_structured_streaming"
ROUNDS = 2
CAUSE_CHARACTERS_MAX = 300
PERCENTS = (50, 99)
SYSTEMS: dict[str, Callable[[Sequence[Chunk]], Measured]] = {
    broadsheet.SYSTEM: broadsheet.measure,
    **{system: partial(spark.measure, system) for system in spark.SYSTEMS},
    kafka_streams.SYSTEM: kafka_streams.measure,
}


_LIKE = {(kafka_streams.SYSTEM, "executor"): "instance"}
"""What is killed of a system beside a kill of ours that it has not: a process with all its threads."""


def main() -> None:
    """Measure the systems that are named, or all."""
    keep_logs_apart()
    options = _parser().parse_args()
    named = options.systems or list(SYSTEMS)
    unknown = set(named) - SYSTEMS.keys()
    if unknown:
        _parser().error(f"no system {', '.join(sorted(unknown))}: choose of {', '.join(SYSTEMS)}")
    reason = why_left_out() if set(named) - {broadsheet.SYSTEM} else None
    if reason is not None:
        sys.stderr.write(
            f"only {broadsheet.SYSTEM} is measured, for Kafka cannot be run: {reason}\n"
        )
        named = [system for system in named if system == broadsheet.SYSTEM]
    chunks = make_chunks(ROWS)
    # What sends the rows and times the results must not hold either up: neither to look for cycles, nor for 5 ms
    # because another of its threads has the interpreter.
    serve_only()
    measured = {system: Measured() for system in named}
    for number in range(options.rounds):
        for system, found in measured.items():
            _measure(system, chunks, found)
            if number == options.rounds - 1 and found.rows_per_second:
                _emit_one(system, found)
    if broadsheet.SYSTEM in measured:
        _emit_ratios({system: found for system, found in measured.items() if found.rows_per_second})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench.vs_structured_streaming")
    parser.add_argument("systems", nargs="*", metavar="SYSTEM")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    return parser


def _measure(system: str, chunks: Sequence[Chunk], found: Measured) -> None:
    """Measure a system once. A row that ours does not show is a defect; one that a peer does not show is its figure."""
    try:
        found.add(SYSTEMS[system](chunks))
    except (OSError, RuntimeError, AssertionError) as error:
        if system == broadsheet.SYSTEM:
            raise
        cause = " ".join(str(error).split())[:CAUSE_CHARACTERS_MAX]
        sys.stderr.write(f"{system} is left out of a round: {type(error).__name__}: {cause}\n")


def _emit_one(system: str, found: Measured) -> None:
    emit(
        BENCH,
        "rows_per_s",
        statistics.median(found.rows_per_second),
        "1/s",
        system=system,
        rows=ROWS,
        keys=KEYS,
        loads=len(found.rows_per_second),
    )
    for rate, latencies in found.latencies.items():
        for percent in PERCENTS:
            emit(
                BENCH,
                f"latency_p{percent}_ms",
                _percentile(latencies.seconds, percent) * 1000.0,
                "ms",
                system=system,
                rows=len(latencies.seconds),
                rows_per_s=rate,
                **latencies.longest.params(),
            )
    for kill, seconds in found.recoveries_seconds.items():
        params = {"system": system, "kill": kill}
        emit(BENCH, "recovery_s", statistics.median(seconds), "s", kills=len(seconds), **params)
        emit(BENCH, "recovery_max_s", max(seconds), "s", kills=len(seconds), **params)


def _emit_ratios(measured: Mapping[str, Measured]) -> None:
    """Print how Broadsheet stands to each of the others: kills of the same kind beside each other."""
    ours = measured[broadsheet.SYSTEM]
    for system, theirs in measured.items():
        if system == broadsheet.SYSTEM:
            continue
        rates = [statistics.median(side.rows_per_second) for side in (ours, theirs)]
        _emit_ratio("rows_per_s_ratio", rates, against=system)
        for rate in ours.latencies:
            for percent in PERCENTS:
                pair = [
                    _percentile(side.latencies[rate].seconds, percent) for side in (ours, theirs)
                ]
                _emit_ratio(f"latency_p{percent}_ratio", pair, against=system, rows_per_s=rate)
        for kill, seconds in ours.recoveries_seconds.items():
            their_kill = kill if kill in theirs.recoveries_seconds else _LIKE.get((system, kill))
            if their_kill is not None:
                bound = statistics.median(theirs.recoveries_seconds[their_kill])
                pair = [statistics.median(seconds), bound]
                params = {"against": system, "kill": kill, "their_kill": their_kill}
                _emit_ratio("recovery_ratio", pair, **params)


def _emit_ratio(figure: str, pair: Sequence[float], **params: str | float) -> None:
    emit(BENCH, figure, pair[0] / pair[1], "ratio", **params)


def _percentile(values: Sequence[float], percent: int) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, len(ordered) * percent // 100)]


if __name__ == "__main__":
    main()
