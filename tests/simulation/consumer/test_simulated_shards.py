"""Shards under faults: the real runtime over a broker, an etcd and stores in memory, on virtual time.

A few seeds run always; `make test-sim` runs two thousand.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from broadsheet.testing.allocator.kernel.command import run_seed
from broadsheet.testing.shards.run import shards, simulate
from broadsheet.testing.shards.scenario import ShardFault, ShardScenario

# Many runs a test: on a busy machine they take their time.
pytestmark = pytest.mark.timeout(900)

ONE_CRASH = ShardScenario(
    faults={ShardFault.CRASH: 1.0},
    steps=(1, 1),
    pause_seconds=(0.6, 0.6),
    write_seconds=(0.02, 0.05),
    max_txn_milliseconds=(50, 100),
    lease_seconds=(0.5, 0.5),
)


@pytest.mark.parametrize("seed", range(60))
def test_shard_is_exactly_once_under_faults(seed: int) -> None:
    """S0 to S4 hold at every append, every commit and in the end, whatever the seed brings."""
    outcome = run_seed(seed, shards())

    assert outcome.ok, outcome.text


@pytest.mark.parametrize("recorded", [0.0, 1.0], ids=["table", "log"])
@pytest.mark.parametrize("seed", [1, 2])
def test_shard_without_faults_reflects_every_input(seed: int, recorded: float) -> None:
    """Nothing happens but input: one restore, or a second for the last primary, and every input is reflected."""
    report = simulate(seed, ShardScenario(recorded=recorded, faults={ShardFault.SPEC_CHANGED: 1.0}))

    assert report.ok, str(report)
    assert report.inputs > 10
    assert report.restores == 2


def crash_after(steps: int, *, recorded: bool) -> ShardScenario:
    """Return runs in which the primary dies after so many steps of its tasks."""
    return replace(ONE_CRASH, process_steps=(steps, steps), recorded=float(recorded))


@pytest.mark.parametrize("recorded", [False, True], ids=["table", "log"])
def test_shard_survives_a_crash_at_every_step_of_a_transaction(recorded: bool) -> None:
    """The same course again and again, and the primary dies one step of its tasks later each time: before, in and after
    whatever it awaits.
    """
    for steps in range(0, 160, 4):
        report = simulate(5, crash_after(steps, recorded=recorded))

        assert report.ok, f"after {steps} steps: {report}"
        assert report.restores >= 2, f"after {steps} steps: nobody took over"
