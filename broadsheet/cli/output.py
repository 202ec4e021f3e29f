"""Output of commands: a table for people, YAML or JSON for programs.

Results go to stdout, everything else to stderr.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message
from rich.cells import cell_len, set_cell_size

from broadsheet.cli.lazy_group import ExitStatus
from broadsheet.consumer.errors import ShardNotFoundError
from broadsheet.journals.errors import JournalNotFoundError
from broadsheet.runtime.errors import (
    BroadsheetError,
    EndpointError,
    RpcFailedError,
    ValidationError,
    os_error_text,
)
from broadsheet.runtime.yaml_documents import encode_yaml
from broadsheet.wire.errors import ApplyConflictError

CommandT = TypeVar("CommandT", bound=Callable[..., Any])


class OutputFormat(Enum):
    """Format of a printed result."""

    TABLE = "table"
    YAML = "yaml"
    JSON = "json"


selector_option = click.option(
    "-l",
    "--selector",
    default="",
    show_default=False,
    help="Label selector, e.g. 'app=flights, id:prefix=flights/'; empty selects all.",
)


def format_option(*formats: OutputFormat) -> Callable[[CommandT], CommandT]:
    """Return the option that chooses how results are printed; the first format is the default."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice([chosen.value for chosen in formats]),
        default=formats[0].value,
        show_default=True,
        help="How to print the result.",
    )


# Lists: what kubectl prints of one, and how.


@dataclass(frozen=True, slots=True)
class ListFormat:
    """The form in which a list is printed."""

    name: str
    """table, wide, name, yaml, json or jsonpath."""
    path: tuple[str | int | None, ...] = ()
    """Steps of a jsonpath: a field, an index, or None for each."""

    @property
    def has_rows(self) -> bool:
        """Report whether it is printed row by row, and so can be watched."""
        return self.name in {"table", "wide", "name"}


_JSONPATH = "jsonpath="
_STEP = re.compile(
    r"""\.(?P<field>[\w-]+) | \.?\[ (?:(?P<index>-?\d+) | (?P<each>\*) | '(?P<quoted>[^']+)') \] | (?P<all>\.\*)""",
    re.VERBOSE,
)


class _ListFormatType(click.ParamType):  # type: ignore[type-arg]  # generic in later versions only
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


list_format_option = click.option(
    "-o",
    "--output",
    "output",
    type=_ListFormatType(),
    default="table",
    metavar="table|wide|name|yaml|json|jsonpath=PATH",
    help="How to print the list; e.g. jsonpath='{.shards[*].spec.id}'.",
)


def watch_options(command: CommandT) -> CommandT:
    """Add the options of a list that is watched."""
    command = click.option(
        "--interval",
        type=click.FloatRange(min=0.05),
        default=2.0,
        metavar="SECONDS",
        help="Pause between two looks of --watch, where it has to ask again and again.",
    )(command)
    return click.option(
        "-w", "--watch", is_flag=True, help="Then print each row that changes, until Ctrl-C."
    )(command)


def require_watchable(output: ListFormat, *, watch: bool) -> None:
    """Refuse to watch what is not printed row by row."""
    if watch and not output.has_rows:
        raise click.UsageError("--watch prints rows: expected -o table, wide or name with it")


def parse_jsonpath(text: str) -> tuple[str | int | None, ...]:
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


def select_path(document: object, steps: Sequence[str | int | None]) -> list[object]:
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


def print_path(document: object, steps: Sequence[str | int | None]) -> None:
    """Print the values at a path, each on a line: text as it is, all else as JSON."""
    for value in select_path(document, steps):
        click.echo(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))


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


async def poll_rows(
    look: Callable[[], Awaitable[Rows]], *, interval_seconds: float
) -> AsyncGenerator[Seen, None]:
    """Yield a list again and again, without end.

    Raises:
        ServiceError, AllocatorError, TimeoutError: the first look failed.
    """
    yield await look()
    while True:
        await asyncio.sleep(interval_seconds)
        try:
            seen: Seen = await look()
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
    state = next((i for i, name in enumerate(shown.columns) if name in _STATE_COLUMNS), None)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ListOptions:
    """Options that lists of shards and of journals share."""

    output: ListFormat
    label_columns: tuple[str, ...]
    watch: bool
    interval: float
    """Seconds between two looks of a watch."""

    async def show(
        self,
        look: Callable[[], Awaitable[Rows]],
        print_whole: Callable[[], Awaitable[None]],
        follow: Callable[[], AsyncGenerator[Seen, None]] | None = None,
    ) -> None:
        """Print a list as the options say.

        Args:
            look: Returns the present rows.
            print_whole: Prints the list in an output that has no rows.
            follow: Yields the states of a watch; if absent, `look` is repeated.
        """
        only_names = self.output.name == "name"
        if self.watch:
            states = follow() if follow else poll_rows(look, interval_seconds=self.interval)
            await watch_rows(states, only_names=only_names)
        elif self.output.has_rows:
            (await look()).show(only_names=only_names)
        else:
            await print_whole()


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
    coloured = [column in _STATE_COLUMNS for column in columns]
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


