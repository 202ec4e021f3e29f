"""Recovery logs: playing them, standing by, and what recording costs: `make bench BENCH=recovery`.

playback_mb_per_s, broker_read_mb_per_s    bytes of the log, in turn; `playback_ratio` of the two is what to hold
standby_lag_p99_ms                         from a commit to its being played elsewhere, under a full-speed primary
recording_cost_ratio                       by how much longer transactions take than those of the bare store
"""

from __future__ import annotations

import sys

from bench.recovery import cost, playing, standby
from bench.report import keep_logs_apart
from consumer.interpreter import serve_only

BENCH = "recovery"
STATE_MB = 100


def main() -> None:
    """Measure everything; an argument is another size of the state, MB."""
    serve_only()  # As a member does.
    keep_logs_apart()
    playing.run(BENCH, int(sys.argv[1]) if len(sys.argv) > 1 else STATE_MB)
    standby.run(BENCH)
    cost.run(BENCH)


if __name__ == "__main__":
    main()
