"""Operators against recorded cases: rows and watermarks in, emitted and late rows out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from broadsheet.consumer.keyed.operators.aggregate import count, sum_
from broadsheet.consumer.keyed.operators.builder import Stream, stream
from broadsheet.consumer.keyed.operators.windows import hopping, session, tumbling
from tests.support.documents import REPOSITORY
from tests.support.stream_runs import OperatorLife, StoreLives

_VECTORS = REPOSITORY / "tests/data/windows"
_ROWS = pa.schema([("k", pa.string()), ("t", pa.int64()), ("v", pa.int64())])
_TEXTS = pa.schema([("k", pa.string()), ("t", pa.int64()), ("v", pa.string())])


def _cases() -> Iterator[Any]:
    for path in sorted(_VECTORS.glob("*.jsonl")):
        for line in path.read_text().splitlines():
            case = json.loads(line)
            yield pytest.param(case, id=f"{case['op']}: {case['case']}")


def _operator(op: str, params: dict[str, Any]) -> Stream:
    rows = stream("in", _ROWS, time="t")
    keyed = rows.key_by("k")
    match op:
        case "tumbling":
            window = tumbling(params["size"], offset=params.get("offset", 0))
            windows = keyed.window(window, lateness=params.get("lateness", 0))
            return windows.agg(n=count(), total=sum_("v"))
        case "hopping":
            return keyed.window(hopping(params["size"], params["slide"])).agg(
                n=count(), total=sum_("v")
            )
        case "session":
            return keyed.window(session(params["gap"])).agg(n=count())
        case "dedup":
            return keyed.deduplicate(within=params["within"])
        case "topn":
            return keyed.top(params["n"], by="v")
    left = stream("l", _TEXTS, time="t").key_by("k")
    right = stream("r", _TEXTS, time="t").key_by("k")
    bounds = {"lower": params["lower"], "upper": params["upper"]}
    return left.join(right, how=params["type"], time="at", **bounds)


def _tables(op: str, rows: list[list[Any]]) -> list[pa.Table]:
    if op != "interval_join":
        return [_table(rows, _ROWS)]
    return [_table([row[1:] for row in rows if row[0] == side], _TEXTS) for side in ("l", "r")]


def _table(rows: list[list[Any]], schema: pa.Schema) -> pa.Table:
    return pa.Table.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)


def _as_vector(op: str, rows: list[dict[str, Any]]) -> list[Any]:
    if op == "topn":
        by_key = groupby(rows, key=lambda row: row["k"])
        return [[key, [[row["v"], row["t"]] for row in of]] for key, of in by_key]
    if op == "interval_join":
        return [[row["k"], row["v"], row["v_right"], row["at"]] for row in rows]
    return [list(row.values()) for row in rows]


@pytest.mark.parametrize("case", list(_cases()))
def test_operator_vector_emits_recorded_rows(case: dict[str, Any], tmp_path: Path) -> None:
    """Each step of a case emits its rows in order, and sets the late ones apart."""
    op = case["op"]
    lives = StoreLives(tmp_path)
    life = OperatorLife(lives, _operator(op, case["params"]))
    for number, step in enumerate(case["steps"]):
        if "wm" in step:
            out = life.step(*_tables(op, []), watermark=step["wm"])
        else:
            out = life.step(*_tables(op, step["rows"]))
        assert _as_vector(op, out) == step["out"], f"step {number}"
        late = [[*row.values()] for row in life.late]
        assert late == [row[-3:] for row in step.get("late", [])], f"step {number}"
    lives.end()
