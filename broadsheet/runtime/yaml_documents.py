"""Typed documents as YAML. Unknown keys, keys that are there twice and wrong types are errors that name the place."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
import yaml

from broadsheet.runtime.errors import ValidationError

_FAST_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's where it is there: a file of 10,000 shards takes much less time."""
_FAST_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
_TEXT, _LIST, _MAP = (f"tag:yaml.org,2002:{kind}" for kind in ("str", "seq", "map"))
DocumentT = TypeVar("DocumentT")


def decode_yaml(text: str, document_type: type[DocumentT], source: str) -> DocumentT:
    """Parse YAML into a typed document.

    Args:
        text: The YAML.
        document_type: A msgspec Struct type.
        source: Where the text came from, for error messages.

    Raises:
        ValidationError: the text is no YAML, or does not fit the type.
    """
    try:
        raw = _loaded(text)
    # The library lets errors of Python through: of numbers that are none, and of text that is nested too deep.
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise ValidationError(source, f"is not YAML: {_one_line(error)}") from error
    if raw is None:
        raise ValidationError(source, "is empty")
    try:
        return _converted(raw, document_type, text, source)
    except RecursionError as error:
        problem = "is nested too deep, or an alias is part of what it stands for"
        raise ValidationError(source, problem) from error


def _converted(raw: Any, document_type: type[DocumentT], text: str, source: str) -> DocumentT:
    try:
        return msgspec.convert(raw, document_type)
    except msgspec.ValidationError as error:
        # Imported here: a document that fits has no mistakes to explain.
        from broadsheet.runtime.yaml_mistakes import explain_misfit

        raise ValidationError(source, explain_misfit(text, document_type, error)) from error


class _DuplicateKeyError(yaml.constructor.ConstructorError):
    """A map has a key twice. YAML forbids that, and PyYAML takes the last one in silence."""


def _require_distinct_keys(node: yaml.MappingNode) -> None:
    found: set[tuple[str, str]] = set()
    for key, _ in node.value:
        if type(key) is not yaml.ScalarNode:
            continue
        if (key.tag, key.value) in found:
            problem = f"the key {key.value!r:.80} is there already"
            raise _DuplicateKeyError(None, None, problem, key.start_mark)
        found.add((key.tag, key.value))


class _StrictLoader(_FAST_LOADER):  # type: ignore[misc, valid-type]  # one of two classes
    """The library's, but that no key is there twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> Any:
        """Return the value of a map."""
        _require_distinct_keys(node)
        return super().construct_mapping(node, deep)


class _PlainLoader(_StrictLoader):
    """Makes texts, lists and maps without the library's generators, which take a third of the time."""

    def construct_document(self, node: yaml.Node) -> Any:
        """Return the value of a document."""
        return self._plain(node)

    def _plain(self, node: yaml.Node) -> Any:
        tag = node.tag
        if tag == _TEXT and type(node) is yaml.ScalarNode:
            return node.value
        if tag == _MAP and type(node) is yaml.MappingNode:
            pairs = node.value
            if all(type(key) is yaml.ScalarNode for key, _ in pairs):
                made = {self._plain(key): self._plain(value) for key, value in pairs}
                if len(made) < len(pairs):
                    _require_distinct_keys(node)
                return made
        elif tag == _LIST and type(node) is yaml.SequenceNode:
            return [self._plain(each) for each in node.value]
        return self.construct_object(node, deep=True)


def _loader_of(text: str) -> type[Any]:
    """Return what loads a text: the library's own way, if it may have anchors, aliases or merges."""
    return _StrictLoader if any(mark in text for mark in ("&", "*", "<<")) else _PlainLoader


def _loaded(text: str) -> Any:
    try:
        return yaml.load(text, _loader_of(text))  # noqa: S506 - as safe as the library's
    except _DuplicateKeyError:
        raise
    except (yaml.YAMLError, ValueError, RecursionError):
        # The other loader says more clearly where it is wrong.
        return yaml.safe_load(text)


def _one_line(error: Exception) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark is not None:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}"
    return " ".join(str(error).split())


def encode_yaml(document: object) -> str:
    """Return a document as YAML, fields in their declared order, without fields that have their default."""
    builtins = msgspec.to_builtins(document)
    return str(yaml.dump(builtins, Dumper=_FAST_DUMPER, sort_keys=False, allow_unicode=True))
