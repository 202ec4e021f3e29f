"""Beam's own queries over the same events: whether both emit the same, and what Beam's cost.

Beam's parameters are taken where they differ (`BEAM_QUERIES`): q1 has another rate, q4 counts bids from the reserve on
and has means of 10 s every 5 s, q5 has windows of 10 s every 5 s, and q8 a row for each auction.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from bench.nexmark.driven import run_query
from bench.nexmark.generator import Events
from bench.nexmark.queries import BEAM_QUERIES

Rows = Counter[tuple[Any, ...]]
_HOUR_MS: Final = 3_600_000
_KINDS: Final = ("persons", "auctions", "bids")

COMPARED: Final[Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "q1": (("auction", "bidder", "price"), ("auction", "bidder", "price")),
    "q2": (("auction", "price"), ("auction_id", "price")),
    "q3": (("auction", "name", "city", "state"), ("auction_id", "name", "city", "state")),
    "q4": (("category", "average"), ("category", "price")),
    "q5": (("auction", "num"), ("auction_id", "num")),
    "q7": (("auction", "bidder", "price"), ("auction", "bidder", "price")),
    "q8": (("id", "name", "reserve"), ("id", "name", "reserve")),
    "q11": (("bidder", "bids"), ("bidder_id", "bid_count")),
}
"""The fields that are compared, by our names and by Beam's; the first is an id."""


def judged(name: str, runs: Sequence[Events], python: str) -> tuple[bool, float]:
    """Return whether a query emits what Beam's does, and the processor seconds of Beam's pipeline.

    Args:
        name: Of `COMPARED`.
        runs: The events.
        python: Of an environment that has `apache-beam`.
    """
    ours, theirs = COMPARED[name]
    with tempfile.TemporaryDirectory() as directory:
        events = Path(directory) / "events.jsonl"
        events.write_text("\n".join(map(json.dumps, _lines(runs))))
        script = Path(__file__).with_name("beam_side.py")
        answer = subprocess.run(  # noqa: S603 - the caller's own Python
            [python, str(script), str(events), name], check=True, capture_output=True, text=True
        )
        output: list[pa.Table] = []
        store = Path(directory) / "store"
        store.mkdir()
        run_query(BEAM_QUERIES[name](), [*runs, _ending(runs[-1])], store, output=output)
    found = json.loads(answer.stdout)
    rows = [json.loads(row) if isinstance(row, str) else row for row in found["rows"]]
    mine = [row for table in output for row in table.to_pylist()]
    return _picked(mine, ours) == _picked(rows, theirs), found["cpu_s"]


def _picked(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> Rows:
    return Counter(
        tuple(_rounded(row[name]) for name in names) for row in rows if row[names[0]] > 1
    )


def _rounded(value: Any) -> Any:
    """Return a value without what the order of an addition changes."""
    return round(value, 6) if isinstance(value, float) else value


def _lines(runs: Sequence[Events]) -> list[dict[str, Any]]:
    rows = [row for run in runs for kind in _KINDS for row in getattr(run, kind).to_pylist()]
    for row in rows:
        for name in ("dateTime", "expires"):
            if name in row:
                row[name] = round(row[name].timestamp() * 1000)
    return sorted(rows, key=lambda row: int(row["dateTime"]))


def _ending(of: Events) -> Events:
    """Return one row of each kind an hour later, of id 1: it moves the watermark past all others."""
    return Events(_later(of.persons), _later(of.auctions), _later(of.bids))


def _later(table: pa.Table) -> pa.Table:
    row = table.slice(len(table) - 1)
    for at, field in enumerate(row.schema):
        if pa.types.is_timestamp(field.type):
            moved = pc.add(row.column(at), pa.scalar(_HOUR_MS, pa.duration("ms")))
            row = row.set_column(at, field.name, moved.cast(field.type))
        elif field.name in ("id", "auction", "bidder", "seller"):
            row = row.set_column(at, field.name, pa.chunked_array([pa.array([1], pa.int64())]))
    return row
