"""Comments of the code: each belongs to the line below it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from tests.support.sources import our_modules

LINES_MAX = 2
"""Lines that a comment between two definitions may have: a heading."""


def floating_comments(source: str) -> list[int]:
    """Return the first lines of the comments at the top level that stand free: longer than a heading, above a blank."""
    lines = source.splitlines()
    inside = {
        number
        for node in ast.parse(source).body
        for number in range(node.lineno, (node.end_lineno or node.lineno) + 1)
    }
    found: list[int] = []
    begin: int | None = None
    for number, line in enumerate([*lines, ""], start=1):
        if line.startswith("#") and number not in inside:
            begin = begin or number
            continue
        if begin is not None and number - begin > LINES_MAX and not line.strip():
            found.append(begin)
        begin = None
    return found


def test_comment_between_definitions_is_a_docstring_of_what_it_describes() -> None:
    """A free comment of three lines is a module docstring that lost its module: no reader knows what it is about."""
    floating = {
        f"{path}:{line}" for path, source in our_modules() for line in floating_comments(source)
    }

    assert floating == set(), "make it the docstring of its class or function, or a file of its own"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("# one\n# two\n# three\n\nx = 1\n", [1]),
        ("# one\n# two\n# three\nx = 1\n", []),
        ("# one\n# two\n\nx = 1\n", []),
        ('"""\n# one\n# two\n# three\n\n"""\n', []),
    ],
)
def test_comment_above_its_line_or_short_or_quoted_passes(source: str, expected: list[int]) -> None:
    """The rule refuses nothing else: reasons above a constant, headings, and shells in strings stay."""
    assert floating_comments(source) == expected


def test_sources_of_every_house_are_searched() -> None:
    """The rules of this folder see all of the code: a house that is not searched breaks them unseen."""
    assert {Path(path).parts[0] for path, _ in our_modules()} >= {
        "allocator",
        "bench",
        "broadsheet",
        "broker",
        "consumer",
        "examples",
        "journals",
        "leases",
        "spark_bridge",
        "tests",
    }
