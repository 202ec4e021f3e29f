"""The codec of a `JsonFileStore`'s state: what it encodes decodes to what was encoded, or it is refused with its place.

JSON has fewer values than Python, and encoders make the nearest of the others: text of a key that is a number, null of
NaN. Such a state would be counted wrong, or could not be read, only after the next restore. Therefore every state is
checked when it is encoded, in two ways:

    in columns     values of one place in all entries are checked together, by their exact types: as long as encoding
    by decoding    what has other types (times, durations, enumerations, unions of structures, subclasses, …) is decoded
                   and compared, which takes many times as long
"""

from __future__ import annotations

import datetime as dt
import math
import re
import reprlib
import uuid
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from decimal import Decimal
from itertools import chain, islice
from operator import attrgetter, countOf, itemgetter
from typing import Any, Final, Generic, TypeVar, cast

import msgspec
from msgspec import inspect

StateT = TypeVar("StateT")

_ROOT: Final = "state"
SHORT_BYTES: Final = 1024


class JsonState(Generic[StateT]):
    """Encodes and decodes states of one type."""

    def __init__(self, state_type: Any, *, short_bytes: int = SHORT_BYTES) -> None:
        """Prepare it.

        Args:
            state_type: Anything that msgspec decodes: `dict`, `dict[str, int]`, a `msgspec.Struct`, …
            short_bytes: Length up to which a text is decoded, which takes less time than to find columns.
        """
        self._short_bytes = short_bytes
        self._decoder: msgspec.json.Decoder[StateT] = msgspec.json.Decoder(state_type)
        self._encoder = msgspec.json.Encoder()
        self._type = inspect.type_info(state_type)

    def decode(self, content: bytes) -> StateT:
        """Return the state.

        Raises:
            ValueError: the content is no such state.
        """
        return self._decoder.decode(content)

    def encode(self, state: StateT) -> bytes:
        """Return the state as one line of JSON that decodes to an equal state.

        Raises:
            ValueError: there is none; the error has the place and says what to do.
        """
        try:
            content = self._encoder.encode(state)
            if len(content) <= self._short_bytes or not _survives(self._type, (state,)):
                self._compare(content, state)
        except (TypeError, UnicodeEncodeError, OverflowError) as error:
            raise ValueError(f"{_unencodable(self._encoder, state)}: {error}") from error
        except RecursionError as error:
            raise ValueError(f"{_ROOT}: it is nested too deeply, or holds itself") from error
        return content

    def _compare(self, content: bytes, state: StateT) -> None:
        try:
            decoded = self._decoder.decode(content)
        except msgspec.DecodeError as error:  # also of a wrong type
            place = _undecodable(self._decoder, content, str(error))
            # NaN and infinities have become null by now.
            null = " (which JSON has for NaN and infinities)" if "got `null`" in place else ""
            raise ValueError(
                f"{place}{null}; the next restore, which reads what state_type says, would fail"
            ) from error
        if b"\n" in content or b"\r" in content:
            raise ValueError(
                f"{_ROOT}: expected raw JSON without line breaks; use msgspec.json.format(raw, indent=-1)"
            )
        if not _are_equal(decoded, state) and (found := _difference(state, decoded, _ROOT)):
            raise ValueError(found)


# Checks in columns. A check that returns False is not sure: the state is then decoded and compared.


_SCALARS: Final[Mapping[type[inspect.Type], type]] = {
    inspect.StrType: str,
    inspect.IntType: int,
    inspect.FloatType: float,
    inspect.BoolType: bool,
    inspect.NoneType: type(None),
}
_TEXTS: Final[Mapping[type[inspect.Type], type]] = {
    inspect.BytesType: bytes,
    inspect.DateType: dt.date,
    inspect.UUIDType: uuid.UUID,
}
"""Types with one text for each value, by their declarations."""
_ARRAYS: Final[Mapping[type[inspect.Type], type]] = {
    inspect.ListType: list,
    inspect.VarTupleType: tuple,
    inspect.SetType: set,
    inspect.FrozenSetType: frozenset,
}
_DICTS: Final = frozenset((dict, Counter, defaultdict, OrderedDict))
"""Dicts that are read back as plain ones, which are equal to them. A subclass of an application may not be."""
_ANY_KINDS: Final = _DICTS | {*_SCALARS.values(), list}
_FLOATS: Final = frozenset((float,))
_LISTS: Final = frozenset((list,))


