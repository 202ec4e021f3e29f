"""Any state that a `JsonFileStore` commits is read back as it is; any other one is refused with its place."""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import math
import uuid
from collections import Counter, OrderedDict, defaultdict
from types import GenericAlias
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given, settings, strategies as st

from broadsheet.consumer.stores.json_state import SHORT_BYTES, JsonState


class Colour(enum.Enum):
    """Values that have another name."""

    RED = "red"


class Mean(msgspec.Struct):
    """Columns of several types."""

    n: int
    mean: float
    of: str | None = None
    parts: list[int] = []


class Tree(msgspec.Struct, eq=False):
    """A structure that is equal to itself only, and holds others of its kind."""

    name: str
    kids: dict[str, Tree] = {}


_ODD: Final = (7, 2**70, True, None, 1.5, math.nan, math.inf, "7", "\ud800", b"ab")
_SCALARS = st.one_of(
    st.sampled_from(_ODD),
    st.integers(),
    st.floats(),
    st.text(max_size=4),
    st.sampled_from(
        (
            dt.date(2026, 1, 2),
            dt.datetime(2026, 1, 2, tzinfo=dt.UTC),
            uuid.UUID(int=7),
            decimal.Decimal("1.50"),
            decimal.Decimal("NaN"),
            Colour.RED,
            object(),
        )
    ),
)
_KEYS = st.one_of(st.sampled_from(("a", "b", 7, "7", 1.5, b"ab", None, True, uuid.UUID(int=7))))
_STRUCTS = st.builds(
    Mean,
    n=st.one_of(st.integers(), st.sampled_from(_ODD)),
    mean=st.one_of(st.floats(), st.sampled_from(_ODD)),
    of=st.sampled_from((None, "a", 7)),
    parts=st.sampled_from(([], [1], (1,), ["a"])),
)
_TREES = st.recursive(
    st.builds(Tree, st.text(max_size=2)),
    lambda kids: st.builds(
        Tree, st.text(max_size=2), st.dictionaries(st.sampled_from("ab"), kids, max_size=2)
    ),
    max_leaves=4,
)


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(
        st.lists(inner, max_size=3),
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(_KEYS, inner, max_size=3),
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    )


_STATES = st.one_of(
    st.recursive(st.one_of(_SCALARS, _STRUCTS, _TREES), _containers, max_leaves=8),
    st.dictionaries(st.text(max_size=2), _STRUCTS, max_size=3),
    st.dictionaries(st.text(max_size=2), _TREES, max_size=3),
)
_PLAIN = st.dictionaries(
    st.text(max_size=3),
    st.recursive(
        st.one_of(
            st.none(),
            st.booleans(),
            st.integers(),
            st.floats(allow_nan=False, allow_infinity=False),
            st.text(max_size=3),
        ),
        lambda inner: st.one_of(
            st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner, max_size=3)
        ),
        max_leaves=10,
    ),
    max_size=4,
)
_TYPES = (
    dict,
    list,
    dict[str, int],
    dict[str, float],
    dict[str, float | None],
    dict[int, int],
    dict[str, str],
    dict[str, dict[str, int]],
    dict[str, list[int]],
    dict[str, tuple[int, ...]],
    dict[str, Mean],
    dict[str, Tree],
    dict[str, decimal.Decimal],
    dict[uuid.UUID, dt.date],
    dict[float, int],
    dict[bytes, bytes],
    dict[str, Colour],
    dict[str, set[int]],
    Mean,
    Any,
)


@settings(max_examples=150)
@given(data=st.data())
def test_state_of_any_values_comes_back_or_is_refused_with_its_place(data: st.DataObject) -> None:
    """A state that turns into another one at a restore counts wrong, or can never be restored."""
    state_type = data.draw(st.sampled_from(_TYPES))
    of_type = _STATES if state_type is Any else st.from_type(state_type)
    state = data.draw(st.one_of(of_type, _STATES))
    codec: JsonState[Any] = JsonState(
        state_type, short_bytes=data.draw(st.sampled_from((0, 0, SHORT_BYTES)))
    )

    try:
        content = codec.encode(state)
    except ValueError as error:
        refused = str(error)
        content = b""

    if not content:
        assert refused.startswith("state")
        return
    assert b"\n" not in content
    assert _is_same(state, codec.decode(content)), content


class Tally(dict[str, int]):
    """A dict of an application, which adds what is written to it."""

    def __eq__(self, other: object) -> bool:
        """Return whether the other one is a tally, too."""
        return isinstance(other, Tally) and dict.__eq__(self, other)

    __hash__ = None


