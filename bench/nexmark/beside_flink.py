"""Flink's own run of the queries over files with the same events, in a JVM beside."""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import pyarrow as pa
from pyarrow import csv

from bench.nexmark.generator import Events

_KINDS: Final = ("persons", "auctions", "bids")
SOURCE: Final = "events"
"""In place of a query: reads all files, and nothing else."""


@dataclass(frozen=True, slots=True)
class FlinkTiming:
    """Medians of a query's rounds, seconds."""

    query: str
    cpu: float
    """Of the JVM, with the reading of the files."""
    wall: float


def has_flink(python: str) -> bool:
    """Tell whether an environment has `apache-flink`; if not, say so on standard error."""
    tried = subprocess.run(  # noqa: S603 - the caller's own Python
        [python, "-c", "import pyflink.table"], check=False, capture_output=True
    )
    if tried.returncode:
        print(
            f"flink is left out: {python} cannot import pyflink. `pip install apache-flink` into an environment of its "
            "own (Python 3.9 to 3.12, and Java 11 or 17)",
            file=sys.stderr,
        )
    return not tried.returncode


def timings(
    python: str, queries: Sequence[str], runs: Sequence[Events], rounds: int
) -> Iterator[FlinkTiming]:
    """Yield what Flink takes for the source alone, and for each query.

    Args:
        python: Of an environment that has `apache-flink`.
        queries: Names.
        runs: The events.
        rounds: Of each query, behind one that warms the JVM up.

    Raises:
        RuntimeError: Flink ended with an error, which is in the message.
    """
    with tempfile.TemporaryDirectory(prefix="nexmark-flink-") as directory:
        for kind in _KINDS:
            _write(pa.concat_tables(getattr(run, kind) for run in runs), Path(directory), kind)
        script = str(Path(__file__).with_name("flink_side.py"))
        command = [python, script, directory, str(rounds), SOURCE, *queries]
        with (
            (Path(directory) / "errors").open("w+") as errors,
            subprocess.Popen(  # noqa: S603 - the caller's own Python
                command, stdout=subprocess.PIPE, stderr=errors, text=True
            ) as flink,
        ):
            for line in flink.stdout or ():
                answer = json.loads(line)
                cpu, wall = map(statistics.median, (answer["cpu_s"], answer["s"]))
                yield FlinkTiming(answer["query"], cpu, wall)
            if flink.wait():
                errors.seek(0)
                raise RuntimeError(f"Flink failed: {errors.read()[-2000:]}")


def _write(table: pa.Table, directory: Path, kind: str) -> None:
    for at, field in enumerate(table.schema):
        if pa.types.is_timestamp(field.type):
            # Flink's CSV knows no zones.
            without = table.column(at).cast(pa.timestamp("ms"))
            table = table.set_column(at, field.name, without)
    csv.write_csv(table, directory / f"{kind}.csv", csv.WriteOptions(include_header=False))