def _survives(type_: inspect.Type, values: Collection[Any]) -> bool:
    """Return True only if every value surely decodes, as `type_`, to what it is.

    Args:
        type_: Of the place in the state that the values have.
        values: All that are in this place.
    """
    if not values:
        return True
    check = _CHECKS.get(type(type_))
    return check is not None and check(type_, values)


def _scalars(type_: inspect.Type, values: Collection[Any]) -> bool:
    kind = _SCALARS[type(type_)]
    return (
        _is_plain(type_) and _are_all(kind, values) and (kind is not float or _are_finite(values))
    )


def _union(type_: inspect.UnionType, values: Collection[Any]) -> bool:
    members = type_.types
    if not all(type(each) in _SCALARS and _is_plain(each) for each in members):
        return False
    kinds = {_SCALARS[type(each)] for each in members}
    if not kinds.issuperset(map(type, values)):
        return False
    return float not in kinds or _are_finite(_of_kinds(_FLOATS, kinds, values))


def _any(type_: inspect.AnyType, values: Collection[Any]) -> bool:
    first = type(next(iter(values)))
    kinds = {first} if _are_all(first, values) else set(map(type, values))
    if not kinds <= _ANY_KINDS or not _are_finite(_of_kinds(_FLOATS, kinds, values)):
        return False
    items = list(chain.from_iterable(_of_kinds(_LISTS, kinds, values)))
    columns = _columns(_of_kinds(_DICTS, kinds, values), str)
    return columns is not None and all(
        _survives(type_, column) for column in chain((items,), columns)
    )


def _of_kinds(
    wanted: frozenset[type], kinds: set[type], values: Collection[Any]
) -> Collection[Any]:
    """Return those of some kinds.

    Args:
        wanted: The kinds.
        kinds: Of all values.
        values: Some of them may be of other kinds.
    """
    if wanted.isdisjoint(kinds):
        return ()
    return values if wanted >= kinds else [value for value in values if type(value) in wanted]


def _dict(type_: inspect.DictType, values: Collection[Any]) -> bool:
    key = _KEYS.get(type(type_.key_type))
    is_plain = _is_plain(type_) and _is_plain(type_.key_type)
    if key is None or not is_plain or not (_are_all(dict, values) or _are_dicts(values)):
        return False
    columns = _columns(values, key)
    return columns is not None and all(_survives(type_.value_type, column) for column in columns)


def _are_dicts(values: Collection[Any]) -> bool:
    return _DICTS.issuperset(map(type, values))


_KEYS: Final[Mapping[type[inspect.Type], type]] = {
    inspect.AnyType: str,
    inspect.StrType: str,
    inspect.IntType: int,
    inspect.DateType: dt.date,
    inspect.UUIDType: uuid.UUID,
}
_NAMES_MAX: Final = 32
"""Of dicts that are alike, this many values are read name by name, in half the time."""


def _columns(dicts: Collection[Any], key: type) -> Iterable[Collection[Any]] | None:
    """Return the values of dicts, in some collections; None if not all keys are of the type `key`."""
    if not dicts:
        return ()
    if len(dicts) == 1:
        only = next(iter(dicts))
        return (only.values(),) if _are_all(key, only) else None
    if len(set[Any]().union(*islice(dicts, _NAMES_MAX))) <= _NAMES_MAX:
        names = set[Any]().union(*dicts)
        if not _are_all(key, names):
            return None
        if len(names) <= _NAMES_MAX and countOf(map(len, dicts), len(names)) == len(dicts):
            return (list(map(itemgetter(name), dicts)) for name in names)
    elif not _are_all(key, list(chain.from_iterable(dicts))):
        return None
    return (list(chain.from_iterable(map(dict.values, dicts))),)


