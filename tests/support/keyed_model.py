"""Keyed state as a model: a row at a time, in dictionaries, and the processor that both sides run.

A row is a command for its key, so that random rows are random programs. The model states the rules in the shortest way:
all state of a key in one object, expiries compared at each read, no index, no cache and no pieces.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from broadsheet.consumer.keyed.grouping import KeyRows
from broadsheet.consumer.keyed.processor import KeyedProcessor, StateHandle
from broadsheet.consumer.keyed.txn_time import TxnTime

TTL_MS = 40
PAD = "p" * 700
"""Makes a list of a few elements one of several chunks."""
ROWS = "key string, op string, n int, at long"
COMMANDS = (
    *("value+", "value?", "value-"),
    *("list+", "list+", "list=", "list?", "list-"),
    *("map+", "map+", "map?", "map-", "maps?"),
    *("timer+", "timer+", "timer-", "timers?"),
)
Row = tuple[str | None, str, int, int]
Out = tuple[str | None, str, str]


class Commands(KeyedProcessor):
    """Obeys rows. What it yields for a row is what the model says."""

    ttl_ms: int | None = None

    def init(self, state: StateHandle) -> None:
        """Declare one variable of each kind."""
        self.value = state.value("value", "n int", ttl_ms=self.ttl_ms)
        self.list = state.list("list", "n int, pad string", ttl_ms=self.ttl_ms)
        self.map = state.map("map", int, int, ttl_ms=self.ttl_ms)
        self.timers = state.timers

    def handle_rows(self, key: tuple[Any, ...], rows: KeyRows, time: TxnTime) -> Iterator[Any]:
        """Obey each."""
        del time
        for row in rows:
            found = self._obey(row.op, row.n)
            if found is not None:
                yield *key, row.op, str(found)

    def handle_timer(self, key: tuple[Any, ...], expiry_ms: int, time: TxnTime) -> Iterator[Any]:
        """Tell, and change timers and state as the expiry says."""
        del time
        yield (*key, "timer", f"{expiry_ms} of {list(self.timers)}")
        match expiry_ms % 5:
            case 0:
                self.timers.register(expiry_ms)
            case 1:
                self.timers.register(expiry_ms + 2)
            case 2:
                self.timers.delete(expiry_ms + 1)
            case 3:
                self.list.append((expiry_ms, PAD))

    def _obey(self, op: str, n: int) -> object:  # noqa: C901 - a line a command
        match op:
            case "value+":
                self.value.update((n,))
            case "value?":
                return self.value.get(), self.value.exists()
            case "value-":
                self.value.clear()
            case "list+":
                self.list.append((n, PAD))
            case "list=":
                self.list.put([(n + step, PAD) for step in range(n % 9)])
            case "list?":
                return [element[0] for element in self.list.get()], self.list.exists()
            case "list-":
                self.list.clear()
            case "map+":
                self.map.put(n % 5, n)
            case "map?":
                return self.map.get(n % 5), self.map.contains(n % 5)
            case "map-":
                self.map.remove(n % 5)
            case "maps?":
                return list(self.map.items()), list(self.map.keys()), list(self.map.values())
            case "timer+":
                self.timers.register(n)
            case "timer-":
                self.timers.delete(n)
            case "timers?":
                return list(self.timers)
        return None


class ExpiringCommands(Commands):
    """The same with a TTL on everything."""

    ttl_ms = TTL_MS


@dataclass
class _Key:
    value: tuple[int, int] | None = None
    list: list[tuple[int, int]] = field(default_factory=list)
    map: dict[int, tuple[int, int]] = field(default_factory=dict)
    timers: set[int] = field(default_factory=set)


@dataclass
class Model:
    """The state after some transactions. Expiries are with each element."""

    mode: str
    ttl_ms: int = 1 << 60
    delay_ms: int = 5
    batch_ms: int = 0
    watermark_ms: int = 0
    late_ms: int = 0
    latest_ms: int | None = None
    keys: dict[str | None, _Key] = field(default_factory=dict)

    def transact(self, rows: list[Row], now_ms: int) -> list[Out]:
        """Run a transaction; return its output."""
        self.batch_ms = max(self.batch_ms, now_ms)
        self.late_ms = self.watermark_ms
        if self.latest_ms is not None:
            self.watermark_ms = max(self.watermark_ms, self.latest_ms - self.delay_ms)
        judged = self.mode == "event"
        timely = [row for row in rows if not judged or row[3] > self.late_ms]
        for row in rows:
            self.latest_ms = row[3] if self.latest_ms is None else max(self.latest_ms, row[3])
        out = [
            told
            for key in sorted({row[0] for row in timely}, key=_order)
            for row in timely
            if row[0] == key
            for told in self._obey(row)
        ]
        return out + self._fire()

    def next_txn_after(self) -> float | None:
        """Return after how many seconds the next transaction is due though no row comes."""
        expiries = [expiry for of in self.keys.values() for expiry in of.timers]
        if self.mode == "processing":
            return max(0, min(expiries) - self.batch_ms) / 1000 if expiries else None
        moves = self.latest_ms is not None and self.latest_ms - self.delay_ms > self.watermark_ms
        return 0.0 if moves or min(expiries, default=1 << 60) <= self.watermark_ms else None

    def _fire(self) -> list[Out]:
        bound = self.watermark_ms if self.mode == "event" else self.batch_ms
        due = sorted(
            (
                (expiry, key)
                for key, of in self.keys.items()
                for expiry in of.timers
                if expiry <= bound
            ),
            key=lambda timer: (timer[0], _order(timer[1])),
        )
        out: list[Out] = []
        for expiry, key in due:
            of, before = self.keys[key], copy.deepcopy(self.keys[key])
            told = (key, "timer", f"{expiry} of {sorted(of.timers)}")
            match expiry % 5:
                case 1:
                    of.timers.add(expiry + 2)
                case 2:
                    of.timers.discard(expiry + 1)
                case 3:
                    of.list.append((expiry, self.batch_ms + self.ttl_ms))
            if self.is_undone(expiry):
                of = self.keys[key] = before
            else:
                out.append(told)
            of.timers.discard(expiry)
        return out

    def is_undone(self, expiry: int) -> bool:
        """Tell whether the call for a timer fails; the timer is removed all the same."""
        del expiry
        return False

    def _obey(self, row: Row) -> Iterator[Out]:  # noqa: C901 - a line a command
        key, op, n, _ = row
        of = self.keys.setdefault(key, _Key())
        now, until = self.batch_ms, self.batch_ms + self.ttl_ms
        value = None if of.value is None or of.value[1] <= now else (of.value[0],)
        elements = [element for element, expiry in of.list if expiry > now]
        entries = {name: each[0] for name, each in sorted(of.map.items()) if each[1] > now}
        match op:
            case "value+":
                of.value = n, until
            case "value?":
                yield key, op, str((value, value is not None))
            case "value-":
                of.value = None
            case "list+":
                of.list.append((n, until))
            case "list=":
                of.list = [(n + step, until) for step in range(n % 9)]
            case "list?":
                yield key, op, str((elements, bool(elements)))
            case "list-":
                of.list = []
            case "map+":
                of.map[n % 5] = n, until
            case "map?":
                yield key, op, str((entries.get(n % 5), n % 5 in entries))
            case "map-":
                of.map.pop(n % 5, None)
            case "maps?":
                yield key, op, str((list(entries.items()), list(entries), list(entries.values())))
            case "timer+":
                of.timers.add(n)
            case "timer-":
                of.timers.discard(n)
            case "timers?":
                yield key, op, str(sorted(of.timers))


def _order(key: str | None) -> tuple[bool, bytes]:
    return key is not None, (key or "").encode()
