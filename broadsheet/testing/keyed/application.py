"""The simulated keyed application: each input changes every kind of state of its key, and the output shows all of it.

    input    id, key, at
    row      what the key's state was made of this input: count, list, value and map that expire, timers
    timer    the same of a timer that fires
    late     the input itself, in the same journal, so that all is in one order

What a row does to timers depends on its number and on the times of its transaction, so that a judge can follow. Each
row of the output names its transaction: the number of the processor's life, and of the transaction within it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, Literal

from broadsheet.consumer.application import Shard
from broadsheet.consumer.keyed import (
    EventTime,
    JournalOutput,
    KeyedApplication,
    KeyedProcessor,
    KeyRows,
    StateHandle,
    StateOptions,
    TxnTime,
)
from broadsheet.consumer.keyed.application import KeyedShardStore
from broadsheet.consumer.keyed.follower import KeyedFollower
from broadsheet.consumer.keyed.row_index import MemoryIndex
from broadsheet.consumer.stores.commit_thread import CommitRunner
from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.runtime.clock import Clock
from broadsheet.testing.shards.cluster import FaultSwitch
from broadsheet.testing.shards.history_checker import BROKEN_ON_PURPOSE, OUTPUTS

OUTPUT: Final = OUTPUTS[0]
KEYS: Final = 7
TTL_MS: Final = 1200
DELAY_MS: Final = 100
"""The watermark is so far behind."""
PIECE: Final = 4
"""Timers that fire in one transaction."""
CACHE_BYTES: Final = 6000
SNAPSHOT_BYTES_MIN: Final = 2000
Mode = Literal["processing", "event"]

_STATE: Final = (
    "count long, numbers array<long>, last long, seen array<long>, timers array<long>, "
    "shape array<long>, version long, batch_ms long, watermark_ms long, life long, txn long"
)
SHAPES: Final = ("a long", "a long, b long")
"""Two releases of the application declare a variable so: members of both run at the same time."""


def key_of(number: int) -> str:
    """Return the key of an input."""
    return f"k{number % KEYS}"


def at_of(number: int) -> int:
    """Return the event time of an input, ms: behind others now and then, some of which are late."""
    return number * 40 + number * 7919 % 900


def message_of(number: int) -> dict[str, Any]:
    """Return an input."""
    return {"id": number, "key": key_of(number), "at": at_of(number)}


def alarm_of(number: int, now_ms: int) -> int | None:
    """Return the timer that an input registers, ms; None: it deletes the first one of its key.

    Args:
        number: Of the input.
        now_ms: The batch time, or the event time of the input.
    """
    if number % 5 == 0:
        return None
    # Coarse, so that equal times occur; some have passed.
    return (now_ms + number * 37 % 40 * 50 - 150) // 100 * 100


def alarm_after(expiry_ms: int) -> int | None:
    """Return the timer that a timer registers when it fires, ms; None: none. Such a one registers no other."""
    return expiry_ms + 401 if expiry_ms % 400 == 0 else None


def renews(number: int) -> bool:
    """Tell whether an input writes the value that expires."""
    return number % 3 == 0


def element_of(number: int) -> int:
    """Return the key of the map's element that an input writes."""
    return number // KEYS % 4


def shape_of(number: int, version: int) -> tuple[int, ...]:
    """Return what a release writes of an input into the variable that releases declare differently."""
    return (number, -number)[: version + 1]


