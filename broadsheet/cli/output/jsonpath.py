"""Paths into a document, as kubectl's `-o jsonpath=` has them."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import TypeAlias

import click

from broadsheet.runtime.errors import ValidationError

Steps: TypeAlias = tuple[str | int | None, ...]
"""Steps of a path: a field, an index, or None for each."""

_STEP = re.compile(
    r"""\.(?P<field>[\w-]+) | \.?\[ (?:(?P<index>-?\d+) | (?P<each>\*) | '(?P<quoted>[^']+)') \] | (?P<all>\.\*)""",
    re.VERBOSE,
)


def parse_jsonpath(text: str) -> Steps:
    """Return the steps of a path such as `{.shards[*].spec.id}`; braces and a leading `$` may be left out.

    Raises:
        ValidationError: it is no such path. Filters, slices, unions and ranges are not: jq has them.
    """
    path = text.strip()
    if path.startswith("{") and path.endswith("}"):
        path = path[1:-1].strip()
    path = path.removeprefix("$")
    steps: list[str | int | None] = []
    at = 0
    while at < len(path):
        step = _STEP.match(path, at)
        if step is None:
            raise ValidationError(
                "jsonpath",
                f"expected .FIELD, [N] or [*] at {path[at:]!r}; for more than that: -o json | jq",
            )
        field, index = step["field"] or step["quoted"], step["index"]
        steps.append(int(index) if index is not None else field)
        at = step.end()
    return tuple(steps)


def select_path(document: object, steps: Steps) -> list[object]:
    """Return the values at a path; a field or index that is not there has none."""
    found = [document]
    for step in steps:
        found = [value for each in found for value in _stepped(each, step)]
    return found


def _stepped(value: object, step: str | int | None) -> Sequence[object]:
    if step is None:
        return (
            [*value.values()]
            if isinstance(value, dict)
            else value
            if isinstance(value, list)
            else []
        )
    if isinstance(step, str):
        return [value[step]] if isinstance(value, dict) and step in value else []
    return [value[step]] if isinstance(value, list) and -len(value) <= step < len(value) else []


def print_path(document: object, steps: Steps) -> None:
    """Print the values at a path, each on a line: text as it is, all else as JSON."""
    for value in select_path(document, steps):
        click.echo(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
