"""Tables and lists of facts, for people."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import click
from rich.cells import cell_len, set_cell_size


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    below: Sequence[Sequence[str]] | None = None,
) -> None:
    """Print rows under their columns; every row has shape (len(columns),).

    A cell is never wrapped or truncated, whatever the terminal's width, because names are copied, and read by tools.
    States are coloured on a terminal: click drops the styles elsewhere.

    Args:
        columns: Their names.
        rows: The cells.
        below: Rows of the same table that were printed before, with the names of its columns; None: none were.
    """
    widths = [
        max(map(cell_len, cells)) for cells in zip(columns, *(below or ()), *rows, strict=True)
    ]
    if below is None:
        _echo("  ".join(_padded(columns, widths)).rstrip(), bold=True)
    coloured = [column in STATE_COLUMNS for column in columns]
    for row in rows:
        texts = _padded(row, widths)
        texts[-1] = texts[-1].rstrip()
        cells = [
            styled_state(text) if state else text
            for text, state in zip(texts, coloured, strict=True)
        ]
        _echo("  ".join(cells).rstrip())


def _padded(cells: Sequence[str], widths: Sequence[int]) -> list[str]:
    return [set_cell_size(cell, width) for cell, width in zip(cells, widths, strict=True)]


UNKNOWN = "UNKNOWN"
"""Shown for a value that is not known."""
STATE_COLUMNS = frozenset({"STATUS", "STATE"})
_COLOURS = {
    "PRIMARY": "green",
    "ready": "green",
    "ok": "green",
    "warn": "yellow",
    "bad": "red",
    "STANDBY": "cyan",
    "BACKFILL": "yellow",
    "IDLE": "yellow",
    "UNASSIGNED": "yellow",
    "cordoned": "yellow",
    "leaving": "yellow",
    "DISABLED": "bright_black",
    "FAILED": "red",
    "QUARANTINED": "red",
    "HELD BACK": "red",
    "STALLED": "red",
    "UNAVAILABLE": "red",
}


def styled_state(text: str) -> str:
    """Return a state in its colour; any other text as it is. Padding is allowed. `NO_COLOR` turns colours off."""
    colour = _COLOURS.get(text.strip())
    return text if colour is None or os.environ.get("NO_COLOR") else click.style(text, fg=colour)


def _echo(text: str, *, bold: bool = False) -> None:
    click.secho(text, bold=(bold and not os.environ.get("NO_COLOR")) or None)


def print_facts(facts: Mapping[str, str]) -> None:
    """Print each fact that there is, a line each."""
    for name, value in facts.items():
        if value:
            click.echo(f"{name:<14}{value}")


def print_sections(document: Mapping[str, Any], names: Sequence[str]) -> None:
    """Print the lists of a document that have something in them as tables, and its notes."""
    for name in names:
        rows = document[name]
        if rows:
            click.echo()
            click.secho(name.upper(), bold=True)
            columns = [column.upper().replace("_", " ") for column in rows[0]]
            print_table(columns, [[*map(_cell, row.values())] for row in rows])
    if document["notes"]:
        click.echo()
    for note in document["notes"]:
        click.echo(f"note: {note}")


def _cell(value: object) -> str:
    return UNKNOWN if value is None else str(value)
