"""Durations as people write them."""

from __future__ import annotations

import pytest
from google.protobuf.duration_pb2 import Duration
from hypothesis import given, strategies as st

from broadsheet.cli.durations import format_duration, parse_duration
from broadsheet.runtime.errors import ValidationError


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("1s", 10**9),
        ("250ms", 250 * 10**6),
        ("1m30s", 90 * 10**9),
        ("1h", 3600 * 10**9),
        ("1.5s", 1_500_000_000),
        (".5s", 500_000_000),
        ("10us", 10_000),
        ("7ns", 7),
        ("0", 0),
        ("-2s", -2 * 10**9),
    ],
)
def test_parse_duration_reads_what_go_writes(text: str, nanoseconds: int) -> None:
    """Specs written for Gazette mean the same here."""
    assert parse_duration(text, "field").ToNanoseconds() == nanoseconds


@pytest.mark.parametrize("text", ["", "1", "s", "1 s", "1x", "1s2", "--1s", "1s garbage"])
def test_parse_duration_that_is_none_names_the_field(text: str) -> None:
    """A forgotten unit must not become a guess."""
    with pytest.raises(ValidationError, match=r"shards\[0\].max_txn_duration: expected a duration"):
        parse_duration(text, "shards[0].max_txn_duration")


@given(st.integers(min_value=1, max_value=10**15))
def test_format_duration_is_read_back_exactly(nanoseconds: int) -> None:
    """A spec that is listed and applied again must not drift by a nanosecond."""
    duration = Duration()
    duration.FromNanoseconds(nanoseconds)

    assert parse_duration(format_duration(duration), "field") == duration