_STATE_COLUMNS = frozenset({"STATUS", "STATE"})
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


def print_message(message: Message, output_format: OutputFormat = OutputFormat.JSON) -> None:
    """Print a protobuf message as JSON or YAML: field names as in the .proto, zero values included."""
    print_fields(fields_of(message), output_format)


def print_messages(name: str, messages: Sequence[Message], output_format: OutputFormat) -> None:
    """Print protobuf messages as one JSON or YAML document, in a list called `name`."""
    print_fields({name: [fields_of(message) for message in messages]}, output_format)


def fields_of(message: Message) -> dict[str, Any]:
    """Return a protobuf message as JSON has it: field names as in the .proto, zero values included."""
    return MessageToDict(
        message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True
    )


def print_fields(fields: dict[str, Any], output_format: OutputFormat) -> None:
    """Print one document of JSON or YAML."""
    if output_format is OutputFormat.YAML:
        click.echo(encode_yaml(fields), nl=False)
    else:
        click.echo(json.dumps(fields, indent=2, ensure_ascii=False))


def counted(count: int, noun: str) -> str:
    """Return `1 change`, `2 changes`."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def say(text: str) -> None:
    """Print a message to the user that is not the result."""
    click.echo(text, err=True)


def confirm(question: str, *, yes: bool) -> None:
    """Ask, unless told not to; a script cannot answer, so it must say beforehand.

    Raises:
        click.Abort: the answer is no.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise click.UsageError(f"{question} Nobody can be asked here: expected --yes")
    click.confirm(question, abort=True, err=True)


# Errors of ours: one line on standard error, and an exit status.


@contextmanager
def errors_in_one_line() -> Iterator[None]:
    """Convert our own errors into click errors: one line on stderr, with exit status 1."""
    try:
        yield
    except (BroadsheetError, TimeoutError) as error:
        # Notes report what was done before the error: "the first 200 of 300 changes were applied".
        notes = getattr(error, "__notes__", [])
        raise CommandError("; ".join([_line_of(error), *notes]), exit_status_of(error)) from error
    except OSError as error:
        if isinstance(error, BrokenPipeError):
            raise  # click ends quietly: the reader has ended
        raise CommandError(os_error_text(error), ExitStatus.FAILED) from error


class CommandError(click.ClickException):
    """An error of ours as click shows it, with its own exit status."""

    def __init__(self, message: str, status: ExitStatus) -> None:
        super().__init__(message)
        self.status = status

    @property
    def exit_code(self) -> int:  # type: ignore[override]  # click has an attribute of the class
        """The status with which the process ends."""
        return self.status.value


class NothingSelectedError(ValidationError):
    """Nothing of that name, or that matches the selector."""


class StaleRevisionError(ValidationError):
    """Somebody changed what a command, or its file, was about to change."""


_STATUSES: tuple[tuple[ExitStatus, tuple[type[Exception], ...]], ...] = (
    (ExitStatus.NOT_FOUND, (NothingSelectedError, ShardNotFoundError, JournalNotFoundError)),
    (ExitStatus.TIMEOUT, (TimeoutError,)),
    (ExitStatus.CONFLICT, (ApplyConflictError, StaleRevisionError)),
)


def exit_status_of(error: Exception) -> ExitStatus:
    """Return the exit status of a command that ends with an error of ours."""
    return next(
        (status for status, kinds in _STATUSES if isinstance(error, kinds)), ExitStatus.FAILED
    )


def _line_of(error: Exception) -> str:
    line = " ".join(str(error).split())
    if isinstance(error, RpcFailedError) and error.code == "UNIMPLEMENTED":
        return f"{line}: is it a server of this kind? --address is a member's, --broker a broker's"
    return line
