"""The same count and sum by peers, over the same lines; a peer that cannot be run is left out with a line.

bytewax                 one worker, snapshots on, in a virtual environment of its own: it is no dependency of ours
structured_streaming    groupBy().agg(), its state in RocksDB, Kafka to Kafka; see `bench.vs_structured_streaming`
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench.dataplane.rows import TXN_ROWS, Load, RowWriter, expected_sums
from bench.vs_structured_streaming.kafka import why_left_out
from bench.vs_structured_streaming.results import check_exact
from bench.vs_structured_streaming.rows import PARTS, Chunk
from bench.vs_structured_streaming.spark import running

BYTEWAX = ("bytewax==0.21.1", "orjson")
WARM_UP_DIVISOR = 4
TIMEOUT_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class PeerResult:
    """The cost of a peer's run."""

    rows_per_second: float
    cpu_seconds: float = 0.0
    """0 if it was not measured."""


class _FlowResult(msgspec.Struct, frozen=True):
    """The result that `bytewax_flow` prints."""

    seconds: float
    cpu_seconds: float
    sums: dict[str, tuple[int, int]]


def bytewax(directory: Path, rows: int) -> PeerResult | None:
    """Run Bytewax; its start is not timed."""
    directory.mkdir(parents=True)
    lines, recovery = directory / "rows.json", directory / "recovery"
    python = directory / "venv" / "bin" / "python"
    with lines.open("wb") as file:
        file.writelines(Load("batch", rows).contents())
    recovery.mkdir()
    program = str(Path(__file__).with_name("bytewax_flow.py"))
    commands = [
        [sys.executable, "-m", "venv", str(directory / "venv")],
        [str(python), "-m", "pip", "install", "--quiet", "--only-binary", ":all:", *BYTEWAX],
        [str(python), "-m", "bytewax.recovery", str(recovery), "1"],
        [str(python), program, str(lines), str(recovery)],
    ]
    for command in commands:
        done = subprocess.run(  # noqa: S603 - the commands above
            command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False
        )
        if done.returncode != 0:
            reason = done.stderr.strip().splitlines()[-1:] or ["it ended"]
            sys.stderr.write(f"bytewax is left out: {' '.join(command[1:4])}: {reason[0]}\n")
            return None
    result = msgspec.json.decode(done.stdout, type=_FlowResult)
    check_exact(result.sums, expected_sums(rows), "bytewax")
    return PeerResult(rows / result.seconds, result.cpu_seconds)


def structured_streaming(directory: Path, rows: int) -> PeerResult | None:
    """Run Structured Streaming, Kafka to Kafka, on rows that appear at once; a query that has read others before."""
    del directory
    reason = why_left_out()
    if reason is not None:
        sys.stderr.write(f"structured_streaming is left out, for Kafka cannot be run: {reason}\n")
        return None
    writer, warm_up = RowWriter(), rows // WARM_UP_DIVISOR
    loads = [_chunks(writer, count) for count in (warm_up, rows)]
    with running("structured_streaming") as run:
        _, rate = run.loads(loads, expected_sums(warm_up + rows))
    return PeerResult(rate)


PEERS: Mapping[str, Callable[[Path, int], PeerResult | None]] = {
    "bytewax": bytewax,
    "structured_streaming": structured_streaming,
}


def _chunks(writer: RowWriter, rows: int) -> list[Chunk]:
    """Return the next rows, without acknowledgements."""
    end, chunks = writer.rows + rows, list[Chunk]()
    while writer.rows < end:
        count = min(TXN_ROWS, end - writer.rows)
        part = len(chunks) % PARTS
        chunks.append(Chunk(part, count, writer.json_lines(count).tobytes(), b""))
    return chunks
