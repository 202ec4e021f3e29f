"""DataFrames in and out of journals and shards: `make bench BENCH=spark`, or `python -m bench.spark source sink`.

Each part has a module with `run(bench)`. A comparison runs both sides in one session, in turn.
"""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec

from bench.report import keep_logs_apart

BENCH = "spark"
PARTS = ("source", "sink", "tables", "lookups")


def main() -> None:
    """Run the parts that the command names, all if it names none."""
    keep_logs_apart()
    wanted = sys.argv[1:] or PARTS
    for part in wanted:
        module = f"bench.spark.{part}"
        if find_spec(module) is not None:
            import_module(module).run(BENCH)


if __name__ == "__main__":
    main()
