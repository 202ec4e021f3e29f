"""Files of specs: a file, a directory's files, or `-` for standard input."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

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