def _are_finite(floats: Collection[float]) -> bool:
    # A sum may exceed what floats hold without any of them being infinite.
    return math.isfinite(sum(floats)) or all(map(math.isfinite, floats))


def _are_all(kind: type, values: Collection[Any]) -> bool:
    return countOf(map(type, values), kind) == len(values)


def _texts(type_: inspect.Type, values: Collection[Any]) -> bool:
    return _is_plain(type_) and _are_all(_TEXTS[type(type_)], values)


def _datetimes(type_: inspect.DateTimeType, values: Collection[Any]) -> bool:
    # An offset of another zone may have seconds, which the text has not.
    return (
        _is_plain(type_)
        and _are_all(dt.datetime, values)
        and {None, dt.UTC}.issuperset(map(attrgetter("tzinfo"), values))
    )


def _decimals(type_: inspect.DecimalType, values: Collection[Any]) -> bool:
    return _is_plain(type_) and _are_all(Decimal, values) and all(map(Decimal.is_finite, values))


def _array(type_: Any, values: Collection[Any]) -> bool:  # `Any`: one of `_ARRAYS`
    if not _is_plain(type_) or not _are_all(_ARRAYS[type(type_)], values):
        return False
    return _survives(type_.item_type, list(chain.from_iterable(values)))


def _tuple(type_: inspect.TupleType, values: Collection[Any]) -> bool:
    length = len(type_.item_types)
    if not _are_all(tuple, values) or countOf(map(len, values), length) != len(values):
        return False
    return all(
        _survives(each, list(map(itemgetter(index), values)))
        for index, each in enumerate(type_.item_types)
    )


def _struct(type_: inspect.StructType | inspect.DataclassType, values: Collection[Any]) -> bool:
    # What is computed after decoding may differ from what is there.
    if hasattr(type_.cls, "__post_init__") or not _are_all(type_.cls, values):
        return False
    return all(
        _survives(field.type, list(map(attrgetter(field.name), values))) for field in type_.fields
    )


def _is_plain(type_: inspect.Type) -> bool:
    """Return whether a type has no bounds besides."""
    return all(
        getattr(type_, name) is None
        for name in type_.__struct_fields__
        if name not in ("key_type", "value_type", "item_type")
    )


_Check = Callable[[Any, Collection[Any]], bool]  # `Any`: the type of type that it is kept by
_CHECKS: Final[Mapping[type[inspect.Type], _Check]] = {
    **dict.fromkeys(_SCALARS, _scalars),
    **dict.fromkeys(_TEXTS, _texts),
    **dict.fromkeys(_ARRAYS, _array),
    inspect.UnionType: _union,
    inspect.AnyType: _any,
    inspect.DictType: _dict,
    inspect.TupleType: _tuple,
    inspect.DateTimeType: _datetimes,
    inspect.DecimalType: _decimals,
    inspect.StructType: _struct,
    inspect.DataclassType: _struct,
}


# Places of what is refused.


def _difference(value: Any, decoded: Any, place: str) -> str:
    """Return where and how a state differs from what it decodes to; empty if it does not, whatever `==` says."""
    if value is decoded or _are_equal(value, decoded):
        # As `==` says for numbers, and for an enumeration of text where text is declared.
        return ""
    if isinstance(value, dict) and isinstance(decoded, dict):
        return _difference_of_dicts(value, decoded, place)
    if type(value) is not type(decoded):
        return _unlike(value, decoded, place)
    if isinstance(value, Decimal) and str(value) == str(decoded):
        return ""  # not a number, which is not equal to itself
    members, others = dict(_members(value)), dict(_members(decoded))
    if not members or members.keys() != others.keys():
        return _unlike(value, decoded, place)
    # Also of a class whose instances are equal to themselves only.
    found = (_difference(each, others[step], place + step) for step, each in members.items())
    return next(filter(None, found), "")


def _are_equal(one: object, other: object) -> bool:
    try:
        return bool(one == other)
    except Exception:  # `==` of a class that the application wrote
        return False


def _unlike(value: object, decoded: object, place: str) -> str:
    return f"{place}: {_shown(value)} would be read back as {_shown(decoded)}; {_advice(value)}"


