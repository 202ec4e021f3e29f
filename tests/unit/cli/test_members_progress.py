"""The rows of `shardctl members progress`: unknown is `?`, never a number."""

from __future__ import annotations

from broadsheet.cli.output.operations import changed_lines, operation_cells
from broadsheet.wire.progress_pb2 import Progress, ProgressKind, ProgressUnit


def _drain(done: int, to_do: int, eta_s: float) -> Progress:
    return Progress(
        kind=ProgressKind.PROGRESS_KIND_DRAIN,
        subject="a#one",
        member="a#one",
        phase="handing over",
        done=done,
        to_do=to_do,
        unit=ProgressUnit.PROGRESS_UNIT_SHARDS,
        eta_s=eta_s,
    )


def test_operation_cells_show_what_is_unknown_as_that() -> None:
    """A drain that has not begun has no time, and a move without a report neither bytes nor time."""
    move = Progress(
        kind=ProgressKind.PROGRESS_KIND_MOVE,
        subject="shard-1",
        phase="waiting",
        to_do=-1,
        unit=ProgressUnit.PROGRESS_UNIT_BYTES,
        eta_s=-1,
        member="a#two",
    )

    assert operation_cells(_drain(1, 2, 8.0))[3:] == ["handing over", "1 shards", "2 shards", "8 s"]
    assert operation_cells(_drain(0, 3, -1.0))[-1] == "?"
    assert operation_cells(_drain(0, 3, 600.0))[-1] == "10 min"
    assert operation_cells(move) == ["move", "shard-1", "a#two", "waiting", "?", "?", "?"]


def test_watch_tells_what_changed_and_what_is_over() -> None:
    """What stays as it is makes no line, so that a script can wait for the ones that matter."""
    key = (int(ProgressKind.PROGRESS_KIND_DRAIN), "a#one", "a#one")
    first, second = operation_cells(_drain(0, 2, -1.0)), operation_cells(_drain(1, 1, 3.0))

    assert list(changed_lines({key: first}, {key: first})) == []
    assert list(changed_lines({key: first}, {key: second})) == ["  ".join(second)]
    assert list(changed_lines({key: second}, {})) == ["drain  a#one  a#one  over"]
