"""Mistakes of a YAML document that does not fit its type: the line, the place, and the field that was probably meant.

A document that fits is never read for this: the first reader makes values without their lines, and only a document that
was refused is read once more, with them.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import yaml
from msgspec import inspect

_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MERGE = "tag:yaml.org,2002:merge"
_PLACE = re.compile(r"(?P<problem>.*) - at `(?:key in )?\$(?P<path>[^`]*)`", re.DOTALL)
"""The message of msgspec about a value."""
_STEP = re.compile(r"\.(?P<field>[^.\[]+)|\[(?P<index>\d+)\]")
_TERMS = {
    "Object missing required field": "missing required field",
    "Expected": "expected",
    "`object`": "a map",
    "`array`": "a list",
    "`str`": "text",
}
LIKENESS_MIN = 0.7
"""Likeness of two names from which one is taken for the other, as `difflib` counts it: 1 is the same."""


def explain_misfit(text: str, document_type: type[object], error: msgspec.ValidationError) -> str:
    """Return the problem of a document that a type refused, with the line where that can be told.

    Args:
        text: The YAML; it is well-formed.
        document_type: The type that refused it, a msgspec Struct.
        error: The refusal.
    """
    root = yaml.compose(text, Loader=_LOADER)
    assert root is not None, "an empty document is refused before"
    fields = inspect.type_info(document_type)
    unknown = next(_unknown_fields(root, fields, "", set()), None)
    if unknown is not None:
        return unknown.text(_places_of_fields(fields))
    said = _in_words_of_yaml(str(error))
    found = _PLACE.fullmatch(said)
    if found is None:
        return f"line {_line(root)}: {said}"
    path = found["path"].removeprefix(".")
    return f"line {_line(_node_at(root, found['path']))}: {path}: {found['problem']}"


def _in_words_of_yaml(message: str) -> str:
    """Return a message of msgspec, which speaks of JSON, with the terms of YAML."""
    for term, words in _TERMS.items():
        message = message.replace(term, words)
    return message


@dataclass(frozen=True, slots=True)
class _UnknownField:
    line: int
    path: str
    """Of the map that has it; empty: of the document."""
    name: str
    known: tuple[str, ...]
    """Fields that the map may have."""

    def text(self, places: Mapping[str, list[str]]) -> str:
        """Return the message.

        Args:
            places: Where in the document a field may be, by its name.
        """
        where = f"{self.path}: " if self.path else ""
        return f"line {self.line}: {where}unknown field `{self.name}`: {self._advice(places)}"

    def _advice(self, places: Mapping[str, list[str]]) -> str:
        # A field that is right elsewhere was put too high or too deep; it is no misspelling of another.
        if elsewhere := places.get(self.name):
            return f"it belongs {' or '.join(elsewhere)}"
        if like := _most_like(self.name, self.known):
            return f"did you mean `{like}`?"
        if like := _most_like(self.name, places):
            return f"did you mean `{like}`, which belongs {' or '.join(places[like])}?"
        return f"expected one of {', '.join(f'`{name}`' for name in self.known)}"


def _most_like(name: str, known: Iterable[str]) -> str:
    """Return the known name that was probably meant; empty if none is like it."""
    by_letters = {_letters(each): each for each in known}
    like = difflib.get_close_matches(_letters(name), by_letters, n=1, cutoff=LIKENESS_MIN)
    return by_letters[like[0]] if like else ""


def _letters(name: str) -> str:
    """Return a name as it is compared: `hotStandbys` and `hot-standbys` are `hot_standbys`."""
    return re.sub(r"[_\-\s]", "", name).casefold()


def _unknown_fields(
    node: yaml.Node, fields: inspect.Type, path: str, seen: set[tuple[int, int]]
) -> Iterator[_UnknownField]:
    """Find fields that structs do not have, in the order of the text."""
    # An alias may lead back into what it is part of.
    if (id(node), id(fields)) in seen:
        return
    seen.add((id(node), id(fields)))
    if isinstance(fields, inspect.UnionType):
        for each in fields.types:
            yield from _unknown_fields(node, each, path, seen)
    elif isinstance(node, yaml.SequenceNode):
        item = _item_type(fields)
        for index, child in enumerate(node.value if item is not None else ()):
            yield from _unknown_fields(child, item, f"{path}[{index}]", seen)
    elif isinstance(node, yaml.MappingNode) and isinstance(fields, inspect.DictType):
        for key, value in node.value:
            place = f"{path}.{key.value}".removeprefix(".")
            yield from _unknown_fields(value, fields.value_type, place, seen)
    elif isinstance(node, yaml.MappingNode) and isinstance(fields, inspect.StructType):
        yield from _unknown_of_struct(node, fields, path, seen)


def _unknown_of_struct(
    node: yaml.MappingNode, struct: inspect.StructType, path: str, seen: set[tuple[int, int]]
) -> Iterator[_UnknownField]:
    known = {each.encode_name: each.type for each in struct.fields}
    for key, value in node.value:
        if key.tag == _MERGE:
            # `<<: *shared`, or a list of such: their fields are fields of this map.
            merged = value.value if isinstance(value, yaml.SequenceNode) else [value]
            for each in merged:
                yield from _unknown_fields(each, struct, path, seen)
        elif not isinstance(key, yaml.ScalarNode):
            continue
        elif key.value in known:
            place = f"{path}.{key.value}".removeprefix(".")
            yield from _unknown_fields(value, known[key.value], place, seen)
        elif struct.forbid_unknown_fields:
            yield _UnknownField(_line(key), path, key.value, tuple(known))


def _item_type(
    fields: inspect.Type,
) -> Any:  # Any: the library's types of collections have no common one
    return getattr(fields, "item_type", None)


def _places_of_fields(root: inspect.Type) -> dict[str, list[str]]:
    """Return where fields may be, by their names: `in the document`, `in `fragment``, `in an entry of `shards``."""
    places: dict[str, list[str]] = {}
    seen: set[type] = set()

    def visit(fields: inspect.Type, place: str) -> None:
        if isinstance(fields, inspect.UnionType):
            for each in fields.types:
                visit(each, place)
        elif isinstance(fields, inspect.StructType) and fields.cls not in seen:
            seen.add(fields.cls)
            for field in fields.fields:
                places.setdefault(field.encode_name, []).append(place)
            for field in fields.fields:
                visit(field.type, f"in `{field.encode_name}`")
        elif (item := _item_type(fields) or getattr(fields, "value_type", None)) is not None:
            visit(item, place.replace("in ", "in an entry of ", 1))

    visit(root, "at the top")
    return places


def _node_at(root: yaml.Node, path: str) -> yaml.Node:
    """Return the node at a path such as `.shards[0].id`, or the nearest above it."""
    node = root
    for step in _STEP.finditer(path):
        if isinstance(node, yaml.MappingNode) and step["field"]:
            values = [value for key, value in node.value if key.value == step["field"]]
        elif isinstance(node, yaml.SequenceNode) and step["index"]:
            values = node.value[int(step["index"]) :][:1]
        else:
            values = []
        if not values:
            break
        node = values[0]
    return node


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1
