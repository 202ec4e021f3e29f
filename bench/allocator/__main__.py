"""The allocator's figures, each beside its bound: `make bench BENCH=allocator`.

Names of rows may be given to run those alone: `python -m bench.allocator solver`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from bench.allocator import loop, rolling, solver

BENCH = "allocator"

ROWS: dict[str, Callable[[str], None]] = {
    "outcomes": solver.run_outcomes,
    "rolling": rolling.run,
    "solver": solver.run,
    "loop": loop.run,
}


def main() -> None:
    """Run the rows named, or all."""
    for name in sys.argv[1:] or ROWS:
        ROWS[name](BENCH)


if __name__ == "__main__":
    main()
