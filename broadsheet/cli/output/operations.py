"""Operations that are under way, as rows: how far each is, and how long it still takes. What is unknown is `?`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeAlias

from broadsheet.wire.progress_pb2 import Progress, ProgressKind, ProgressUnit

OPERATION_COLUMNS = ["OPERATION", "SUBJECT", "MEMBER", "PHASE", "DONE", "LEFT", "TIME LEFT"]

OperationKey: TypeAlias = tuple[int, str, str]
"""Kind, subject and member."""


def changed_lines(
    shown: Mapping[OperationKey, Sequence[str]], now: Mapping[OperationKey, Sequence[str]]
) -> Iterator[str]:
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
