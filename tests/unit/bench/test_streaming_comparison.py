"""What the comparison with Structured Streaming measures by: rows, latencies and the check of the sums."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec
import pytest

from bench.disturbances import Disturbances, Longest
from bench.vs_structured_streaming.results import (
    LATENCY,
    WARM_UP,
    Latencies,
    Measured,
    Results,
    SentRow,
    Sums,
    check_exact,
    latencies_by_pace,
    latencies_seconds,
    longest_wait_seconds,
)
from bench.vs_structured_streaming.rows import (
    KEYS,
    Row,
    expected_sums,
    keys_of_part,
    make_chunks,
    part_of,
)


def test_rows_sums_and_chunks_tell_of_the_same_rows() -> None:
    """A system that reads the chunks right must come to the expected sums, or it would be called wrong."""
    chunks = make_chunks(2 * KEYS + 1)

    lines = [
        (chunk.part, msgspec.json.decode(line))
        for chunk in chunks
        for line in chunk.content.splitlines()
    ]

    counts = Counter(line["k"] for _, line in lines)
    totals: Counter[str] = Counter()
    for part, line in lines:
        assert part == part_of(line["k"])
        totals[line["k"]] += line["v"]
    assert expected_sums(2 * KEYS + 1) == {key: (counts[key], totals[key]) for key in counts}


def test_latency_of_row_ends_with_the_first_result_that_holds_it() -> None:
    """Results hold several rows, and come again with more: each row is visible from its first one on."""
    sent = [SentRow(Row(0), 10.0), SentRow(Row(KEYS), 11.0), SentRow(Row(2 * KEYS), 12.0)]
    seen = [
        Sums("key-0", 2, 0, 1, 11.5),
        Sums("key-0", 2, 0, 1, 12.1),
        Sums("key-0", 3, 0, 1, 12.5),
    ]

    assert latencies_seconds(sent, seen) == pytest.approx([1.5, 0.5, 0.5])


def test_outage_is_the_longest_wait_of_a_row_sent_after_the_kill() -> None:
    """A result that comes just after the kill is no recovery, if the rows behind it wait."""
    sent = [SentRow(Row(n * KEYS), float(n)) for n in range(4)]
    seen = [
        Sums("key-0", 1, 0, 1, 5.0),
        Sums("key-0", 2, 0, 1, 5.1),
        Sums("key-0", 4, 0, 2, 8.0),
    ]

    assert longest_wait_seconds(sent, seen, since=1) == pytest.approx(6.0)


def test_latencies_are_by_pace_and_without_the_warm_up(tmp_path: Path) -> None:
    """Rows of each pace have a latency of their own; of a time before the machine's, nothing disturbed them."""
    latencies = [float(n) for n, pace in enumerate((WARM_UP, *LATENCY)) for _ in range(pace.rows)]
    sent = [SentRow(Row(n), n - 1e6) for n in range(len(latencies))]
    seen = [
        Sums(each.row.key, each.row.ordinal, 0, 1, each.at_monotonic_seconds + latency)
        for each, latency in zip(sent, latencies, strict=True)
    ]

    with Disturbances(tmp_path) as disturbances:
        found = latencies_by_pace(sent, seen, disturbances)

    assert found == {
        pace.rows_per_second: Latencies([float(n)] * pace.rows, Longest())
        for n, pace in enumerate(LATENCY, 1)
    }


def test_rounds_of_one_pace_are_one_measurement() -> None:
    """A percentile is over the rows of all rounds, so what disturbed any of them is told."""
    rounds = [Latencies([0.1], Longest(0.2, 0.0)), Latencies([0.3], Longest(0.0, 0.4))]
    measured = Measured()

    for each in rounds:
        measured.add(Measured(latencies={50.0: each}))

    assert measured.latencies == {50.0: Latencies([0.1, 0.3], Longest(0.2, 0.4))}


def test_results_wait_until_counted_is_over_keys_as_last_seen() -> None:
    """Two results of one key are not two rows more."""
    results = Results()
    results.add([Sums("a", 1, 0, 1, 1.0), Sums("b", 1, 0, 1, 1.0)])
    results.add([Sums("a", 2, 0, 1, 2.0)])

    assert results.wait_until_counted(3, timeout_seconds=0.0) == 2.0
    with pytest.raises(TimeoutError, match="3 are counted"):
        results.wait_until_counted(4, timeout_seconds=0.0)


def test_results_wait_until_seen_is_for_every_row() -> None:
    """As many rows in all are not enough: later rows of one part may be seen before earlier ones of the other."""
    sent = [SentRow(Row(0), 0.0), SentRow(Row(1), 0.0)]
    results = Results()
    results.add([Sums("key-0", 2, 0, 1, 1.0)])

    with pytest.raises(TimeoutError, match="2 rows, each"):
        results.wait_until_seen(sent, timeout_seconds=0.0)
    results.add([Sums("key-1", 1, 0, 1, 2.0)])
    results.wait_until_seen(sent, timeout_seconds=0.0)


def test_check_exact_names_the_key_that_is_wrong() -> None:
    """A row counted twice is no result."""
    with pytest.raises(AssertionError, match="key-1"):
        check_exact({"key-0": (1, 0), "key-1": (2, 2)}, expected_sums(2), "any")


def test_next_result_after_a_kill_is_of_another_process_and_of_its_keys() -> None:
    """What the killed process still got out, and what others have of other keys, is no recovery."""
    results = Results()
    results.add([Sums("a", 1, 0, 7, 1.0), Sums("a", 2, 0, 7, 2.1), Sums("b", 1, 0, 8, 2.2)])
    results.add([Sums("a", 3, 0, 8, 2.5)])

    first = results.wait_for_other(after=2.0, pids={7}, keys={"a"}, timeout_seconds=0.0)
    any_key = results.wait_for_other(after=2.0, pids={7}, timeout_seconds=0.0)

    assert (first.at_monotonic_seconds, any_key.at_monotonic_seconds) == (2.5, 2.2)


def test_keys_of_parts_are_all_keys() -> None:
    """A key comes again only after all others, so a recovery is looked for in every key of the part."""
    assert len(keys_of_part(0)) + len(keys_of_part(1)) == KEYS
    assert all(part_of(key) == 1 for key in keys_of_part(1))
