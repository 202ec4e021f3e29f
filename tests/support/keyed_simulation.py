"""One keyed shard and its standby from a seed: transactions, aborts, deaths and promotions, judged at each commit.

    rows ─► transaction ─► log ─► standby's index (at some points, in the middle of writes, too)
               │            └─ cut at a death, never before what the standby has seen
               ▼
            judge: the timers of each commit, in order, from those that earlier commits left

The judge keeps a set of (expiry, key). It knows no index, no cache and no file, and reads committed output alone: a
timer that is lost, fires twice, out of order or before its time, or that others overtake in a storm, is an error at the
commit where it happens. State is judged by the number of rows of each key.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
from structlog.testing import capture_logs

from broadsheet.consumer.keyed.follower import KeyedFollower
from broadsheet.consumer.keyed.processor import KeyedProcessor, StateHandle
from broadsheet.consumer.keyed.row_index import MemoryIndex
from broadsheet.consumer.keyed.run import KeyedRun
from broadsheet.consumer.keyed.store import KeyedStore
from broadsheet.consumer.keyed.txn_time import TimeMode, TxnTime
from broadsheet.consumer.recoverylog.local_state import LocalState
from broadsheet.testing.stores.recorded_log import MirroredFiles, RecordedChange, RecordedLog
from broadsheet.testing.stores.subject import FixedShard, offset_of, reading, wait
from tests.support.keyed_runs import SOURCE, SteppedClock, settings_of

KEYS = 12
STEPS = 90
PIECE = 5
"""Timers that fire in one transaction."""
Timer = tuple[int, str]
Row = tuple[str, int, bool]
"""Key, a time, and whether its timer is registered rather than deleted."""


class Alarms(KeyedProcessor):
    """Registers and deletes timers, and tells of each that fires with the number of rows of its key."""

    def init(self, state: StateHandle) -> None:
        """Declare the number."""
        self.count = state.value("count", int)
        self.timers = state.timers

    def handle_rows(self, key: tuple[Any, ...], rows: Any, time: TxnTime) -> Iterator[Any]:
        """Obey each row."""
        del time
        self.count.update((self.count.get() or 0) + len(rows))
        for row in rows:
            if row.registers:
                self.timers.register(row.at)
            else:
                self.timers.delete(row.at)
        yield "rows", *key, self.count.get()

    def handle_timer(self, key: tuple[Any, ...], expiry_ms: int, time: TxnTime) -> Iterator[Any]:
        """Tell."""
        del time
        yield expiry_ms, *key, self.count.get()


@dataclass
class Judge:
    """What the commits so far leave."""

    timers: set[Timer] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)
    storm_ms: int | None = None

    def commit(self, rows: list[Row], now_ms: int, out: list[Any]) -> None:
        """Judge the output of a transaction, and go on from it."""
        for key, at, registers in sorted(rows, key=lambda row: row[0]):
            self.counts[key] += 1
            (self.timers.add if registers else self.timers.discard)((at, key))
        handled = [tuple(each) for each in out if each[0] == "rows"]
        assert handled == [
            ("rows", key, self.counts[key]) for key in sorted({row[0] for row in rows})
        ]
        bound = now_ms if self.storm_ms is None else self.storm_ms
        due = sorted(timer for timer in self.timers if timer[0] <= bound)
        fired = [(each[0], each[1]) for each in out if each[0] != "rows"]
        assert fired == due[:PIECE], f"due until {bound}: {due}"
        assert all(each[2] == self.counts[each[1]] for each in out if each[0] != "rows")
        self.timers.difference_update(fired)
        self.storm_ms = bound if len(due) > PIECE else None

    def next_txn_after_ms(self, batch_ms: int, now_ms: int) -> int | None:
        """Return after how long a transaction is due without rows, ms."""
        if self.storm_ms is not None:
            return 0
        first = min(self.timers, default=None)
        if first is None or first[0] <= batch_ms:
            return None if first is None else 0
        return max(0, first[0] - now_ms)


class Simulation:
    """The shard, its standby, and what was committed."""

    def __init__(self, seed: int, directory: Path) -> None:
        self._random = random.Random(seed)
        self._directory = directory
        self._clock = SteppedClock(0)
        self._log = RecordedLog()
        self._shard = FixedShard()
        self._lives = 0
        self._follower = KeyedFollower(self._shard.fqn, MemoryIndex)
        self._seen = 0
        """Changes of the log that the standby has seen."""
        self._commits: list[tuple[list[Row], int, list[Any]]] = []
        self.promotions = 0
        """Lives that went on from the standby's index."""
        self._store: KeyedStore | None = None
        self._open()

    def run(self) -> None:
        """Take steps, then settle all timers."""
        for _ in range(STEPS):
            kind = self._random.choices(
                ("commit", "abort", "follow", "die", "restart"), (60, 8, 25, 6, 3)
            )[0]
            self._clock.now_ms = max(
                0, self._clock.now_ms + self._random.choice((0, 3, 10, 40, -15))
            )
            match kind:
                case "commit" | "abort":
                    self._transact(self._rows(), commits=kind == "commit")
                case "follow":
                    self._follow()
                case "die":
                    self._die()
                case "restart":
                    self._restore()
        self._clock.now_ms += 10_000
        self._check_next()
        while self._run.next_txn_after() is not None:
            self._transact([], commits=True)
        assert not self._judge().timers
        self.end()

    def end(self) -> None:
        """Destroy all."""
        if self._store is not None:
            self._store.destroy()
        self._follower.discard()

    def _judge(self) -> Judge:
        """Return what the commits leave: each of them is judged."""
        judge = Judge()
        for rows, batch_ms, out in self._commits:
            judge.commit(rows, batch_ms, out)
        return judge

    def _rows(self) -> list[Row]:
        around = self._clock.now_ms
        return [
            (
                f"k{self._random.randrange(KEYS):02}",
                # Coarse, so that equal times occur, and rows delete what others registered.
                max(0, around + 10 * self._random.randrange(-2, 6)) // 10 * 10,
                self._random.random() < 0.75,
            )
            for _ in range(self._random.choice((0, 1, 4, 12)))
        ]

    def _transact(self, rows: list[Row], *, commits: bool) -> None:
        out: list[Any] = []
        self._run.begin()
        if rows:
            columns = dict(zip(("key", "at", "registers"), zip(*rows, strict=True), strict=True))
            schema = self._settings.input_schema
            self._run.add(
                pa.table({name: list(each) for name, each in columns.items()}, schema),
                SOURCE,
                lambda _: None,
            )
        self._run.finish(out.extend)
        batch_ms = max(self._clock.now_ms, self._commits[-1][1] if self._commits else 0)
        if not commits:
            self._restore()
            return
        self._commits.append((rows, batch_ms, out))
        assert self._store is not None
        wait(self._store.start_commit(self._shard, reading(len(self._commits)), ()))
        self._check_next()

    def _check_next(self) -> None:
        batch_ms = self._commits[-1][1] if self._commits else 0
        expected = self._judge().next_txn_after_ms(batch_ms, self._clock.now_ms)
        after = self._run.next_txn_after()
        # Never too late. An index that was made has entries of timers that are no more: those cost a transaction.
        assert expected is None or (after is not None and round(after * 1000) <= expected)

    def _follow(self) -> None:
        """Show the standby the log up to some change behind what it has seen, perhaps in the middle of a write."""
        # Snapshots are written while the shard goes on: only up to the last commit is the log the same in each run.
        end = max((self._seen, *self._log.barriers[-1:]))
        self._seen = self._random.randint(self._seen, end)
        links = self._directory / "links"
        shutil.rmtree(links, ignore_errors=True)
        _files(self._cut(self._seen)).write_to(links)
        self._follower.follow(links)

    def _cut(self, end: int) -> list[RecordedChange]:
        """Return the first changes of the log, and perhaps a part of the next one."""
        changes = self._log.changes[:end]
        following = self._log.changes[end : end + 1]
        if following and following[0].kind == "write" and self._random.random() < 0.5:
            content = following[0].content
            length = self._random.randrange(len(content))
            changes.append(replace(following[0], content=content[:length]))
        return changes

    def _die(self) -> None:
        """Lose the primary, and the end of its log that the standby has not seen; promote the standby."""
        assert self._store is not None
        self._store.destroy()
        last = len(self._log.changes)
        changes = self._cut(self._random.randint(max(self._seen, last - 4), last))
        self._log = RecordedLog(changes=changes, files=_files(changes))
        with capture_logs() as logs:
            self._open(self._follower)
        self.promotions += any(each.get("from_standby") for each in logs)
        self._follower.discard()
        self._follower = KeyedFollower(self._shard.fqn, MemoryIndex)
        self._seen = 0

    def _open(self, follower: KeyedFollower | None = None) -> None:
        self._lives += 1
        directory = self._directory / str(self._lives)
        recorder = self._log.hand_over(directory)
        state = LocalState(directory, recorder, follower=follower)
        self._store = KeyedStore(
            replace(self._shard, local_state=state),
            index="memory",
            cache_bytes=4000,
            snapshot_bytes_min=1500,
        )
        self._restore()

    def _restore(self) -> None:
        assert self._store is not None
        number = offset_of(self._store.restore_checkpoint(self._shard))
        assert number <= len(self._commits), "more is committed than was"
        # Those whose frame the log has not: their rows are read again, here as other ones.
        del self._commits[number:]
        self._settings = settings_of(
            "key string, at long, registers boolean",
            "key string",
            mode=TimeMode.PROCESSING,
            storm_timers=PIECE,
            storm_seconds=1e9,
        )
        self._run = KeyedRun(
            Alarms(), self._settings, self._store, journals=(SOURCE,), clock=self._clock
        )
        self._check_next()


def simulate(seed: int, directory: Path) -> int:
    """Run one seed; return how many promotions went on from the standby's index.

    Raises:
        AssertionError: the judge disagrees.
    """
    simulation = Simulation(seed, directory / str(seed))
    try:
        simulation.run()
    finally:
        simulation.end()
        shutil.rmtree(directory / str(seed), ignore_errors=True)
    return simulation.promotions


def _files(changes: list[RecordedChange]) -> MirroredFiles:
    files = MirroredFiles()
    for change in changes:
        files.apply(change)
    return files
