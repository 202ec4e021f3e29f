"""Operations that are under way, as rows: how far each is, and how long it still takes. What is unknown is `?`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import NamedTuple, TypeAlias, TypeVar

import click
from google.protobuf.message import Message

from broadsheet.cli.output.documents import OutputFormat, print_list
from broadsheet.runtime.errors import EndpointError
from broadsheet.wire.progress_pb2 import Progress, ProgressKind, ProgressUnit

OPERATION_COLUMNS = ["OPERATION", "SUBJECT", "MEMBER", "PHASE", "DONE", "LEFT", "TIME LEFT"]

LOOK_SECONDS = 1.0
"""Pause between two looks of --watch."""
FAILED_LOOKS_MAX = 30
"""Looks in succession that may reach no member."""

OperationKey: TypeAlias = tuple[int, str, str]
"""Kind, subject and member."""
OperationRows: TypeAlias = Mapping[OperationKey, Sequence[str]]
M = TypeVar("M", bound=Message)


class OperationLook(NamedTuple):
    """Operations that a member says are under way."""

    rows: OperationRows
    """Cells of each operation."""
    is_all: bool = True
    """Whether there are no others that the member does not know yet."""


def require_table(output: OutputFormat, *, watch: bool) -> None:
    """Refuse a watch whose rows would be no document.

    Raises:
        click.UsageError: it is one.
    """
    if watch and output is not OutputFormat.TABLE:
        raise click.UsageError("--watch prints rows: expected -o table with it")


async def show_operations(
    output: OutputFormat,
    name: str,
    columns: Sequence[str],
    ask: Callable[[], Awaitable[Sequence[M]]],
    row: Callable[[M], tuple[OperationKey, Sequence[str]]],
    *,
    watch: bool,
) -> None:
    """Print the operations of one kind that are under way, and, if `watch`, each that changes, until none is left.

    Args:
        output: The form; `require_table` checks it.
        name: Of the list in a document.
        columns: Of the table.
        ask: Returns what is under way.
        row: Returns the key and the cells of one, of shape (len(columns),).
        watch: Whether to go on.

    Raises:
        EndpointError: see `watch_operations`.
    """
    found = await ask()
    rows = dict(map(row, found))
    print_list(output, name, found, columns, rows.values())
    if not watch:
        return

    async def look() -> OperationLook:
        return OperationLook(dict(map(row, await ask())))

    await watch_operations(OperationLook(rows), look)


async def watch_operations(
    before: OperationLook, look: Callable[[], Awaitable[OperationLook]]
) -> None:
    """Print each operation that changes, until none is left.

    Args:
        before: Was printed.
        look: Asks a member.

    Raises:
        EndpointError: no member was reached in `FAILED_LOOKS_MAX` looks.
    """
    failed = 0
    while before.rows or not before.is_all:
        await asyncio.sleep(LOOK_SECONDS)
        try:
            now = await look()
        except EndpointError:
            # The member that was asked may be the one that leaves.
            failed += 1
            if failed == FAILED_LOOKS_MAX:
                raise
            continue
        failed = 0
        for line in changed_lines(before.rows, now.rows):
            click.echo(line)
        before = now


def changed_lines(shown: OperationRows, now: OperationRows) -> Iterator[str]:
    """Yield a line for each operation that began, changed or ended; of one that ended its first three cells."""
    for key, cells in now.items():
        if shown.get(key) != cells:
            yield "  ".join(cells)
    for key in shown.keys() - now.keys():
        yield "  ".join([*shown[key][:3], "over"])


def operation_cells(operation: Progress) -> list[str]:
    """Return an operation's cells below `OPERATION_COLUMNS`."""
    kind = ProgressKind.Name(operation.kind).removeprefix("PROGRESS_KIND_").lower()
    # A move's `done` is known to the replica alone.
    has_done = operation.kind != ProgressKind.PROGRESS_KIND_MOVE
    return [
        kind,
        operation.subject,
        operation.member,
        operation.phase,
        amount_text(operation.done, operation.unit) if has_done else "?",
        amount_text(operation.to_do, operation.unit),
        time_left(operation),
    ]


def amount_text(count: int, unit: ProgressUnit.ValueType) -> str:
    """Return an amount with its unit, for people: `?` if it is unknown."""
    if count < 0:
        return "?"
    return f"{count:,} {ProgressUnit.Name(unit).removeprefix('PROGRESS_UNIT_').lower()}"


def time_left(operation: Progress) -> str:
    """Return how long an operation still takes, for people: `?` if that is unknown."""
    seconds = operation.eta_s
    if seconds < 0:
        return "?"
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
