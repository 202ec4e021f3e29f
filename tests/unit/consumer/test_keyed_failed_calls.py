"""Calls of a keyed processor that raise: by default the shard fails; with a side journal only the call does."""

from __future__ import annotations

import copy
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from broadsheet.consumer.errors import StoreError
from broadsheet.consumer.keyed import (
    JournalOutput,
    KeyedApplication,
    KeyedProcessor,
    KeyRows,
    StateHandle,
    TxnTime,
)
from broadsheet.consumer.keyed.txn_time import TimeMode
from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.runtime.errors import ValidationError
from tests.support.keyed_model import COMMANDS, ROWS, ExpiringCommands, Model, Out, Row
from tests.support.keyed_runs import Lives, settings_of

BOOM = "boom"


class Failing(ExpiringCommands):
    """Fails at a command, after it has obeyed those before it, and at some timers, after it has handled them."""

    def handle_rows(self, key: tuple[Any, ...], rows: KeyRows, time: TxnTime) -> Iterator[Any]:
        """Obey each, or fail."""
        yield from super().handle_rows(key, rows, time)
        if any(row.op == BOOM for row in rows):
            raise ValueError("a row says so")

    def handle_timer(self, key: tuple[Any, ...], expiry_ms: int, time: TxnTime) -> Iterator[Any]:
        """Change timers and state, and fail at every seventh time."""
        yield from super().handle_timer(key, expiry_ms, time)
        if expiry_ms % 7 == 0:
            raise ValueError("the time says so")


class FailingModel(Model):
    """Handles the rows of keys that fail not at all."""

    def transact(self, rows: list[Row], now_ms: int) -> list[Out]:
        """Leave out the rows of keys with a command that fails, though they count for the watermark."""
        failing = {row[0] for row in rows if row[1] == BOOM}
        return super().transact(
            [(*row[:1], "none" if row[0] in failing else row[1], *row[2:]) for row in rows], now_ms
        )

    def is_undone(self, expiry: int) -> bool:
        """As the processor says."""
        return expiry % 7 == 0


def failing_settings(**parts: Any) -> Any:
    """Return settings by which failed calls are set apart."""
    return settings_of(ROWS, "key string", sets_failed_apart=True, has_side_journal=True, **parts)


@pytest.mark.parametrize("seed", range(2))
def test_call_that_fails_leaves_no_trace_but_its_rows_apart(tmp_path: Path, seed: int) -> None:
    """Values, lists in chunks, maps, timers and expiries are as if the call had not been made, within the transaction
    and after it, also of a key that the transaction changed before, and after the shard has died; what was output
    before the failure is not output, and each row of the call is set apart once.
    """
    chosen, model = random.Random(seed), FailingModel("processing", 40)
    lives = Lives(tmp_path, Failing, failing_settings(mode=TimeMode.PROCESSING), cache_bytes=3000)
    lives.clock.now_ms = 0
    expected = 0
    for _ in range(240):
        rows: list[Row] = [
            (
                chosen.choice((None, "a", "b")),
                chosen.choice((*COMMANDS, BOOM)),
                chosen.randrange(40),
                0,
            )
            for _ in range(chosen.randrange(8))
        ]
        lives.clock.now_ms += chosen.choice((0, 5, 20))
        attempted = copy.deepcopy(model)
        out = attempted.transact(rows, lives.clock.now_ms)
        commits = chosen.random() < 0.8
        assert lives.transact(rows, commits=commits) == out
        if commits:
            model = attempted
        else:
            lives.restore()
        if chosen.random() < 0.1:
            lives.reopen()
        failing = {row[0] for row in rows if row[1] == BOOM}
        expected += sum(row[0] in failing for row in rows)
    apart = [row for table in lives.apart for row in table.to_pylist()]
    assert sum("timer_ms" not in row for row in apart) == expected > 40
    assert {row["late_reason"] for row in apart} == {"failed"}
    timers = [row for row in apart if "timer_ms" in row]
    assert timers
    assert all(row["timer_ms"] % 7 == 0 and row["op"] is None for row in timers)
    assert {row["error"] for row in timers} == {"ValueError: the time says so"}
    lives.end()


class Broken(KeyedProcessor):
    """Fails with an error that its test chooses."""

    error: Exception = ValueError("always")

    def init(self, state: StateHandle) -> None:
        """Declare nothing."""

    def handle_rows(self, key: tuple[Any, ...], rows: KeyRows, time: TxnTime) -> Iterator[Any]:
        """Fail."""
        raise self.error


def test_failed_calls_are_told_of_each_time_that_they_have_doubled(tmp_path: Path) -> None:
    """A source of which every row fails must not fill the log; each of its rows is apart with the error."""
    lives = Lives(tmp_path, Broken, failing_settings())
    with capture_logs() as logs:
        lives.transact([(str(number), "op", 1, 1) for number in range(9)])
    told = [each["calls"] for each in logs if each["event"] == "keyed.calls_failed"]
    assert told == [1, 2, 4, 8]
    assert sum(map(len, lives.apart)) == 9
    lives.end()


def test_failure_of_the_store_fails_the_shard_and_blames_no_key(tmp_path: Path) -> None:
    """A disk that is gone is no fault of a row: set apart, all rows would leave the shard one by one."""

    class BrokenStore(Broken):
        error = StoreError("shard", "its disk is gone")

    lives = Lives(tmp_path, BrokenStore, failing_settings())
    with pytest.raises(StoreError, match="its disk is gone"):
        lives.transact([("a", "op", 1, 1)], commits=False)
    assert not lives.apart
    lives.end()


def test_on_error_without_a_side_journal_is_refused() -> None:
    """Rows of calls that fail would be lost."""
    with pytest.raises(ValidationError, match=r"side.*because on_error is 'side_journal'"):
        KeyedApplication(
            Broken,
            key="key string",
            rows=ROWS,
            output=JournalOutput(MappedJournal("test/out", NDJSON), JsonType(), "key string"),
            on_error="side_journal",
        )
