"""Recovery logs: playing them, standing by, and what recording costs: `make bench BENCH=recovery`.

playback_mb_per_s, broker_read_mb_per_s    bytes of the log, in turn; `playback_ratio` of the two is what to hold
standby_lag_p99_ms                         from a commit to its being played elsewhere, under a full-speed primary
checkpoint_bytes_per_txn                   that the store writes, by the number of producers that have been silent
recording_cost_ratio                       by how much longer transactions take than those of the bare store
"""

from __future__ import annotations

import sys

from bench.recovery import checkpoints, cost, playing, standby
from bench.report import keep_logs_apart
from broadsheet.runtime.interpreter import serve_only

BENCH = "recovery"
STATE_MB = 100


def main(arguments: list[str]) -> None:
    """Measure everything, or the parts named: checkpoints, playing, standby, cost. A number is another size of the
    state, MB.
    """
    serve_only()  # As a member does.
    keep_logs_apart()
    state_mb = next((int(each) for each in arguments if each.isdigit()), STATE_MB)
    parts = {
        "checkpoints": lambda: checkpoints.run(BENCH),
        "playing": lambda: playing.run(BENCH, state_mb),
        "standby": lambda: standby.run(BENCH),
        "cost": lambda: cost.run(BENCH),
    }
    named = [each for each in arguments if not each.isdigit()]
    for name in named or parts:
        parts[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
