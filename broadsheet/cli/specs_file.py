"""Files of specs: the `--specs` option, a file or `-` for standard input; and durations as text.

Source: the syntax of durations is that of Go's `time.ParseDuration`, which Gazette's YAML uses.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from decimal import Decimal
from pathlib import Path

from google.protobuf.duration_pb2 import Duration

from broadsheet.cli.standard_text import read_standard_input
from broadsheet.runtime.errors import ValidationError

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
        text = read_standard_input() if str(path) == "-" else path.read_text(encoding="utf-8")
    except OSError as error:
        raise ValidationError(option, f"cannot read {name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValidationError(option, f"{name} is not UTF-8 text") from error
    return text, name


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
