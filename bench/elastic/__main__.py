"""Elastic shards and sinks: `make bench BENCH=elastic`, or parts, e.g. `python -m bench.elastic split tables`.

    split      a keyed shard that has --keys keys is split while rows come: `split_pause_p50_s` and
               `split_pause_max_s` are of the longest waits of a row, one of each trial, from when it was due to its
               committed answer; `split_calm_max_s` is the same before the split, `split_s` from its call until the
               new shard serves. `split_switch_p50_s` and `split_switch_max_s` are of the rows that were due within half
               a second of the new shard's first answer
    merge      the two shards of such a split are merged again while rows come: `merge_pause_p50_s`,
               `merge_pause_max_s`, `merge_switch_p50_s` and so on, likewise
    speedup    a keyed shard that has --keys keys works off --rows rows, and again once it is split in two, each half on
               a member of its own: `split_speedup` is the ratio of rows a second, of rows that only read and write
               state, and of a quarter as many rows with --row-work-us of CPU each. Broker and publisher take
               a part of the same processors
    tables     the relays into Delta and Iceberg, on the local disk: `table_rows_per_s` of rows that wait in a journal;
               `table_freshness_p50_s` from when a row is published until a reader of the table has it
    kafka      the relay into a real Kafka (KRaft, one broker): `kafka_sink_rows_per_s` of rows that wait in a journal;
               `kafka_latency_p50_ms` and `kafka_latency_p99_ms` from when a row was due until it is read committed
    topics     a topic of that Kafka is carried into another, by our relay and by Kafka Streams (`exactly_once_v2`, a
               commit every 5 ms), in two processes each: `kafka_latency_p50_ms` and `kafka_latency_p99_ms` from when a
               row was due until it is read committed; `kafka_failover_s`, the longest wait of a row when a process is
               killed (kill -9) at 100 rows a second, the median of --trials kills; of Kafka Streams with its default
               settings, one kill, and with those that end sessions and transactions soonest
    drivers    two Spark applications serve one cluster; the driver of one, which has primaries, is killed (kill -9):
               `driver_kill_p50_s` and `driver_kill_max_s` from then until all of its shards answer elsewhere, and have
               committed a row that was published after the kill; one figure of each trial, the last shard's

Members, broker, etcd, Kafka and what publishes and reads share the machine; `load` is its load average at the begin.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping

from bench.elastic import drivers, kafka, splits, tables, topics
from bench.elastic.plan import Plan
from bench.report import keep_logs_apart
from broadsheet.runtime.interpreter import serve_only

PARTS: Mapping[str, Callable[[Plan], None]] = {
    "split": splits.measure,
    "merge": splits.measure_merges,
    "speedup": splits.measure_speedup,
    "tables": tables.measure,
    "kafka": kafka.measure,
    "topics": topics.measure,
    "drivers": drivers.measure,
}


def main() -> None:
    """Measure the parts that are named, or all."""
    parser = argparse.ArgumentParser(prog="python -m bench.elastic", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all if none is named")
    parser.add_argument("--keys", type=int, default=1_000_000, help="of shards that are split")
    parser.add_argument(
        "--row-bytes",
        type=int,
        default=0,
        help="bytes of each key of `split` and `merge`, of which one half is random and the other repeats it",
    )
    parser.add_argument(
        "--row-work-us", type=int, default=100, help="CPU of each row of `speedup`, microseconds"
    )
    parser.add_argument(
        "--trials", type=int, default=5, help="of splits, merges, `topics` and `drivers`"
    )
    parser.add_argument("--rows", type=int, default=1_000_000, help="that wait")
    parser.add_argument("--seconds", type=float, default=20.0, help="of rows that trickle in")
    options = parser.parse_args()
    unknown = set(options.parts) - PARTS.keys()
    if unknown:
        parser.error(f"no part {', '.join(sorted(unknown))}: choose of {', '.join(PARTS)}")
    keep_logs_apart()
    # What publishes and times must not stop to look for cycles.
    serve_only()
    load = round(os.getloadavg()[0], 1)
    plan = Plan(
        keys=options.keys,
        row_bytes=options.row_bytes,
        row_work_us=options.row_work_us,
        trials=options.trials,
        rows=options.rows,
        seconds=options.seconds,
        load=load,
    )
    for part in options.parts or PARTS:
        PARTS[part](plan)


if __name__ == "__main__":
    main()