class Alarms(KeyedProcessor):
    """Changes all state of a key with each row, and tells it."""

    def __init__(self, mode: Mode, whims: FaultSwitch, life: int, version: int) -> None:
        self._is_event = mode == "event"
        self._version = version
        self._whims = whims
        self._life = life
        self._txns = [1]
        """The number of the transaction, in what a transaction's end does not restore."""

    def init(self, state: StateHandle) -> None:
        """Declare one variable of each kind."""
        self.count = state.value("count", int)
        self.numbers = state.list("numbers", int)
        self.last = state.value("last", int, ttl_ms=TTL_MS)
        self.seen = state.map("seen", int, int, ttl_ms=TTL_MS)
        self.shape = state.value("shape", SHAPES[self._version])
        self.timers = state.timers

    def handle_rows(self, key: tuple[Any, ...], rows: KeyRows, time: TxnTime) -> Iterator[Any]:
        """Take each row in."""
        if self._whims.application_fails:
            raise RuntimeError(BROKEN_ON_PURPOSE)
        for row in rows:
            self.count.update((self.count.get() or 0) + 1)
            self.numbers.append(row.id)
            if renews(row.id):
                self.last.update(row.id)
            self.shape.update(shape_of(row.id, self._version))
            self.seen.put(element_of(row.id), row.id)
            alarm = alarm_of(row.id, row.at if self._is_event else time.batch_ms)
            if alarm is not None:
                self.timers.register(alarm)
            elif (first := next(iter(self.timers), None)) is not None:
                self.timers.delete(first)
            yield self._told(row.id, key, "row", row.at, time)

    def handle_timer(self, key: tuple[Any, ...], expiry_ms: int, time: TxnTime) -> Iterator[Any]:
        """Register the next, and tell."""
        following = alarm_after(expiry_ms)
        if following is not None:
            self.timers.register(following)
        yield self._told(0, key, "timer", expiry_ms, time)

    def end_transaction(self) -> None:
        """Count."""
        self._txns[0] += 1

    def _told(
        self, number: int, key: tuple[Any, ...], what: str, at: int, time: TxnTime
    ) -> tuple[Any, ...]:
        return (
            number,
            *key,
            what,
            at,
            self.count.get(),
            list(self.numbers.get()),
            self.last.get(),
            sorted(self.seen.values()),
            list(self.timers),
            list(self.shape.get() or ()),
            self._version,
            time.batch_ms,
            time.watermark_ms,
            self._life,
            *self._txns,
        )


class SimulatedKeyed(KeyedApplication):
    """The application of one member: its clock is the member's, and nothing of it runs on another thread."""

    def __init__(
        self,
        mode: Mode,
        *,
        version: int,
        clock: Clock,
        whims: FaultSwitch,
        new_commits: Callable[[Shard], CommitRunner],
        new_life: Callable[[], int],
        on_warm: Callable[[int], None],
    ) -> None:
        """Describe it.

        Args:
            mode: The kind of time of its timers.
            version: The release, of those that `SHAPES` has.
            clock: Of the member.
            whims: Tells when it is to raise.
            new_commits: Makes what runs the commits of a store.
            new_life: Returns a number that no processor of the run has.
            on_warm: Told the commit at which a promotion took a standby's index over.
        """
        out = MappedJournal(OUTPUT, NDJSON)
        super().__init__(
            lambda: Alarms(mode, whims, new_life(), version),
            key="key string",
            rows="id long, key string, at long",
            output=JournalOutput(
                out, JsonType(), f"id long, key string, what string, at long, {_STATE}"
            ),
            time=mode,
            event_time=EventTime(column="at", delay_ms=DELAY_MS) if mode == "event" else None,
            side=JournalOutput(out, JsonType()),
            state=StateOptions(index="memory", cache_bytes=CACHE_BYTES),
            clock=clock,
        )
        self.settings = replace(self.settings, storm_timers=PIECE, storm_seconds=1e9)
        self._new_commits = new_commits
        self._on_warm = on_warm

    def new_store(self, shard: Shard) -> KeyedShardStore:
        """Return the shard's store."""
        return KeyedShardStore(
            shard,
            None,
            self,
            snapshot_bytes_min=SNAPSHOT_BYTES_MIN,
            commits=self._new_commits(shard),
        )

    def new_follower(self, shard: Shard, directory: Path) -> KeyedFollower:
        """Return what keeps a standby's index current."""
        del directory
        return _ToldFollower(shard.fqn, self._on_warm)


class _ToldFollower(KeyedFollower):
    """A follower that tells of promotions."""

    def __init__(self, fqn: str, on_warm: Callable[[int], None]) -> None:
        super().__init__(fqn, MemoryIndex)
        self._on_warm = on_warm

    def take(self) -> Any:
        """Give the index away."""
        taken = super().take()
        if taken is not None:
            self._on_warm(taken[0].number)
        return taken
