"""Label sets: building, the algebra of registers, and matching."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.journal_pb2 import Label, LabelSelector, LabelSet
from broadsheet.wire.labels import (
    LabelMatcher,
    expand_prefix,
    label_set,
    matches,
    parse_selector,
    registers_match,
    selector,
    subtract,
    union,
    value_of,
    values_of,
)
from broadsheet.wire.validation_terms import SELECTOR_LABELS_MAX, validate_selector


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


def test_selection_of_many_labels_costs_a_set_no_more_than_one_of_few() -> None:
    """A selector of 30,000 labels, grouped again for every row, stopped a member for minutes. Plan: the labels are gone
    while sets are picked, so none of them is looked at.
    """
    names = LabelSet(labels=[Label(name=f"n{number:05}", value="v") for number in range(30_000)])
    values = LabelSet(labels=[Label(name="id", value=f"{number:05}") for number in range(30_000)])
    prefixes = LabelSet(
        labels=[Label(name="id", value=f"{number:05}/", prefix=True) for number in range(30_000)]
    )
    few = label_set(("id", "00007/part-000"), ("team", "a"))
    for wanted, expected in (
        (selector(names), False),
        (selector(values), False),
        (selector(prefixes), True),
        (selector(exclude=names), True),
        (selector(exclude=values), True),
        (selector(exclude=prefixes), False),
    ):
        selection = LabelMatcher(wanted)
        wanted.Clear()

        assert all(selection.picks(few) is expected for _ in range(1_000))


def test_selector_of_too_many_labels_is_refused_before_they_are_checked() -> None:
    """Each label takes its check, on the loop that serves everybody."""
    half = LabelSet(labels=[Label() for _ in range(SELECTOR_LABELS_MAX + 1)])

    with pytest.raises(ValidationError, match=r"selector\.exclude\.labels: expected 10000 at most"):
        validate_selector(selector(exclude=half), "selector")
