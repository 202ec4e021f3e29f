"""The same count and sum by peers, over the same lines in files; a peer that cannot be run is left out with a line.

bytewax                 one worker, snapshots on, in a virtual environment of its own: it is no dependency of ours
structured_streaming    groupBy().agg() on `local[2]`, its state in RocksDB; see `bench.vs_structured_streaming`
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec

from bench.dataplane.rows import TXN_ROWS, Load, RowWriter, expected_sums
from bench.vs_structured_streaming.results import RESULT_SECONDS_MAX, check_exact
from bench.vs_structured_streaming.spark import Query

BYTEWAX = ("bytewax==0.21.1", "orjson")
FILES = 8
"""Of Structured Streaming's load, so that both cores have some."""
WARM_UP_DIVISOR = 4
TIMEOUT_SECONDS = 900.0


@dataclass(frozen=True, slots=True)
class PeerResult:
    """What a peer took."""

    rows_per_second: float
    cpu_seconds: float = 0.0
    """0 if it was not measured."""


class _FlowResult(msgspec.Struct, frozen=True):
    """What `bytewax_flow` prints."""

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
    """Run Structured Streaming on files that appear at once; a query that has read others before."""
    query = Query("structured_streaming", directory)
    feed, writer = query.new_feed(), RowWriter()
    warm_up = rows // WARM_UP_DIVISOR
    with query.new_driver() as driver:
        driver.wait_until_started()
        feed.stage(_files(writer, warm_up))
        feed.publish()
        query.results.wait_until_counted(warm_up, timeout_seconds=RESULT_SECONDS_MAX)
        feed.stage(_files(writer, rows))
        began = time.monotonic()
        feed.publish()
        ended = query.results.wait_until_counted(warm_up + rows, timeout_seconds=RESULT_SECONDS_MAX)
    check_exact(query.results.latest(), expected_sums(warm_up + rows), query.system)
    return PeerResult(rows / (ended - began))


PEERS: Mapping[str, Callable[[Path, int], PeerResult | None]] = {
    "bytewax": bytewax,
    "structured_streaming": structured_streaming,
}


def _files(writer: RowWriter, rows: int) -> list[bytes]:
    """Return the next rows in as many files as there are, without acknowledgements."""
    end = writer.rows + rows
    files: list[bytes] = []
    for remaining in range(FILES, 0, -1):
        share = (end - writer.rows) // remaining
        parts = []
        while share > 0:
            parts.append(writer.json_lines(min(TXN_ROWS, share)).tobytes())
            share -= TXN_ROWS
        files.append(b"".join(parts))
    return files
