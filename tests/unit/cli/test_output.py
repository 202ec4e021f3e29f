"""What lists print: values at a path, rows that change, states in colour."""

from __future__ import annotations

from collections.abc import Sequence

import click
import pytest

from broadsheet.cli.output.jsonpath import parse_jsonpath, select_path
from broadsheet.cli.output.lists import Rows, Table, changed_rows, watch_rows
from broadsheet.cli.output.tables import print_table, styled_state
from broadsheet.runtime.errors import EndpointError, ValidationError

DOCUMENT = {
    "shards": [
        {"spec": {"id": "a", "labels": {"app/name": "x"}}, "status": [{"code": "PRIMARY"}]},
        {"spec": {"id": "b"}, "status": []},
    ]
}
COLUMNS = ["ID", "STATUS"]


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("{.shards[*].spec.id}", ["a", "b"]),
        ("$.shards[*].spec.id", ["a", "b"]),
        ("{$.shards[1].spec.id}", ["b"]),
        ("{.shards[-1].spec.id}", ["b"]),
        ("{.shards[7].spec.id}", []),
        ("{.shards[*].status[0].code}", ["PRIMARY"]),
        ("{.shards[0].spec.labels['app/name']}", ["x"]),
        ("{.shards[0].spec.labels.*}", ["x"]),
        ("{.shards.spec}", []),
        ("{.nothing[*].there}", []),
        ("{}", [DOCUMENT]),
    ],
)
def test_path_selects_what_kubectl_users_expect(path: str, values: list[object]) -> None:
    """A field or index that is not there has no value, as in kubectl: lists are not all alike."""
    assert select_path(DOCUMENT, parse_jsonpath(path)) == values


@pytest.mark.parametrize(
    "path", ["{.a[?(@.b)]}", "{range .a}", "{.a[1:2]}", "{..a}", "shards", "{.a"]
)
def test_path_that_needs_more_says_so(path: str) -> None:
    """Half a jsonpath that selects nothing would be worse than none: the way on is jq."""
    with pytest.raises(ValidationError, match=r"expected \.FIELD.*jq"):
        parse_jsonpath(path)


def test_rows_that_are_new_changed_or_gone_are_told() -> None:
    """A watch shows a shard once when it changes, and says of one that is deleted that it is."""
    before = Rows(COLUMNS, [["a", "IDLE"], ["b", "PRIMARY"], ["c", "PRIMARY"]])
    after = Rows(COLUMNS, [["a", "PRIMARY"], ["b", "PRIMARY"], ["d", "IDLE"]])

    assert changed_rows(before, after, state=1) == [
        ["a", "PRIMARY"],
        ["d", "IDLE"],
        ["c", "DELETED"],
    ]
    assert changed_rows(after, after, state=1) == []


class _EndOfTestError(Exception):
    pass


@pytest.mark.parametrize("only_names", [False, True])
async def test_watch_prints_changes_and_outlives_a_member(
    capsys: pytest.CaptureFixture[str], *, only_names: bool
) -> None:
    """A member that is gone for a while is told once, and does not end what somebody watches."""
    scripted = _Scripted(
        [
            Rows(COLUMNS, [["a", "IDLE"]]),
            EndpointError("http://m", "gone"),
            EndpointError("http://m", "gone"),
            Rows(COLUMNS, [["a", "IDLE"]]),
            Rows(COLUMNS, [["a", "FAILED"]], {"a": ["a: no"]}),
            Rows(COLUMNS, [["a", "FAILED"]], {"a": ["a: no"]}),
            _EndOfTestError(),
        ]
    )
    with pytest.raises(_EndOfTestError):
        states = scripted.follow(interval_seconds=0.001)
        await watch_rows(states, only_names=only_names)

    shown = capsys.readouterr()
    assert shown.out == ("a\na\n" if only_names else "ID  STATUS\na   IDLE\na   FAILED\n")
    assert shown.err == "cannot reach http://m: gone; still watching\na: no\n"


class _Scripted(Table):
    """Answers one after another."""

    def __init__(self, answers: Sequence[Rows | Exception]) -> None:
        self._answers = iter(answers)

    async def look(self) -> Rows:
        """Return the next answer, or raise it."""
        answer = next(self._answers)
        if isinstance(answer, Exception):
            raise answer
        return answer


def test_states_are_coloured_and_everything_else_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    """Colour is beside the word, never in place of it; NO_COLOR turns it off."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert styled_state("FAILED ") == click.style("FAILED ", fg="red")
    assert styled_state("flights-000") == "flights-000"
    monkeypatch.setenv("NO_COLOR", "1")
    assert styled_state("FAILED ") == "FAILED "


def test_colour_does_not_shift_columns(capsys: pytest.CaptureFixture[str]) -> None:
    """Cells are as wide as their text: the codes of colours have no width, and are not written into a pipe."""
    print_table(["ID", "STATUS", "RF"], [["a", "FAILED", "1"], ["b", "PRIMARY", "2"]])

    assert capsys.readouterr().out == "ID  STATUS   RF\na   FAILED   1\nb   PRIMARY  2\n"
