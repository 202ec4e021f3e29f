"""What the format "journal" says of options that are wrong, and understands by those that are right."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from broadsheet.spark_bridge.format_options import OptionError
from broadsheet.spark_bridge.journal_source.journal_state import JournalState, ProducerState
from broadsheet.spark_bridge.journal_source.offsets import (
    StreamOffset,
    SymbolicStart,
    parse_offset,
    span_of,
)
from broadsheet.spark_bridge.journal_source.options import parse_place, read_options

NEEDED = {"address": "http://127.0.0.1:8081", "selector": "name=a/journal"}


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("address", "", "the address of a broker"),
        ("selector", " ", "a label selector"),
        ("selector", "???", "a label selector"),
        ("path", "a/journal", "chosen by selector"),
        ("journal", "a/journal", "one of address"),
        ("start", "yesterday", "earliest, latest, a time"),
        ("start", "2026-03-01T00:00:00", "needs a zone"),
        ("start", '{"a/journal"}', "as JSON"),
        ("start", '{"a/journal": -2}', "of a/journal an offset"),
        ("start", '{"a/journal": true}', "of a/journal an offset"),
        ("end", "earliest", "latest, or offsets"),
        ("maxRowsPerTrigger", "0", "a number of rows"),
        ("maxBytesPerTrigger", "1m", "a number of bytes"),
        ("maxBytesPerPartition", "-1", "a number of bytes"),
        ("minPartitions", "0", "a number of partitions"),
        ("includeMetadata", "yes", "true or false"),
        ("clockAheadSeconds", "0", "a number of seconds"),
        ("refuseClocksAhead", "1", "true or false"),
        ("messageType", "Flight", "module:attribute"),
        ("mode", "LENIENT", "one of FAILFAST, PERMISSIVE, DROPMALFORMED"),
        ("decode", "no", "true or false"),
        ("directFragments", "yes", "auto or off"),
        ("fragmentRoots", "/srv/a,b", "absolute paths"),
        ("fragmentHttp", "1", "true or false"),
        ("fragmentUrlSeconds", "0", "a number of seconds"),
        ("certFile", "/etc/member.pem", "keyFile beside it"),
        ("keyFile", "/etc/member.key", "certFile beside it"),
    ],
)
def test_wrong_option_is_named_with_what_was_expected(option: str, value: str, said: str) -> None:
    """Plan: each option wrong by itself. Why: the error comes out of another process, far from the call."""
    with pytest.raises(OptionError, match=option) as raised:
        read_options({**NEEDED, option: value})
    assert said in str(raised.value)
    assert "; got '" in str(raised.value)


@pytest.mark.parametrize("option", sorted(NEEDED))
def test_needed_option_is_asked_for(option: str) -> None:
    """Plan: leave out one. Why: as above."""
    with pytest.raises(OptionError, match=f"option {option}: expected .*; it is not set"):
        read_options({name: value for name, value in NEEDED.items() if name != option})


def test_options_have_no_case_and_defaults() -> None:
    """Plan: names as Spark passes them, in lower case. Why: a limit passed over is no limit."""
    options = read_options({**NEEDED, "maxrowspertrigger": "10", "INCLUDEMETADATA": "True"})
    assert (options.rows_max, options.bytes_max, options.include_metadata) == (10, None, True)
    assert options.start.kind == "earliest"


def test_place_is_read_from_its_text() -> None:
    """Plan: one of each kind. Why: the texts are kept in checkpoints."""
    assert parse_place("start", " Latest ").kind == "latest"
    time = parse_place("start", "2026-03-01T02:00:00+02:00").time
    assert time == datetime(2026, 3, 1, tzinfo=UTC)
    offsets = parse_place("start", '{"a/b": 5, "c/d": "latest", "e/f": "earliest"}').offsets
    assert offsets == {"a/b": 5, "c/d": -1, "e/f": 0}


def test_first_batch_begins_where_its_end_says() -> None:
    """Plan: the offsets of a first, an empty first and a second batch, through JSON.

    Why: Spark asks again where a stream begins when it repeats the first batch, and the write head has moved by then.
    """
    began = {"a/b": JournalState(40)}
    pending = JournalState(90, {7: ProducerState(5, 60, 9), 8: ProducerState(3)})
    start = SymbolicStart("latest").to_json()
    first = StreamOffset({"a/b": pending}, began).to_json()
    second = StreamOffset({"a/b": JournalState(120), "c/d": JournalState(10)}).to_json()

    assert parse_offset(first) == StreamOffset({"a/b": pending}, began)
    span = span_of(start, first)
    assert (span.names, span.start_of("a/b"), span.end["a/b"]) == (["a/b"], began["a/b"], pending)
    span = span_of(first, second)
    assert (span.names, span.start_of("a/b")) == (["a/b", "c/d"], pending)
    assert span.start_of("c/d") == JournalState()
    assert span_of(first, first).names == []
    with pytest.raises(ValueError, match="no offset of journals"):
        parse_offset({"0": 1})
