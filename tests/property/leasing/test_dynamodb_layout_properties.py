"""What holds of rows in DynamoDB, whatever is in the record."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import example, given, strategies as st

from broadsheet.leases.record import LeaseRecord
from broadsheet.leases.stores.dynamodb.expressions import changes_between
from broadsheet.leases.stores.dynamodb.values import (
    Item,
    Value,
    from_json,
    from_plain,
    to_json,
    to_plain,
    value_of,
)
from broadsheet.leases.stores.dynamodb.vmware_go import moment_of, nanoseconds_of
from tests.support.dynamodb_stores import LAYOUTS
from tests.support.lease_strategies import records

_letters = st.text(st.characters(codec="utf-8"), max_size=8)
_scalars: st.SearchStrategy[Value] = st.one_of(
    st.builds(lambda each: {"S": each}, _letters),
    st.builds(lambda each: {"N": each}, st.integers().map(str) | st.just("1.5E+200")),
    st.builds(lambda each: {"B": each}, st.binary(max_size=8)),
    st.builds(lambda each: {"BOOL": each}, st.booleans()),
    st.just({"NULL": True}),
    st.builds(lambda each: {"SS": sorted(each)}, st.sets(_letters, min_size=1, max_size=3)),
    st.builds(
        lambda each: {"BS": sorted(each)}, st.sets(st.binary(max_size=4), min_size=1, max_size=3)
    ),
)
_values: st.SearchStrategy[Value] = st.recursive(
    _scalars,
    lambda inner: st.one_of(
        st.builds(lambda each: {"L": each}, st.lists(inner, max_size=3)),
        st.builds(lambda each: {"M": each}, st.dictionaries(_letters, inner, max_size=3)),
    ),
    max_leaves=6,
)
_json = st.recursive(
    st.none() | st.booleans() | _letters,
    lambda inner: st.lists(inner) | st.dictionaries(_letters | st.sampled_from("BM"), inner),
    max_leaves=5,
)


@given(_values)
def test_value_is_read_as_it_was_written(value: Value) -> None:
    """Attributes of any type survive in records, and in versions."""
    assert from_json(to_json(value)) == value
    assert from_plain(json.loads(json.dumps(to_plain(value)))) == value


@given(_json)
@example({"B": "\x80"})
@example({"BS": ["?"]})
def test_any_json_has_a_value(plain: object) -> None:
    """Attributes that come from other layouts can be written, and are the same when read again."""
    value = from_json(json.dumps(plain))

    assert from_json(to_json(value)) == value


@given(st.integers(0, 4_000_000_000_000_000_000))
def test_moment_is_read_as_it_was_written(nanoseconds: int) -> None:
    """To the nanosecond, which `datetime` cannot."""
    assert nanoseconds_of(moment_of(nanoseconds)) == nanoseconds


@pytest.mark.parametrize("layout_name", LAYOUTS)
@given(record=records)
def test_row_is_read_as_it_was_written(layout_name: str, record: LeaseRecord) -> None:
    """In every layout, also what it has no place for."""
    layout = LAYOUTS[layout_name]()
    if record.claim == record.owner:
        record = replace(record, claim=None)  # Nobody claims what is its own.
    item = {layout.key_name: value_of(record.key)} | layout.row(record) | layout.own(record)

    assert layout.read(item, None) == record


@pytest.mark.parametrize("layout_name", LAYOUTS)
@given(before=records, after=records)
def test_difference_makes_one_row_of_the_other(
    layout_name: str, before: LeaseRecord, after: LeaseRecord
) -> None:
    """Writes change only what differs, so that must be all."""
    layout = LAYOUTS[layout_name]()
    old, new = layout.row(before), layout.row(after)

    changes = changes_between(old, new)

    made: dict[str, Value] = {**old, **changes.set}
    for name, members in changes.add.items():
        made[name] = {"SS": sorted({*_members(old, name), *members["SS"]})}
    for name in changes.remove:
        del made[name]
    assert made == new


def _members(item: Item, name: str) -> list[str]:
    return list(item[name]["SS"]) if name in item else []
