"""Tables as HTML. Every text is escaped, because names and errors come from others; rows and cells are bounded."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import Final

ROWS_MAX: Final = 50
"""Rows that are shown; those beyond are counted. A cell's output is kept in the notebook's file."""
NOTES_MAX: Final = 10
"""Notes below a table that are shown."""
CELL_CHARACTERS_MAX: Final = 500
_LINKS: Final = ("http://", "https://")


def html_table(
    title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], *, notes: Iterable[str] = ()
) -> str:
    """Return a table with a title above it and notes below it.

    Args:
        title: Plain text, like all others.
        columns: Their names.
        rows: Cells, of shape (rows, len(columns)); one that is a URL becomes a link.
        notes: Lines below the table.
    """
    head = "".join(f"<th>{_text(column)}</th>" for column in columns)
    body = "".join(
        f"<tr>{''.join(f'<td>{_cell(cell)}</td>' for cell in row)}</tr>" for row in rows[:ROWS_MAX]
    )
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>" if rows else ""
    below = list(notes)
    left_out = [
        f"{hidden} more {what}"
        for hidden, what in ((len(rows) - ROWS_MAX, "rows"), (len(below) - NOTES_MAX, "notes"))
        if hidden > 0
    ]
    lines = "".join(f"<div>{_text(note)}</div>" for note in (*below[:NOTES_MAX], *left_out))
    return f"<div><b>{_text(title)}</b>{table}{lines}</div>"


def _text(text: str) -> str:
    if len(text) > CELL_CHARACTERS_MAX:
        text = f"{text[:CELL_CHARACTERS_MAX]}…"
    return escape(text)


def _cell(text: str) -> str:
    # Of these schemes alone: `javascript:` would be run.
    if text.startswith(_LINKS) and len(text) <= CELL_CHARACTERS_MAX:
        return f'<a href="{escape(text)}" rel="noreferrer">{escape(text)}</a>'
    return _text(text)
