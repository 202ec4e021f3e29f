"""Errors in the words of the file that the user wrote, not of the request that was made of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from allocator.errors import ValidationError

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
    """Refuse a file that asks for nothing, as a wrong one does, or for two things of one name.

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