_ZONES = st.sampled_from(
    (
        None,
        dt.UTC,
        dt.timezone(dt.timedelta(hours=2)),
        dt.timezone(dt.timedelta(seconds=1)),
        dt.timezone(dt.timedelta(hours=-1, seconds=-7)),
    )
)
_RICH: Final[dict[Any, st.SearchStrategy[Any]]] = {
    dt.date: st.dates(),
    dt.datetime: st.datetimes(timezones=_ZONES),
    decimal.Decimal: st.decimals(),
    uuid.UUID: st.uuids(),
    bytes: st.binary(max_size=4),
    set[str]: st.sets(st.text(max_size=2), max_size=3),
    frozenset[float]: st.frozensets(st.floats(), max_size=3),
    tuple[int, str]: st.tuples(st.integers(), st.text(max_size=2)),
    tuple[dt.date, ...]: st.lists(st.dates(), max_size=2).map(tuple),
    dict[str, int]: st.dictionaries(st.text(max_size=2), st.integers(), max_size=3).flatmap(
        lambda made: st.sampled_from(
            (made, Counter(made), defaultdict(int, made), OrderedDict(made), Tally(made))
        )
    ),
}


@settings(max_examples=60)
@given(data=st.data())
def test_state_of_rich_values_comes_back_by_the_check_in_columns_as_by_decoding(
    data: st.DataObject,
) -> None:
    """What is checked in columns is not decoded: it must be a state that decoding would take, too. The check reads
    dicts that make entries when they are read.
    """
    value_type = data.draw(st.sampled_from(list(_RICH)))
    values = _RICH[value_type]
    if data.draw(st.booleans()):
        values |= _SCALARS
    state = data.draw(
        st.dictionaries(st.text(max_size=2), values, max_size=4).flatmap(
            lambda made: st.sampled_from((made, defaultdict(dict, made), OrderedDict(made)))
        )
    )
    before = repr(state)
    for state_type in (GenericAlias(dict, (str, value_type)), dict):
        outcomes: list[object] = []
        for short_bytes in (0, 1 << 20):
            codec: JsonState[Any] = JsonState(state_type, short_bytes=short_bytes)
            try:
                content = codec.encode(state)
            except ValueError as error:
                outcomes.append(str(error))
                continue
            outcomes.append(content)
            assert _is_same(state, codec.decode(content)), content
        assert outcomes[0] == outcomes[1]
    assert repr(state) == before


@settings(max_examples=30)
@given(state=_PLAIN)
def test_state_of_what_json_has_is_taken(state: dict[str, Any]) -> None:
    """What is refused without need stops a shard that did nothing wrong."""
    for short_bytes in (0, SHORT_BYTES):
        codec: JsonState[dict[str, Any]] = JsonState(dict, short_bytes=short_bytes)

        assert codec.decode(codec.encode(state)) == state


def _is_same(one: Any, other: Any) -> bool:
    """Compare, with the types of keys: 7 is no key that a state with "7" has."""
    if isinstance(one, dict):
        return (
            isinstance(other, dict)
            and sorted(map(_typed, one)) == sorted(map(_typed, other))
            and all(_is_same(each, other[key]) for key, each in one.items())
        )
    if isinstance(one, list | tuple):
        return (
            type(one) is type(other) and len(one) == len(other) and all(map(_is_same, one, other))
        )
    if isinstance(one, msgspec.Struct):
        return type(one) is type(other) and all(
            _is_same(getattr(one, name), getattr(other, name)) for name in one.__struct_fields__
        )
    if isinstance(one, decimal.Decimal) and one.is_nan():
        return isinstance(other, decimal.Decimal) and other.is_nan()
    return bool(one == other)


def _typed(key: object) -> tuple[str, str]:
    return type(key).__name__, repr(key)


@settings(max_examples=20)
@given(
    names=st.integers(1, 80),
    key=st.none() | st.sampled_from((7, 1.5, b"ab")),
    value=st.none() | st.sampled_from((math.nan, math.inf, object(), (1, 2))),
)
def test_odd_entry_of_many_like_records_is_found(names: int, key: Any, value: Any) -> None:
    """Records with the same names, few or many, and with names of their own are checked in different ways."""
    codec: JsonState[dict[str, Any]] = JsonState(dict)
    alike = {f"record-{n}": {f"n{name}": n for name in range(names)} for n in range(60)}
    own = {f"record-{n}": {f"n{n}-{name}": n for name in range(3)} for n in range(60)}
    for state in (alike, own):
        records: dict[Any, Any] = dict(state)
        assert codec.decode(codec.encode(records)) == records
        if key is not None:
            records["record-7"] = records["record-7"] | {key: 1}
        if value is not None:
            records["record-9"] = records["record-9"] | {"n1": value}
        if key is None and value is None:
            continue
        with pytest.raises(ValueError, match=r"state\['record-[79]'\]\["):
            codec.encode(records)
