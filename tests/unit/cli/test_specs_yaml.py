"""The fast way to load and write specs, beside the library's own."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import yaml
from hypothesis import given, strategies as st

from broadsheet.cli.output.progress import LONG_TEXT_BYTES, say_reading
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.yaml_documents import decode_yaml, encode_yaml

scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.text(max_size=20),
    st.sampled_from(("1", "yes", "~")),
)
documents = st.dictionaries(
    st.text(min_size=1, max_size=5),
    st.recursive(
        scalars,
        lambda inner: (
            st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3)
        ),
        max_leaves=10,
    ),
    min_size=1,
)


@given(documents)
def test_what_is_written_is_read_back_as_the_library_reads_it(document: dict[str, Any]) -> None:
    """Values of every type, and texts that look like values of another type."""
    text = encode_yaml(document)

    assert decode_yaml(text, dict, "f") == yaml.safe_load(text) == document


@pytest.mark.parametrize(
    "text",
    [
        "a: &x {b: 1}\nc: *x\nd: {<<: *x, e: 2}",
        "a: 2026-11-25\nb: !!str 5\nc: 0x1f\nd: 1_000\ne: .inf",
        "? a\n: [1, {b: c}, ~, yes]",
        "a: {1: x, true: y}",
        "a: !!set {x, y}\nb: !!binary aGk=",
        'a: "q\\u00e4"\nb: >\n  folded\n  text\nc: |\n  literal\n',
    ],
)
def test_every_form_of_yaml_is_read_as_the_library_reads_it(text: str) -> None:
    """Anchors, merges, explicit tags, dates and numbers of other bases are rare, and must not be lost for speed."""
    assert decode_yaml(text, dict, "f") == msgspec.convert(yaml.safe_load(text), dict)


@pytest.mark.parametrize(
    "text", ["a: [", "a: {[b]: c}", "a: !!int x", "a: !!python/name:os.system", "[" * 5_000]
)
def test_malformed_yaml_is_refused_with_its_source(text: str) -> None:
    """Also what only the library's constructors refuse, such as a list as a key, and code."""
    with pytest.raises(ValidationError, match=r"^f: is not YAML: "):
        decode_yaml(text, dict, "f")


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("a: 1\nb: 2\na: 3", "line 3, column 1"),
        ("a:\n- {b: 1, c: 2, b: 3}", "line 2, column 16"),
        ("x: &x {b: 1}\na: {<<: *x, c: 2, c: 3}", "line 2, column 19"),
        ("a: &x 1\nb: *x\nb: 2", "line 3, column 1"),
    ],
    ids=["flat", "nested", "beside a merge", "beside an alias"],
)
def test_key_that_is_there_twice_is_refused(text: str, place: str) -> None:
    """The library takes the last one, and a source or a label that was written would be lost in silence."""
    with pytest.raises(ValidationError, match=rf"^f: is not YAML: {place}: the key '.' is there"):
        decode_yaml(text, dict, "f")


def test_merged_key_may_be_there_again() -> None:
    """That is what merges are for."""
    text = "x: &x {b: 1}\na: {<<: *x, b: 2}"

    assert decode_yaml(text, dict, "f")["a"] == {"b": 2}


def test_reading_of_long_texts_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """A file of 100,000 shards takes seconds before the first change is applied."""
    say_reading("short.yaml", "x")
    say_reading("long.yaml", "x" * LONG_TEXT_BYTES)

    assert capsys.readouterr().err == "reading long.yaml: 4.2 MB\n"
