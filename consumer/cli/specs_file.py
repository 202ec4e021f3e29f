"""Files of specs: the `--specs` option, a file or `-` for standard input; strict YAML; and durations as text.

Source: the syntax of durations is that of Go's `time.ParseDuration`, which Gazette's YAML uses.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml
from google.protobuf.duration_pb2 import Duration

from broadsheet.allocator.errors import ValidationError

SUFFIXES = frozenset({".yaml", ".yml"})
"""Of the files that are read of a directory."""


def specs_files(paths: Sequence[Path]) -> list[Path]:
    """Return the files that paths name: those of a directory by name, without its subdirectories.

    Raises:
        ValidationError: a directory has none.
    """
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            found.append(path)
            continue
        files = sorted(each for each in path.iterdir() if each.suffix in SUFFIXES)
        if not files:
            raise ValidationError("--filename", f"{path} has no file *.yaml or *.yml")
        found += files
    return found


def read_text(path: Path, *, option: str = "--specs") -> tuple[str, str]:
    """Return (text, name for error messages) of a specs file; `-` is standard input.

    Raises:
        ValidationError: it cannot be read or is not UTF-8.
    """
    name = "standard input" if str(path) == "-" else str(path)
    try:
        text = sys.stdin.read() if str(path) == "-" else path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValidationError(option, f"cannot read {name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValidationError(option, f"{name} is not UTF-8 text") from error
    return text, name


# Strict YAML: unknown keys and wrong types are errors that name the place.
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
        return msgspec.convert(raw, document_type)
    except msgspec.ValidationError as error:
        raise ValidationError(source, str(error)) from error


class _PlainLoader(_FAST_LOADER):  # type: ignore[misc, valid-type]  # one of two classes
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
                return {self._plain(key): self._plain(value) for key, value in pairs}
        elif tag == _LIST and type(node) is yaml.SequenceNode:
            return [self._plain(each) for each in node.value]
        return self.construct_object(node, deep=True)


def _loader_of(text: str) -> type[Any]:
    """Return what loads a text: the library's own, if it may have anchors, aliases or merges."""
    return _FAST_LOADER if any(mark in text for mark in ("&", "*", "<<")) else _PlainLoader


def _loaded(text: str) -> Any:
    try:
        return yaml.load(text, _loader_of(text))  # noqa: S506 - as safe as the library's
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


# Errors refer to the file that the user wrote, not to the request that was made from it.
_CHANGE = re.compile(r"changes\[(\d+)\](?:\.upsert|\.delete)?")


@contextmanager
def errors_name_places(source: str, places: Sequence[str]) -> Iterator[None]:
    """Turn `changes[1].upsert.sources[0]` of an error into `FILE: shards[1].sources[0]`.

    Args:
        source: The file's name.
        places: Where in the file each change was read.

    Raises:
        ValidationError: one was raised inside.
    """
    try:
        yield
    except ValidationError as error:
        match = _CHANGE.match(error.field_path)
        if match is None:
            raise
        path = places[int(match[1])] + error.field_path[match.end() :]
        raise ValidationError(f"{source}: {path}", error.problem) from error


def require_distinct(source: str, names: Sequence[str], places: Sequence[str]) -> None:
    """Refuse a file without any change, which is probably the wrong file, and one with two changes of one name.

    Args:
        source: The file's name.
        names: Of what each change is about.
        places: Where in the file each change was read.

    Raises:
        ValidationError: it does; the message names the second place.
    """
    if not names:
        raise ValidationError(source, "declares nothing")
    first_place: dict[str, str] = {}
    for name, place in zip(names, places, strict=True):
        if name in first_place:
            raise ValidationError(
                f"{source}: {place}", f"{name!r} is declared already, by {first_place[name]}"
            )
        first_place[name] = place


# Stale revisions of a refused apply, explained spec by spec.

NAMED_MAX = 10
"""Specs named in the message; the rest are counted."""


def describe_conflicts(expected: Iterable[tuple[str, int]], stored: Mapping[str, int]) -> str:
    """Return the differences, or an empty text if there are none by now.

    Args:
        expected: (id, revision that the change demands) of each change; -1 demands nothing.
        stored: Present mod revision by id.
    """
    problems = []
    for spec_id, revision in expected:
        current = stored.get(spec_id, 0)
        if revision in (current, -1):
            continue
        now = f"is at revision {current}" if current else "does not exist"
        problems.append(f"{spec_id} {now}, the file says {revision}")
    more = f"; and {len(problems) - NAMED_MAX} more" if len(problems) > NAMED_MAX else ""
    return "; ".join(problems[:NAMED_MAX]) + more


# Durations as they are written in specs: `1s`, `250ms`, `1m30s`.

_NANOSECONDS_BY_UNIT = {
    "ns": 1,
    "us": 1_000,
    "µs": 1_000,
    "ms": 1_000_000,
    "s": 1_000_000_000,
    "m": 60_000_000_000,
    "h": 3_600_000_000_000,
}
_TERM = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|ms|s|m|h)")


def parse_duration(text: str, field_path: str) -> Duration:
    """Return the duration that `text` denotes.

    Raises:
        ValidationError: `text` is no duration; the message names `field_path`.
    """
    unsigned = text.removeprefix("-")
    terms = list(_TERM.finditer(unsigned))
    if unsigned != "0" and (not terms or "".join(term.group() for term in terms) != unsigned):
        raise ValidationError(
            field_path, f"expected a duration such as 500ms, 1s or 1m30s, got {text!r}"
        )
    nanoseconds = sum(
        int(Decimal(term.group(1)) * _NANOSECONDS_BY_UNIT[term.group(2)]) for term in terms
    )
    duration = Duration()
    duration.FromNanoseconds(-nanoseconds if text.startswith("-") else nanoseconds)
    return duration


def format_duration(duration: Duration) -> str:
    """Return the shortest text that `parse_duration` reads back; empty for zero."""
    nanoseconds = duration.ToNanoseconds()
    if nanoseconds == 0:
        return ""
    sign, rest = ("-", -nanoseconds) if nanoseconds < 0 else ("", nanoseconds)
    if rest < _NANOSECONDS_BY_UNIT["s"]:
        return sign + _below_a_second(rest)
    hours, rest = divmod(rest, _NANOSECONDS_BY_UNIT["h"])
    minutes, rest = divmod(rest, _NANOSECONDS_BY_UNIT["m"])
    seconds = Decimal(rest) / _NANOSECONDS_BY_UNIT["s"]
    parts = [f"{hours}h" if hours else "", f"{minutes}m" if minutes else ""]
    return sign + "".join(parts) + (f"{seconds.normalize():f}s" if seconds else "")


def _below_a_second(nanoseconds: int) -> str:
    for unit in ("ms", "us", "ns"):
        amount = Decimal(nanoseconds) / _NANOSECONDS_BY_UNIT[unit]
        if amount >= 1:
            return f"{amount.normalize():f}{unit}"
    raise AssertionError("a positive duration has at least one nanosecond")
