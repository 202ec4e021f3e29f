"""Keyed state: `make bench BENCH=keyed`, or parts, e.g. `python -m bench.keyed log storm`.

    rows       rows a second, and processor time a row, of a total by key, over 1,000 and 100,000 keys; the same by
               Spark's transformWithState
    latency    of rows at 1,000 a second over 50,000 keys: one read and one update of state a row, answers committed;
               the same by Spark, in micro-batches; and of look-ups of keys by KeyedService meanwhile
    keys       ten million keys with a TTL in one shard: rows a second, memory and disk of primary and standby; then
               the primary is killed, and timed is from the kill to the first committed answer of the standby
    storm      a million timers that are due at once: until the last has fired, and the latency of another shard's rows
               on the same member meanwhile
    log        bytes of the recovery log for each changed byte of state

Members, broker, etcd and what publishes share the machine: figures of processor time stand beside those of wall time.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping

from bench.keyed import log, parts
from bench.report import keep_logs_apart
from broadsheet.runtime.interpreter import serve_only

PARTS: Mapping[str, Callable[[parts.Plan], None]] = {
    "rows": parts.rows,
    "latency": parts.latency,
    "keys": parts.keys,
    "storm": parts.storm,
    "log": lambda _: log.run(),
}


def main() -> None:
    """Measure the parts that are named, or all."""
    parser = argparse.ArgumentParser(prog="python -m bench.keyed", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; all if none is named")
    parser.add_argument("--rows", type=int, default=3_000_000, help="of `rows`")
    parser.add_argument("--keys", type=int, default=10_000_000, help="of `keys`")
    parser.add_argument("--timers", type=int, default=1_000_000, help="of `storm`")
    parser.add_argument("--trials", type=int, default=3, help="fail-overs of `keys`")
    parser.add_argument("--seconds", type=float, default=20.0, help="of `latency`")
    options = parser.parse_args()
    unknown = set(options.parts) - PARTS.keys()
    if unknown:
        parser.error(f"no part {', '.join(sorted(unknown))}: choose of {', '.join(PARTS)}")
    keep_logs_apart()
    # What publishes and times must not stop to look for cycles.
    serve_only()
    plan = parts.Plan(options.rows, options.keys, options.timers, options.trials, options.seconds)
    for part in options.parts or PARTS:
        PARTS[part](plan)


if __name__ == "__main__":
    main()
