"""Lives of one keyed shard without a member: transactions, commits, aborts and restarts, on a clock of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from broadsheet.consumer.application import Shard
from broadsheet.consumer.keyed.key_codec import KeyCodec
from broadsheet.consumer.keyed.processor import KeyedProcessor
from broadsheet.consumer.keyed.row_types import Declared, StateRowType
from broadsheet.consumer.keyed.run import KeyedRun, KeyedSettings
from broadsheet.consumer.keyed.store import IndexKind, KeyedStore
from broadsheet.consumer.keyed.txn_time import TimeMode
from broadsheet.testing.stores.recorded_log import MirroredFiles, RecordedLog
from broadsheet.testing.stores.subject import (
    FixedShard,
    RecordedSubject,
    offset_of,
    reading,
    wait,
)
from broadsheet.wire.key_range import ALL_KEYS, KeyRange

SOURCE = "test/in"


class SteppedClock:
    """A clock that stands still."""

    def __init__(self, now_ms: int = 1_000) -> None:
        self.now_ms = now_ms

    def wall_seconds(self) -> float:
        """Return the time."""
        return self.now_ms / 1000

    def monotonic_seconds(self) -> float:
        """Return the time."""
        return self.now_ms / 1000


def settings_of(rows: Declared, key: Declared, **parts: Any) -> KeyedSettings:
    """Return settings; the rows' column `at` is their event time if there is one."""
    schema = StateRowType(rows).schema
    parts.setdefault("mode", TimeMode.NONE)
    parts.setdefault("event_time", "at" if "at" in schema.names else "")
    return KeyedSettings(input_schema=schema, key=KeyCodec(StateRowType(key).schema), **parts)


class Lives:
    """One shard whose state is in a log in memory, and its present life."""

    def __init__(
        self,
        directory: Path,
        processor: Callable[[], KeyedProcessor],
        settings: KeyedSettings,
        *,
        index: IndexKind = "memory",
        clock: SteppedClock | None = None,
        owned: KeyRange = ALL_KEYS,
        **store: Any,
    ) -> None:
        self.clock = clock or SteppedClock()
        self.owned = owned
        self.shard = FixedShard()
        self.subject = self.new_subject(directory, index=index, **store)
        self.apart: list[pa.Table] = []
        self._processor = processor
        self.settings = settings
        self._commits = 0
        self._store: Any = None
        self.run: KeyedRun
        self.reopen()

    def new_subject(self, directory: Path, **parts: Any) -> RecordedSubject:
        """Return the subject that makes the store of each life."""

        def new_store(shard: Shard) -> KeyedStore:
            return KeyedStore(shard, **parts)

        def nothing(*_: Any) -> dict[str, int]:
            return {}

        return RecordedSubject(
            directory, new_store=new_store, put=lambda *_: None, committed=nothing
        )

    def with_processor(self, processor: Callable[[], KeyedProcessor]) -> Lives:
        """Live on as another version of the application; return itself."""
        self._processor = processor
        self.reopen()
        return self

    @property
    def store(self) -> KeyedStore:
        """Of the present life."""
        store: KeyedStore = self._store
        return store

    def reopen(self) -> None:
        """Die, and live on from what the log replays to."""
        self.end()
        self._store = self.subject.open(self.shard)
        self.restore()

    def reopen_at(self, files: MirroredFiles) -> int:
        """Live on from where the log is cut off; return how many commits are in it."""
        self.end()
        self._store = self.subject.open_log(self.shard, RecordedLog(files=files.copy()))
        self.restore()
        return self._commits

    @property
    def log(self) -> RecordedLog:
        """The recovery log."""
        return self.subject.log_of(self.shard)

    def restore(self) -> None:
        """Give the running transaction up."""
        self._commits = offset_of(self._store.restore_checkpoint(self.shard))
        self.run = self.new_run()

    def new_run(self) -> KeyedRun:
        """Return the transactions of a life that begins."""
        return KeyedRun(
            self._processor(),
            self.settings,
            self._store,
            journals=(SOURCE,),
            clock=self.clock,
            owned=lambda: self.owned,
        )

    def transact(self, rows: Sequence[Any] = (), *, commits: bool = True) -> list[Any]:
        """Run a transaction; return its output."""
        out: list[Any] = []
        self.run.begin()
        if rows:
            schema = self.settings.input_schema
            columns = zip(*rows, strict=True)
            arrays = [
                pa.array(each, field.type) for each, field in zip(columns, schema, strict=True)
            ]
            self.run.add(pa.table(arrays, schema=schema), SOURCE, self.apart.append)
        self.run.finish(out.extend, self.apart.append)
        if commits:
            self._commits += 1
            wait(self._store.start_commit(self.shard, reading(self._commits), ()))
        return out

    def end(self) -> None:
        """Destroy the store."""
        if self._store is not None:
            self._store.destroy()
            self._store = None
