"""Each part of the benchmark of the data plane runs, checks its sums and prints its figures, at a tiny size."""

from __future__ import annotations

import json

import pytest

from bench.dataplane.__main__ import main
from bench.dataplane.rows import KEYS, VALUES, Load, RowWriter, expected_sums
from bench.dataplane.sums import Sums, add_table, read_lines

ROWS = 2_000


def _figures(capfd: pytest.CaptureFixture[str]) -> dict[str, list[dict[str, object]]]:
    """The params of each figure that was printed."""
    found: dict[str, list[dict[str, object]]] = {}
    for line in capfd.readouterr().out.splitlines():
        record = json.loads(line)
        assert record["bench"] == "dataplane"
        assert record["value"] >= 0
        found.setdefault(record["figure"], []).append(record["params"])
    return found


@pytest.mark.timeout(120)
def test_messages_are_counted_by_each_api_beside_its_bare_loop(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """Sums are checked on both sides, so figures mean that every row was counted once."""
    options = f"--rows {ROWS} --rounds 1 --stores sqlite --apis message,arrow --shards 1 --peers"
    main(["messages", *options.split(), ""])

    figures = _figures(capfd)
    for name in ("messages_per_s", "cpu_s_per_million", "messages_per_s_bare"):
        assert [params["api"] for params in figures[name]] == ["message", "arrow"]


@pytest.mark.timeout(120)
def test_other_parts_print_their_figures(capfd: pytest.CaptureFixture[str]) -> None:
    """Latency at each load, the broker's bytes at each size, and the memory of both processes."""
    options = "--seconds 0.2 --rounds 1 --broker-mb 1 --lag-gb 0.001"
    main(["latency", "broker", "lag", *options.split()])

    figures = _figures(capfd)
    for name in ("latency_p50_ms", "latency_p99_ms"):
        assert [params["load_percent"] for params in figures[name]] == [25, 50, 75, 90]
    sizes = {(params["chunk_kb"], params["writers"]) for params in figures["append_mb_per_s"]}
    assert sizes == {(64, 1), (64, 8), (1024, 1), (1024, 8)}
    assert [params["chunk_kb"] for params in figures["read_mb_per_s"]] == [64, 1024]
    assert {params["process"] for params in figures["lag_rss_mb"]} == {"member", "broker"}


@pytest.mark.timeout(120)
def test_history_is_read_both_ways(capfd: pytest.CaptureFixture[str]) -> None:
    """The bytes that each path delivered are checked, and which path it was."""
    main(["history", "--rounds", "1", "--broker-mb", "1"])

    figures = _figures(capfd)
    for name in ("read_mb_per_s", "read_mb_per_cpu_s"):
        assert {(params["path"], params["codec"]) for params in figures[name]} == {
            (path, codec)
            for path in ("direct", "broker")
            for codec in ("NONE", "ZSTANDARD", "GZIP")
        }


def test_expected_sums_are_those_of_the_lines() -> None:
    """A count that is right must not be called wrong, whatever the number of rows."""
    rows = KEYS * VALUES + 17
    sums: Sums = {}

    for content in Load("batch", rows).contents():
        add_table(sums, read_lines(bytes(content)))

    assert {key: (n, total) for key, (n, total) in sums.items()} == expected_sums(rows)


def test_lines_have_one_length_and_growing_clocks() -> None:
    """Offsets and rates are told from the length; a clock that does not grow would drop a row."""
    writer = RowWriter()

    lines = [line for _ in range(3) for line in writer.json_lines(100).tobytes().splitlines()]

    assert {len(line) for line in lines} == {99}
    uuids = [json.loads(line)["_meta"]["uuid"] for line in lines]
    clocks = [uuid[15:18] + uuid[9:13] + uuid[:8] for uuid in uuids]
    assert clocks == sorted(set(clocks))
