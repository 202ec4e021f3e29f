"""Selectors and label algebra against naive definitions."""

from __future__ import annotations

from hypothesis import given, strategies as st

from broadsheet.wire.journal_pb2 import Label, LabelSelector, LabelSet
from broadsheet.wire.labels import (
    format_selector,
    label_set,
    matches,
    parse_selector,
    subtract,
    union,
    values_of,
)
from broadsheet.wire.validation_terms import validate_label_set

NAMES = st.sampled_from(["aa", "bb", "cc", "in", "notin", "x/y.z"])
VALUES = st.sampled_from(["1", "2", "12", "a=b", "in", ""])
PAIRS = st.tuples(NAMES, VALUES)


def _without_mixed_empties(pairs: set[tuple[str, str]]) -> set[tuple[str, str]]:
    named = {name for name, value in pairs if value}
    return {(name, value) for name, value in pairs if value or name not in named}


LABEL_SETS = st.sets(PAIRS).map(lambda pairs: label_set(*_without_mixed_empties(pairs)))


@st.composite
def _halves(draw: st.DrawFn) -> LabelSet | None:
    labels = draw(LABEL_SETS)
    flagged = [
        Label(name=label.name, value=label.value, prefix=draw(st.booleans()))
        for label in labels.labels
    ]
    return LabelSet(labels=flagged) if flagged else None


SELECTORS = st.builds(
    lambda include, exclude: LabelSelector(include=include, exclude=exclude), _halves(), _halves()
)


@given(SELECTORS)
def test_format_then_parse_gives_the_selector_back(selector: LabelSelector) -> None:
    """Text is a faithful form: what a tool prints, another reads."""
    assert parse_selector(format_selector(selector)) == selector


@given(SELECTORS, LABEL_SETS)
def test_matches_agrees_with_its_definition(selector: LabelSelector, labels: LabelSet) -> None:
    """No excluded name has a listed value, every included name has one."""
    held = [(label.name, label.value) for label in labels.labels]

    def hit(name: str, half: LabelSet) -> bool:
        return any(
            held_name == name == label.name
            and (
                label.value == ""
                or held_value == label.value
                or (label.prefix and held_value.startswith(label.value))
            )
            for label in half.labels
            for held_name, held_value in held
        )

    included = {label.name for label in selector.include.labels}
    excluded = {label.name for label in selector.exclude.labels}
    expected = all(hit(name, selector.include) for name in included) and not any(
        hit(name, selector.exclude) for name in excluded
    )

    assert matches(selector, labels) is expected


@given(LABEL_SETS, LABEL_SETS)
def test_union_and_subtract_give_canonical_sets_by_name(left: LabelSet, right: LabelSet) -> None:
    """Whatever the operands, results are valid sets; per name the right side wins, or empties an equal left."""
    joined, reduced = union(left, right), subtract(left, right)

    validate_label_set(joined)
    validate_label_set(reduced)
    for name in {label.name for labels in (left, right) for label in labels.labels}:
        assert values_of(joined, name) == (values_of(right, name) or values_of(left, name))
        same = values_of(left, name) == values_of(right, name)
        assert values_of(reduced, name) == ([] if same else values_of(left, name))
