"""The simulator of shards itself: the same seed is the same run, failures can be shown again, and the witness sees."""

from __future__ import annotations

import os
import subprocess
import sys

from click.testing import CliRunner

from broadsheet.testing.allocator.kernel.command import run_seed
from broadsheet.testing.shards.__main__ import main
from broadsheet.testing.shards.history_checker import HistoryChecker
from broadsheet.testing.shards.run import shards, simulate
from broadsheet.testing.shards.scenario import ShardScenario

SEEDS = (3, 5, 11)
_PRINT_HASHES = f"""
from broadsheet.testing.shards.run import simulate
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


def test_simulated_shard_of_a_seed_is_the_same_in_every_process() -> None:
    """Neither the order of sets, nor what ran before, nor where files are shows in what happens."""
    simulate(8)
    here = [simulate(seed).trace_hash for seed in SEEDS]

    assert len(set(here)) == len(SEEDS)
    assert _hashes_in_a_fresh_process(1) == here
    assert _hashes_in_a_fresh_process(4711) == here


def test_command_runs_the_seeds_and_counts_them() -> None:
    """All is well: status 0, and one line."""
    ran = CliRunner().invoke(main, ["--seeds", "0:2", "--steps", "2"])

    assert ran.exit_code == 0, ran.output
    assert ran.output.splitlines()[-1] == "2 seeds, 0 failed"


def test_failure_tells_its_seed_what_happened_and_how_to_see_it_again() -> None:
    """A shard that has no time to come to rest has not reflected every input."""
    impatient = ShardScenario(steps=(3, 3), settle_seconds_max=-1.0)
    outcome = run_seed(6, shards(impatient, arguments=("--steps", "3")))

    assert not outcome.ok
    assert outcome.text.startswith("seed 6: S1: in the end inputs ")
    assert (
        "\nreplay: python -m broadsheet.testing.shards --steps 3 --seed 6 --trace" in outcome.text
    )


def test_witness_sees_a_commit_beside_a_newer_one() -> None:
    """S3: what was durable is gone from what is durable now."""
    witness = HistoryChecker()
    witness.committed |= {1, 2, 3}
    witness.on_durable({"1": 0, "2": 1})
    assert witness.findings.violation is None

    witness.on_durable({"1": 0, "3": 1})

    assert str(witness.findings.violation).startswith("S3: a commit was made beside a newer one")


def test_witness_sees_an_input_that_nobody_committed() -> None:
    """S1: a message of a transaction that was rolled back is reflected."""
    witness = HistoryChecker()
    witness.committed.add(1)

    witness.on_durable({"1": 0, "2": 1})

    assert str(witness.findings.violation) == "S1: inputs ['2'] are reflected, and not committed"


def test_witness_sees_a_restore_of_what_never_was() -> None:
    """S3: a store begins with more than is durable."""
    witness = HistoryChecker()

    witness.on_restored({"1": 0})

    assert str(witness.findings.violation).startswith("S3: a store was restored with")


def test_witness_sees_a_delivery_of_what_the_state_reflects() -> None:
    """S1, before anything of it is durable."""
    witness = HistoryChecker()
    witness.committed.add(1)

    witness.on_consumed(1, again=True)

    assert (
        str(witness.findings.violation) == "S1: input 1 was delivered to a state that reflects it"
    )
