"""Lists: what kubectl prints of one, how, and how one is watched."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import click
from click.shell_completion import CompletionItem

from broadsheet.cli.output.jsonpath import Steps, parse_jsonpath
from broadsheet.cli.output.messages import say
from broadsheet.cli.output.tables import STATE_COLUMNS, print_table
from broadsheet.runtime.errors import EndpointError, ValidationError


@dataclass(frozen=True, slots=True)
class ListFormat:
    """The form in which a list is printed."""

    name: str
    """table, wide, name, yaml, json or jsonpath."""
    path: Steps = ()
    """Of a jsonpath."""

    @property
    def has_rows(self) -> bool:
        """Report whether it is printed row by row, and so can be watched."""
        return self.name in {"table", "wide", "name"}


_JSONPATH = "jsonpath="


class ListFormatType(click.ParamType):  # type: ignore[type-arg]  # generic in later versions only
    """The value of a list's `-o`."""

    name = "format"
    names = ("table", "wide", "name", "yaml", "json")

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> ListFormat:
        """Return the format that a text names."""
        if isinstance(value, ListFormat):
            return value
        if value in self.names:
            return ListFormat(value)
        if not value.startswith(_JSONPATH):
            choices = ", ".join((*self.names, f"{_JSONPATH}PATH"))
            self.fail(f"expected one of {choices}, got {value!r}", param, ctx)
        try:
            return ListFormat("jsonpath", parse_jsonpath(value.removeprefix(_JSONPATH)))
        except ValidationError as error:
            self.fail(error.problem, param, ctx)

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        """Return the formats that begin so."""
        del ctx, param
        return [
            CompletionItem(name) for name in (*self.names, _JSONPATH) if name.startswith(incomplete)
        ]


@dataclass(frozen=True, slots=True)
class ListColumns:
    """Columns of a list that are shown when they are asked for."""

    labels: Sequence[str] = ()
    """Of these names, a column each."""
    wide: bool = False
    replicas: bool = False
    """Of shards."""
    lag: bool = False
    """Of shards: unread bytes."""


@dataclass(frozen=True, slots=True)
class Rows:
    """A list as a table."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    """Of shape (len(columns),) each; the first cell is the key."""
    notes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """What else is to be said of a row, by its key."""
    nothing: str = ""
    """Said if there are no rows."""

    def show(self, *, only_names: bool) -> None:
        """Print all of it: results on standard output, notes on standard error."""
        if only_names:
            for row in self.rows:
                click.echo(row[0])
        else:
            print_table(self.columns, self.rows)
        for notes in self.notes.values():
            for note in notes:
                say(note)
        if not self.rows and self.nothing:
            say(self.nothing)


Seen = Rows | EndpointError | TimeoutError
"""One state of a watched list, or why there is none at the moment."""


class Table(ABC):
    """A list as rows."""

    @abstractmethod
    async def look(self) -> Rows:
        """Return the rows of now."""

    async def follow(self, *, interval_seconds: float) -> AsyncGenerator[Seen, None]:
        """Yield the rows again and again, without end.

        Raises:
            ServiceError, AllocatorError, TimeoutError: the first look failed.
        """
        yield await self.look()
        while True:
            await asyncio.sleep(interval_seconds)
            try:
                seen: Seen = await self.look()
            except (EndpointError, TimeoutError) as error:
                seen = error
            yield seen


async def watch_rows(states: AsyncGenerator[Seen, None], *, only_names: bool) -> None:
    """Print a list, and then each row that changes, until cancelled.

    If the server stops answering, one line says so.

    Args:
        states: The list, first as it is and then as it becomes; closed at the end.
        only_names: Print the first cell of each row alone.
    """
    async with aclosing(states):
        await _print_changes(states, only_names=only_names)


async def _print_changes(states: AsyncGenerator[Seen, None], *, only_names: bool) -> None:
    shown = await anext(states)
    if not isinstance(shown, Rows):
        raise shown
    shown.show(only_names=only_names)
    state = next((i for i, name in enumerate(shown.columns) if name in STATE_COLUMNS), None)
    lost = False
    async for now in states:
        if not isinstance(now, Rows):
            if not lost:
                say(f"{' '.join(str(now).split())}; still watching")
            lost = True
            continue
        lost = False
        changed = changed_rows(shown, now, state=state)
        if only_names:
            for row in changed:
                click.echo(row[0])
        else:
            print_table(now.columns, changed, below=shown.rows)
        for key, notes in now.notes.items():
            for note in notes:
                if note not in shown.notes.get(key, ()):
                    say(note)
        shown = now


def changed_rows(before: Rows, after: Rows, *, state: int | None) -> list[Sequence[str]]:
    """Return the rows that are new or differ, and those that are gone, which say DELETED.

    Args:
        before: As shown last.
        after: As of now.
        state: Index of the column that says it; None: the last one does.
    """
    known = {row[0]: row for row in before.rows}
    present = {row[0] for row in after.rows}
    changed = [row for row in after.rows if known.get(row[0]) != row]
    for key, row in known.items():
        if key not in present:
            gone = [*row]
            gone[-1 if state is None else state] = "DELETED"
            changed.append(gone)
    return changed
