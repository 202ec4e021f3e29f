"""Label sets: building, the algebra of registers, and matching."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from broadsheet.consumer.protocol.journal_pb2 import Label, LabelSelector, LabelSet
from broadsheet.consumer.protocol.labels import (
    expand_prefix,
    label_set,
    matches,
    parse_selector,
    registers_match,
    subtract,
    union,
    value_of,
    values_of,
)


def test_label_set_built_from_pairs_and_mappings_is_sorted_and_unique() -> None:
    """Sets must be canonical on the wire, whatever the order they were written in."""
    built = label_set(("bb", "2"), {"aa": "1"}, ("bb", "1"), ("aa", "1"))

    assert [(label.name, label.value) for label in built.labels] == [
        ("aa", "1"),
        ("bb", "1"),
        ("bb", "2"),
    ]


def test_values_of_a_name_lists_all_and_value_of_the_first() -> None:
    """Multi-valued labels are ordinary; single-valued ones want one answer."""
    labels = label_set(("aa", "2"), ("aa", "1"), ("bb", "3"))

    assert values_of(labels, "aa") == ["1", "2"]
    assert values_of(labels, "cc") == []
    assert value_of(labels, "aa") == "1"
    assert value_of(labels, "cc", "none") == "none"


def test_register_update_subtracts_whole_lists_then_replaces_names() -> None:
    """The worked example of the wire's description: subtract AA=11,BB=XYZ, then union CC=33."""
    registers = label_set({"AA": "11", "BB": "22"})

    after = union(
        subtract(registers, label_set({"AA": "11", "BB": "XYZ"})), label_set({"CC": "33"})
    )

    assert after == label_set({"BB": "22", "CC": "33"})


def test_subtract_of_a_part_of_a_names_values_keeps_them_all() -> None:
    """A name goes only if its complete list is named: half a lock is no lock."""
    registers = label_set(("aa", "1"), ("aa", "2"))

    assert subtract(registers, label_set(("aa", "1"))) == registers
    assert subtract(registers, registers) == LabelSet()


def test_union_replaces_every_value_of_its_names() -> None:
    """A new author replaces the old one; it does not join it."""
    registers = label_set(("author", "1"), ("author", "2"), ("other", "x"))

    assert union(registers, label_set(("author", "3"))) == label_set(
        ("author", "3"), ("other", "x")
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", True),
        ("foo=bar", True),
        ("foo=other", False),
        ("foo=other,foo=bar", True),
        ("foo", True),
        ("missing", False),
        ("!missing", True),
        ("!foo", False),
        ("foo!=bar", False),
        ("foo!=other", True),
        ("missing!=anything", True),
        ("foo in (x1,bar)", True),
        ("foo notin (x1,bar)", False),
        ("many=one,many=three", True),
        ("many=three", False),
        ("many!=two", False),
        ("foo:prefix=ba", True),
        ("foo:prefix=bb", False),
        ("foo:prefix!=ba", False),
        ("id=shard-1", True),
        ("id:prefix=shard-", True),
        ("foo=bar,many=two,!absent", True),
        ("foo=bar,!many", False),
    ],
)
def test_selector_matches_by_name_with_any_listed_value(text: str, expected: bool) -> None:
    """Each rule of matching once: any value, alternatives, exclusion, prefixes, meta-labels."""
    labels = label_set(("foo", "bar"), ("many", "one"), ("many", "two"))
    meta: Mapping[str, str] = {"id": "shard-1"}

    assert matches(parse_selector(text), labels, meta=meta) is expected


def test_registers_match_when_there_are_none() -> None:
    """An empty register set passes every check: a journal that lost its registers must not refuse all writers."""
    check = parse_selector("author=me")

    assert registers_match(check, LabelSet())
    assert registers_match(check, label_set({"author": "me"}))
    assert not registers_match(check, label_set({"author": "you"}))


def test_expand_prefix_turns_the_meta_label_into_a_prefix_of_the_name() -> None:
    """`name=a` beside `prefix=b/` means "is a, or starts with b/", in both halves."""
    selector = LabelSelector(
        include=label_set(("name", "a/one"), ("prefix", "b/")),
        exclude=label_set(("prefix", "b/c/")),
    )

    expanded = expand_prefix(selector)

    assert expanded.include.labels[1] == Label(name="name", value="b/", prefix=True)
    assert matches(expanded, LabelSet(), meta={"name": "a/one"})
    assert matches(expanded, LabelSet(), meta={"name": "b/two"})
    assert not matches(expanded, LabelSet(), meta={"name": "b/c/three"})
    assert not matches(expanded, LabelSet(), meta={"name": "c/four"})
