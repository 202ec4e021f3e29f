"""A fixed number of mutants of every decoder, with a fixed seed; `make fuzz` goes on from there."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.fuzz.decoder import FuzzedDecoder
from tests.fuzz.decoders import DECODERS

ITERATIONS = 100
SEED = 1


@pytest.mark.timeout(900)  # some seconds of CPU time, which a busy machine shares out
def test_every_decoder_survives_mutants() -> None:
    """Plan: some hundred mutants of the valid bytes of each decoder, in child processes. Why: one damaged record must
    neither kill the process that reads it, nor end it by an error that no handler knows.
    """
    run = subprocess.run(
        [sys.executable, "-m", "tests.fuzz", "--iterations", str(ITERATIONS), "--seed", str(SEED)],
        capture_output=True,
        text=True,
        check=False,
    )

    assert run.returncode == 0, f"{run.stdout[-6000:]}{run.stderr[-2000:]}"


@pytest.mark.parametrize("decoder", DECODERS, ids=lambda decoder: str(decoder.name))
def test_seeds_are_valid(decoder: FuzzedDecoder) -> None:
    """Plan: decode what mutants are made of. Why: mutants of bytes that are refused at once would test nothing."""
    for seed in decoder.seeds():
        decoder.decode(seed)
