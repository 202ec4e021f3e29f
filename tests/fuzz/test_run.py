"""The runner itself: what it must notice, it notices, and goes on behind it."""

from __future__ import annotations

import os
import signal

from tests.fuzz.decoder import FuzzedDecoder
from tests.fuzz.run import FINDINGS_MAX, fuzz, mutant_of


def _dies(data: bytes) -> None:
    if data[:1] == b"\x00":
        os.kill(os.getpid(), signal.SIGSEGV)


def _fills_memory(data: bytes) -> None:
    bytearray(1 << 40)


def _refuses(data: bytes) -> None:
    raise ValueError(f"{len(data)} bytes")


def test_crash_of_a_decoder_is_a_finding_that_can_be_repeated() -> None:
    """Plan: a decoder that kills its process at some mutants. Why: C++ does, and the run must tell at which."""
    decoder = FuzzedDecoder("dies", lambda: [b"\x01abc"], _dies, ())

    found = list(fuzz(decoder, seed=3, indices=range(400)))

    assert found
    assert {finding.what for finding in found} == {"dies of SIGSEGV"}
    assert all(finding.data[:1] == b"\x00" for finding in found)
    first = found[0]
    assert mutant_of(decoder, [b"\x01abc"], seed=3, index=first.index) == first.data
    assert f"--seed 3 --decoder dies --only {first.index}" in first.line(3)


def test_undocumented_errors_and_bursts_of_memory_are_findings() -> None:
    """Plan: decoders that raise what they do not document. Why: no handler would know it; but a decoder that always
    fails must not hold up the others.
    """
    (first, *_) = fuzz(
        FuzzedDecoder("fills", lambda: [b"abc"], _fills_memory, (ValueError,)),
        seed=3,
        indices=range(1),
    )
    assert first.what.startswith("raises builtins.MemoryError")

    wrong = FuzzedDecoder("refuses", lambda: [b"abc"], _refuses, (KeyError,))
    assert len(list(fuzz(wrong, seed=3, indices=range(1_000)))) == FINDINGS_MAX
    right = FuzzedDecoder("refuses", lambda: [b"abc"], _refuses, (ValueError,))
    assert list(fuzz(right, seed=3, indices=range(1_000))) == []
