"""DynamoDB attribute values, e.g. `{"S": "worker-1"}`, and their JSON notation.

An attribute that no layout knows is kept in `LeaseRecord.attrs` as JSON, so that it survives a move to another store:

    N   12.5       S   "text"        BOOL   true       NULL   null
    L   [1, "a"]   M   {"a": 1}      SS     {"SS": ["a", "b"]}, and so NS, B, BS, in base64

A map whose only name is that of a type is written as {"M": {"SS": 1}}.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from broadsheet.leases.errors import InvalidStateError

if TYPE_CHECKING:
    from boto3.dynamodb.types import TypeSerializer

Value = Mapping[str, Any]  # Any: text, bytes, lists, by the one key, which is the type.
"""An attribute's value."""

Item = Mapping[str, Value]
"""A row: values by the names of their attributes."""

_SETS: Final = frozenset({"SS", "NS", "BS"})
_TAGS: Final = _SETS | {"B", "M"}


class _Number(str):
    """A JSON number, kept as its digits."""

    __slots__ = ()


def value_of(plain: str | int | bytes | frozenset[str]) -> Value:
    """Return an S, an N, a B or an SS, by the type of what it holds.

    Raises:
        InvalidStateError: a number has more digits than DynamoDB keeps, 38.
    """
    try:
        return canonical(_serializer().serialize(plain))
    except ArithmeticError as error:
        raise InvalidStateError(f"DynamoDB cannot hold the number {plain!s:.80}") from error


def values_of(plain: Mapping[str, str | int | bytes | frozenset[str] | None]) -> dict[str, Value]:
    """Return the attributes of a row, without those that are None or an empty set: DynamoDB has no empty one."""
    return {
        name: value_of(value)
        for name, value in plain.items()
        if value is not None and value != frozenset()
    }


@cache
def _serializer() -> TypeSerializer:
    # Not above: layouts are read, and compared by imports, where the extra is not installed.
    from boto3.dynamodb.types import TypeSerializer

    return TypeSerializer()


def text_of(item: Item, name: str) -> str | None:
    """Return the S of that name; None if it is absent.

    Raises:
        TypeError: it is of another type.
    """
    value = _of_type(item, name, "S")
    return None if value is None else str(value)


def number_of(item: Item, name: str) -> int | None:
    """Return the N of that name, a whole number; None if it is absent.

    Raises:
        TypeError: it is of another type.
        ValueError: it is not whole.
    """
    value = _of_type(item, name, "N")
    return None if value is None else int(value)


def binary_of(item: Item, name: str) -> bytes | None:
    """Return the B of that name; None if it is absent.

    Raises:
        TypeError: it is of another type.
    """
    value = _of_type(item, name, "B")
    return None if value is None else bytes(value)


def text_set_of(item: Item, name: str) -> frozenset[str]:
    """Return the SS of that name; empty if it is absent.

    Raises:
        TypeError: it is of another type.
    """
    return frozenset(_of_type(item, name, "SS") or ())


def canonical(value: Value) -> Value:
    """Return a value with sorted sets, so that equal values compare equal."""
    kind, content = _parts(value)
    return {kind: sorted(content)} if kind in _SETS else value


def to_json(value: Value) -> str:
    """Write a value as JSON."""
    kind, content = _parts(value)
    if kind == "N":
        return str(content)
    if kind == "L":
        return f"[{','.join(map(to_json, content))}]"
    if kind == "M":
        fields = (f"{_compact(name)}:{to_json(each)}" for name, each in content.items())
        written = f"{{{','.join(fields)}}}"
        return f'{{"M":{written}}}' if _TAGS.issuperset(content) and len(content) == 1 else written
    plain = {"S": content, "BOOL": content, "NULL": None}
    return _compact(plain[kind] if kind in plain else {kind: _plain(kind, content)})


def from_json(written: str) -> Value:
    """Parse a value from JSON.

    Raises:
        ValueError: this is no JSON.
    """
    return _value(json.loads(written, parse_int=_Number, parse_float=_Number))


def to_plain(value: Value) -> dict[str, Any]:  # Any: as JSON has it.
    """Convert a value to JSON types, always with its DynamoDB type."""
    kind, content = _parts(value)
    return {kind: _plain(kind, content)}


def from_plain(plain: Mapping[str, Any]) -> Value:  # Any: as JSON has it.
    """Convert the result of `to_plain` back."""
    kind, content = _parts(plain)
    if kind == "B":
        return {kind: base64.b64decode(content, validate=True)}
    if kind == "BS":
        return {kind: [base64.b64decode(each, validate=True) for each in content]}
    if kind == "L":
        return {kind: [from_plain(each) for each in content]}
    if kind == "M":
        return {kind: {name: from_plain(each) for name, each in content.items()}}
    return {kind: content}


def _plain(kind: str, content: Any) -> Any:  # Any: by type.
    if kind in _SETS:
        content = sorted(content)
    if kind == "B":
        return base64.b64encode(content).decode()
    if kind == "BS":
        return [base64.b64encode(each).decode() for each in content]
    if kind == "L":
        return [to_plain(each) for each in content]
    if kind == "M":
        return {name: to_plain(each) for name, each in content.items()}
    return content


def _value(parsed: Any) -> Value:  # Any: whatever JSON holds.
    if isinstance(parsed, _Number):
        return {"N": str(parsed)}
    if isinstance(parsed, str):
        return {"S": parsed}
    if isinstance(parsed, bool):
        return {"BOOL": parsed}
    if parsed is None:
        return {"NULL": True}
    if isinstance(parsed, list):
        return {"L": [_value(each) for each in parsed]}
    return _tagged(parsed) or {"M": {name: _value(each) for name, each in parsed.items()}}


def _tagged(parsed: Mapping[str, Any]) -> Value | None:  # Any: whatever JSON holds.
    """Parse the notation of a type that JSON lacks; return None if this is no such notation."""
    if len(parsed) != 1:
        return None
    kind, content = _parts(parsed)
    if kind == "M" and isinstance(content, dict):
        return {"M": {name: _value(each) for name, each in content.items()}}
    members = content if kind in _SETS else [content]
    is_ours = isinstance(members, list) and members and kind in _SETS | {"B"}
    if not is_ours or not all(type(each) is str for each in members):
        return None
    try:
        return from_plain(parsed)
    except ValueError:  # Not base64, or characters outside its alphabet.
        return None


def _compact(plain: Any) -> str:  # Any: whatever JSON holds.
    return json.dumps(plain, separators=(",", ":"), ensure_ascii=False)


def _parts(value: Mapping[str, Any]) -> tuple[str, Any]:  # Any: by type.
    ((kind, content),) = value.items()
    return kind, content


def _of_type(item: Item, name: str, kind: str) -> Any:  # Any: by type.
    value = item.get(name)
    if value is None:
        return None
    if kind not in value:
        raise TypeError(f"attribute {name}: expected type {kind}, got {'/'.join(value)}")
    return value[kind]