def _difference_of_dicts(value: dict[Any, Any], decoded: dict[Any, Any], place: str) -> str:
    for key in value:
        if key not in decoded and isinstance(key, str):
            return (
                f"{place}[{_shown(key)}]: expected a key that state_type declares, because the state would be read "
                "back without this one"
            )
        if key not in decoded:
            return (
                f"{place}[{_shown(key)}]: expected a key that is text, because JSON has no other, got "
                f"{type(key).__name__}; use str(key), or declare the type of keys, e.g. state_type=dict[int, int]"
            )
    found = (
        _difference(each, decoded[key], f"{place}[{_shown(key)}]") for key, each in value.items()
    )
    return next(filter(None, found), "")


def _advice(value: object) -> str:
    if isinstance(value, float):
        return "JSON has neither NaN nor infinities, keep None or leave the entry out"
    return "declare its type in state_type, or keep what JSON has: text, numbers, bool, None, lists and dicts"


def _members(value: object) -> Iterator[tuple[str, Any]]:
    """Yield the parts of a value, each by the step that leads to it."""
    if isinstance(value, dict):
        yield from ((f"[{_shown(key)}]", each) for key, each in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"[{index}]", each) for index, each in enumerate(value))
    elif isinstance(value, msgspec.Struct):
        yield from ((f".{name}", getattr(value, name)) for name in value.__struct_fields__)
    else:
        names = vars(value) if hasattr(value, "__dict__") else getattr(value, "__slots__", ())
        yield from ((f".{name}", getattr(value, name, None)) for name in names)


def _unencodable(encoder: msgspec.json.Encoder, state: object) -> str:
    """Return the place of what has no JSON."""
    place, value = _ROOT, state
    while True:
        if isinstance(value, dict):
            for key in value:
                if not _is_encodable(encoder, {key: None}):
                    return f"{place}[{_shown(key)}] (the key)"
        for step, each in _members(value):
            if not _is_encodable(encoder, each):
                place, value = place + step, each
                break
        else:
            return place


def _is_encodable(encoder: msgspec.json.Encoder, value: object) -> bool:
    try:
        encoder.encode(value)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


_PLACE: Final = re.compile(r"^(.*) - at `(key` in `)?\$(.*)`$")
_STEPS: Final = re.compile(r"\[\.\.\.\]|\[\d+\]|\.[^.\[]+")
_SOME_ENTRY: Final = "[...]"


def _undecodable(decoder: msgspec.json.Decoder[Any], content: bytes, error: str) -> str:
    """Return the place and the words of an error in decoding. msgspec does not say which entry of a dict it was."""
    found = _PLACE.match(error)
    if found is None:
        return f"{_ROOT}: {error}"
    problem, is_key, path = found.groups()
    place, holder = _ROOT, {"": msgspec.json.decode(content)}
    parent: Any = holder
    last: Any = ""
    for step in [*_STEPS.findall(path), *([_SOME_ENTRY] if is_key else [])]:
        node = parent[last]
        if step == _SOME_ENTRY and isinstance(node, dict):
            key = _failing_entry(decoder, holder, (parent, last), node)
            place, parent, last = f"{place}[{_shown(key)}]", parent[last], key
        elif step.startswith(".") and isinstance(node, dict):
            place, parent, last = place + step, node, step[1:]
        elif step[1:-1].isdecimal() and isinstance(node, list):
            place, parent, last = place + step, node, int(step[1:-1])
        else:
            place += step
            break
    return f"{place}{' (the key)' if is_key else ''}: {problem}"


def _failing_entry(
    decoder: msgspec.json.Decoder[Any], holder: dict[str, Any], at: tuple[Any, Any], node: Any
) -> str:
    """Return the key of an entry that alone cannot be decoded, and leave it alone in its dict."""
    parent, last = at
    for key, value in node.items():
        parent[last] = {key: value}
        try:
            decoder.decode(msgspec.json.encode(holder[""]))
        except msgspec.DecodeError:
            return cast("str", key)
    parent[last] = node
    return cast("str", next(iter(node)))


def _shown(value: object) -> str:
    return reprlib.repr(value)
