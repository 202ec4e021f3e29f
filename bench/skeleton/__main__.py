"""The first honest figures: `make bench BENCH=skeleton`.

Each figure runs beside a limit in the same run, in turn with it: the bare machinery below, which no implementation on
these libraries can beat.
"""

from __future__ import annotations

from bench.skeleton import etcd, journals, shards

BENCH = "skeleton"


def main() -> None:
    """Run every part."""
    etcd.run(BENCH)
    journals.run(BENCH)
    shards.run(BENCH)


if __name__ == "__main__":
    main()
