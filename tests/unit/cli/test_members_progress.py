"""The rows of operations that are under way: unknown is `?`, never a number; and how they are watched."""

from __future__ import annotations

import pytest

from broadsheet.cli.output import operations
from broadsheet.cli.output.operations import (
    OperationLook,
    changed_lines,
    operation_cells,
    watch_operations,
)
from broadsheet.runtime.errors import EndpointError
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


async def test_watch_goes_on_over_failed_looks_and_ends_when_nothing_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The member that is asked may leave; and one that does not know yet what moves is asked again."""
    monkeypatch.setattr(operations, "LOOK_SECONDS", 0.0)
    key = (1, "a", "b")
    answers: list[EndpointError | OperationLook] = [
        EndpointError("one", "it left"),
        OperationLook({key: ["split", "a", "b", "following"]}),
        EndpointError("one", "it left"),
        OperationLook({key: ["split", "a", "b", "holding"]}),
        OperationLook({}),
    ]
    looks = iter(answers)

    async def look() -> OperationLook:
        found = next(looks)
        if isinstance(found, EndpointError):
            raise found
        return found

    await watch_operations(OperationLook({}, is_all=False), look)

    lines = ["split  a  b  following", "split  a  b  holding", "split  a  b  over"]
    assert capsys.readouterr().out.splitlines() == lines


async def test_watch_ends_with_the_error_if_no_member_is_reached_for_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An operator's terminal must not look as if nothing happened."""
    monkeypatch.setattr(operations, "LOOK_SECONDS", 0.0)

    async def look() -> OperationLook:
        raise EndpointError("one", "it left")

    with pytest.raises(EndpointError):
        await watch_operations(OperationLook({(1, "a", "b"): ["split"]}), look)
