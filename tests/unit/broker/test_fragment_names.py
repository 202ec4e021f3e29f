"""Names of fragments in stores, and the choice among those of a listing."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, strategies as st

from broadsheet.broker.fragments import (
    ObjectName,
    SealedFragment,
    cover_set,
    object_name,
    parse_object_name,
)
from broadsheet.broker.publishing import path_postfix
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.journal_pb2 import CompressionCodec

SUM = bytes(range(20))


def fragment(begin: int, end: int) -> SealedFragment:
    """Return a fragment with this span, bytes."""
    return SealedFragment(begin, end, SUM, 0, Path(f"{begin}-{end}.raw"))


@pytest.mark.parametrize(
    ("codec", "extension"),
    [
        (CompressionCodec.NONE, ".raw"),
        (CompressionCodec.GZIP, ".gz"),
        (CompressionCodec.ZSTANDARD, ".zst"),
        (CompressionCodec.SNAPPY, ".sz"),
        (CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION, ""),
    ],
)
def test_name_of_an_object_tells_its_content_and_codec(codec: int, extension: str) -> None:
    """A listing is the index, so names must be those that Gazette's brokers write."""
    name = object_name(fragment(255, 4096), codec)

    assert name == f"00000000000000ff-0000000000001000-{SUM.hex()}{extension}"
    assert parse_object_name(name) == ObjectName(255, 4096, SUM, codec)


@pytest.mark.parametrize(
    "name",
    [
        "notes.txt",
        f"00000000000000ff-0000000000001000-{SUM.hex()}.tmp",
        f"00000000000000ff-0000000000001000-{SUM.hex()[:-1]}.raw",
        f"0000000000001000-00000000000000ff-{SUM.hex()}.raw",
        f"0000000000001000-0000000000001000-{SUM.hex()}.raw",
    ],
)
def test_other_names_are_no_fragments(name: str) -> None:
    """What is not known is neither served nor removed."""
    assert parse_object_name(name) is None


def test_other_spellings_of_extensions_are_read() -> None:
    """Gazette reads them, so a store may have them."""
    stem = f"00000000000000ff-0000000000001000-{SUM.hex()}"

    codecs = [
        parse_object_name(stem + each) for each in (".GZIP", ".zstandard", ".snappy", ".gzod")
    ]

    assert [each and each.codec for each in codecs] == [2, 3, 4, 5]


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 10))))
def test_cover_set_has_every_byte_and_no_fragment_within_another(
    spans: list[tuple[int, int]],
) -> None:
    """A larger fragment replaces those that it contains; overlaps may stay."""
    fragments = [fragment(begin, begin + length) for begin, length in spans]

    chosen = cover_set(fragments)

    covered = {offset for each in chosen for offset in range(each.begin, each.end)}
    assert covered == {offset for each in fragments for offset in range(each.begin, each.end)}
    assert all(a.begin < b.begin and a.end < b.end for a, b in pairwise(chosen))


def test_postfix_has_the_time_in_the_templates_layout() -> None:
    """Layouts are Go's reference time."""
    template = 'date={{ .Spool.FirstAppendTime.Format "2006-01-02" }}/hour={{.Spool.FirstAppendTime.Format "15"}}'

    assert path_postfix(template, 1_700_000_000) == "date=2023-11-14/hour=22"
    assert path_postfix("", 0) == ""


@pytest.mark.parametrize("template", ["{{.JournalSpec.Name}}", "a/../b", "a//b"])
def test_postfix_that_cannot_be_evaluated_or_leads_elsewhere_is_refused(template: str) -> None:
    """A wrong path would hide the fragment from the next listing."""
    with pytest.raises(ValidationError):
        path_postfix(template, 0)
