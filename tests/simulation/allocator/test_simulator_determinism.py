"""One seed, one run: what fails must fail again, on another machine too."""

from __future__ import annotations

import os
import random
import subprocess
import sys

from broadsheet.testing.allocator import ClusterScenario, simulate

SEEDS = (3, 4, 5, 6)
_PRINT_HASHES = f"""
from broadsheet.testing.allocator import simulate
print(*(simulate(seed).trace_hash for seed in {SEEDS}))
"""


def _hashes_in_a_fresh_process(hash_seed: int) -> list[str]:
    ran = subprocess.run(
        [sys.executable, "-c", _PRINT_HASHES],
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        capture_output=True,
        text=True,
        check=True,
    )
    return ran.stdout.split()


def test_simulation_of_a_seed_is_the_same_in_every_process() -> None:
    """Neither the order of sets nor the address of an object nor the time of day shows in what happens."""
    first = _hashes_in_a_fresh_process(1)

    assert len(set(first)) == len(SEEDS)
    assert _hashes_in_a_fresh_process(4711) == first


def test_simulation_is_not_disturbed_by_the_one_before() -> None:
    """Seeds may run in any order and in one process."""
    alone = simulate(7).trace_hash

    simulate(8)

    assert simulate(7).trace_hash == alone


def test_simulation_leaves_the_process_as_it_was() -> None:
    """A library call must not reseed its caller's generator."""
    random.seed(5)
    expected = random.random()
    random.seed(5)

    simulate(1, ClusterScenario(steps=(1, 1)))

    assert random.random() == expected


def test_simulation_with_a_sink_is_the_same_run() -> None:
    """Looking on changes nothing: a replay with a trace shows the run that failed."""
    lines: list[str] = []

    watched = simulate(9, sink=lines.append)

    assert watched == simulate(9)
    assert any("allocation.converged" in line for line in lines)
