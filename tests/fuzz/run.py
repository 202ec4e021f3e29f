"""Runs decoders over mutants in child processes, so that a crash, a hang or a burst of memory is a finding, too.

A mutant is a function of the run's seed, the decoder's name and a number, so a finding is repeated by these alone.
"""

from __future__ import annotations

import faulthandler
import mmap
import os
import resource
import signal
import struct
import sys
import time
from base64 import b64encode
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Final

from tests.fuzz.decoder import FuzzedDecoder
from tests.fuzz.mutations import mutant

HANG_SECONDS: Final = 10
"""Of CPU time, for one mutant: a busy machine makes nothing a hang."""
MEMORY_BYTES: Final = 1 << 30
"""That one mutant may take on top of what the process has."""
FINDINGS_MAX: Final = 20
"""Of one decoder, in one run."""
SHOWN_BYTES: Final = 300
_INDEX: Final = struct.Struct("<q")


@dataclass(frozen=True, slots=True)
class Finding:
    """A mutant that a decoder did not survive, or answered by an undocumented error."""

    decoder: str
    index: int
    what: str
    data: bytes

    def line(self, seed: int) -> str:
        """Return what to print: all that is needed to repeat it."""
        shown = b64encode(self.data[:SHOWN_BYTES]).decode()
        more = "..." if len(self.data) > SHOWN_BYTES else ""
        return (
            f"{self.decoder}: {self.what}\n  repeat: python -m tests.fuzz --seed {seed} --decoder {self.decoder} "
            f"--only {self.index}\n  {len(self.data)} bytes, base64: {shown}{more}"
        )


def mutant_of(decoder: FuzzedDecoder, seeds: Sequence[bytes], *, seed: int, index: int) -> bytes:
    """Return one mutant."""
    return mutant(Random(f"{seed}/{decoder.name}/{index}"), seeds)


def fuzz(decoder: FuzzedDecoder, *, seed: int, indices: range) -> Iterator[Finding]:
    """Yield what the mutants with these numbers find; a child that dies is replaced."""
    seeds = decoder.seeds()
    at = mmap.mmap(-1, _INDEX.size)
    start, found = indices.start, 0
    while start < indices.stop and found < FINDINGS_MAX:
        _INDEX.pack_into(at, 0, start)
        problem = _in_child(decoder, seeds, seed, range(start, indices.stop), at)
        if problem is None:
            return
        (index,) = _INDEX.unpack_from(at, 0)
        found += 1
        yield Finding(
            decoder.name, index, problem, mutant_of(decoder, seeds, seed=seed, index=index)
        )
        start = index + 1


def _in_child(
    decoder: FuzzedDecoder, seeds: Sequence[bytes], seed: int, indices: range, at: mmap.mmap
) -> str | None:
    """Return what went wrong at the mutant whose number is in `at`; None if nothing did up to the last."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _run_and_exit(decoder, seeds, seed, indices, at, writer)
    os.close(writer)
    with os.fdopen(reader, "rb") as said:
        problem = said.read().decode(errors="replace")
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        name = signal.Signals(number).name
        return f"hangs for {HANG_SECONDS} s" if number == signal.SIGVTALRM else f"dies of {name}"
    if os.WEXITSTATUS(status):
        return problem or f"exits with {os.WEXITSTATUS(status)}"
    return None


def _run_and_exit(
    decoder: FuzzedDecoder,
    seeds: Sequence[bytes],
    seed: int,
    indices: range,
    at: mmap.mmap,
    said: int,
) -> None:
    try:
        _be_bounded()
        for index in indices:
            _INDEX.pack_into(at, 0, index)
            problem = problem_of(decoder, mutant_of(decoder, seeds, seed=seed, index=index))
            if problem is not None:
                os.write(said, problem.encode(errors="replace")[:2000])
                os._exit(1)
        os._exit(0)
    finally:
        os._exit(2)


def problem_of(decoder: FuzzedDecoder, data: bytes) -> str | None:
    """Return what is wrong with how a decoder takes bytes, in this process."""
    signal.setitimer(signal.ITIMER_VIRTUAL, HANG_SECONDS)
    try:
        decoder.decode(data)
    except decoder.allowed:
        return None
    except BaseException as error:
        return f"raises {type(error).__module__}.{type(error).__name__}: {str(error)[:300]}"
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
    return None


def _be_bounded() -> None:
    """Have this process die of what must not happen, without a word of its own."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    faulthandler.disable()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[0])
    limit = pages * resource.getpagesize() + MEMORY_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    # Libraries print stacks and warnings of damaged bytes, thousands of them.
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, sys.stderr.fileno())


def save(finding: Finding, folder: Path) -> Path:
    """Keep the bytes of a finding, and return where."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{finding.decoder}-{finding.index}.bin"
    path.write_bytes(finding.data)
    return path


def fuzz_for(
    decoders: Sequence[FuzzedDecoder], *, seed: int, seconds: float, step: int
) -> Iterator[tuple[int, list[Finding]]]:
    """Run all decoders in turn, `step` mutants each, for so long; yield how many there were, and what was found."""
    deadline = time.monotonic() + seconds
    given_up: dict[str, int] = {}
    begin = 0
    while time.monotonic() < deadline:
        for decoder in decoders:
            if given_up.get(decoder.name, 0) >= FINDINGS_MAX:
                continue
            # By its own count: all its mutants differ.
            first, last = begin // decoder.cost, (begin + step) // decoder.cost
            found = list(fuzz(decoder, seed=seed, indices=range(first, last)))
            given_up[decoder.name] = given_up.get(decoder.name, 0) + len(found)
            yield last - first, found
            if time.monotonic() >= deadline:
                return
        begin += step
