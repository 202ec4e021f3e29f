"""Checks what a keyed shard says, in the order in which a reader of committed messages sees it.

    S1  each committed input is handled once, or is late once; in the end all are
    K1  every kind of state is what the inputs before made of it: none is lost, doubled or undone, and
        each release reads what another wrote
    K2  each transaction fires the timers that are due, behind its rows, in order, in pieces, and no other; in the end
        all that are due did
    K3  a value expires so long after the transaction that wrote it, and not before
    K4  batch times and watermarks never go back; the watermark is what earlier rows made; rows are late by it alone

The judge reads the output alone. Each row of it says what the state of its key is, and which transaction it is of; a
model by key says what they should be. It knows no store, no index and no log. A transaction without output is not seen,
and leaves no timer that is due; where one may have been, lateness is judged by bounds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from broadsheet.testing.keyed.application import (
    DELAY_MS,
    OUTPUT,
    PIECE,
    TTL_MS,
    Mode,
    alarm_after,
    alarm_of,
    at_of,
    element_of,
    key_of,
    renews,
    shape_of,
)
from broadsheet.testing.shards.broker import Appended
from broadsheet.testing.shards.history_checker import (
    FOREIGN,
    INPUTS,
    OUTPUTS,
    CommittedHistory,
    HistoryChecker,
)

Message = Mapping[str, Any]
Timer = tuple[int, str]
_ENDLESS_MS: Final = 1 << 62


@dataclass(slots=True, kw_only=True)
class TxnModel:
    """A transaction as its output shows it."""

    life: int = 0
    number: int = 0
    batch_ms: int = 0
    watermark_ms: int = 0
    late_ms: int | None = None
    """The watermark of the transaction before; None: it is not known, because that one may have had no output."""
    latest: dict[str, int] = field(default_factory=dict)
    """Latest event time of each source among all rows by its end."""
    last_key: str = ""
    """Of the rows so far."""
    due: list[Timer] | None = None
    """The timers that are to fire, from when its rows are handled."""
    fired: int = 0


@dataclass(slots=True)
class KeyModel:
    """The state that a key should have."""

    numbers: list[int] = field(default_factory=list)
    last: tuple[int, int] | None = None
    """The value that expires, and the batch time that wrote it."""
    seen: dict[int, tuple[int, int]] = field(default_factory=dict)
    """The same by key of the map."""
    timers: set[int] = field(default_factory=set)
    version: int = 0
    """The release that wrote the last input."""

    def shape(self, version: int) -> list[int | None]:
        """Return what a release reads of the variable that releases declare differently."""
        if not self.numbers:
            return []
        written = shape_of(self.numbers[-1], self.version)
        return [*written, None][: version + 1]


@dataclass(slots=True)
class KeyedChecker(HistoryChecker):
    """Checks the invariants at each event."""

    mode: Mode = "processing"
    keys: dict[str, KeyModel] = field(default_factory=dict)
    handled: dict[int, str] = field(default_factory=dict)
    """What became of each input that was seen: a row, or late."""
    fired: int = 0
    warm: int = 0
    """Promotions that went on from a standby's index."""
    _sources: dict[int, str] = field(default_factory=dict)
    """The input journal of each number."""
    _txn: TxnModel = field(default_factory=TxnModel)
    """The transaction that is read."""
    _late: list[int] = field(default_factory=list)
    """Event times of late rows, which precede the rows of their transaction."""
    _storm_ms: int | None = None
    """Due bound of timers that the last transaction did not finish with."""

    def on_appended(self, appended: Appended) -> None:
        """Check an append to an input or to the output."""
        if appended.journal in INPUTS:
            before = set(self.committed)
            # Named, because a slotted dataclass is another class than the one that `super()` finds.
            HistoryChecker.on_appended(self, appended)
            self._sources.update(dict.fromkeys(self.committed - before, appended.journal))
        elif appended.journal in OUTPUTS:
            for message in self.history(appended.journal).messages(appended):
                if message["id"] < FOREIGN:
                    self._on_output(appended.journal, message)

    def history(self, journal: str) -> CommittedHistory:
        """Return what a committed reader sees of a journal."""
        return self._views[journal]

    def on_opened(self) -> None:
        """Note that a primary opens its store."""
        self.restores += 1

    def on_told_durable(self) -> None:
        """Note that a store was told of a commit."""
        self.commits += 1

    def on_warm(self, number: int) -> None:
        """Note a promotion that took an index over."""
        self.warm += 1
        self.tell(f"a standby's index is taken over at commit {number}")

    # -- at rest

    def missing(self) -> list[str]:
        """Return the expectations of a run's end that are not met yet, in words."""
        found: list[str] = []
        unseen = sorted(self.committed.difference(self.handled))
        if unseen:
            found.append(f"inputs {unseen} are neither handled nor late")
        due = self.due()
        if due:
            found.append(f"timers {due} have not fired")
        return found

    def due(self) -> list[tuple[int, str]]:
        """Return the timers that are to fire in the end: all, or those that the watermark passes."""
        endless = self.mode == "processing"
        return self._timers(_ENDLESS_MS if endless else _watermark(self._txn.latest))

    def differences(self, key: str, stored: Mapping[str, Any]) -> list[str]:
        """Return how the stored state of a key differs from the model, in words."""
        model = self.keys.get(key, KeyModel())
        expected = {"count": len(model.numbers) or None, "numbers": model.numbers or None}
        return [
            f"{key} has {name} {stored[name]}, not {value}"
            for name, value in expected.items()
            if (stored[name] or None) != value
        ]

    # -- the output

    def _on_output(self, journal: str, message: Message) -> None:
        if journal != OUTPUT:
            self.violate("S1", f"{journal} shows {message}, which is not for it")
        elif "late_reason" in message:
            self._on_late(message)
        else:
            txn = self._txn
            if (message["life"], message["txn"]) != (txn.life, txn.number):
                self._end()
                self._begin(message)
            if message["what"] == "row":
                self._on_row(message)
            else:
                self._on_timer(message)

    def _begin(self, message: Message) -> None:
        before, batch_ms, watermark_ms = self._txn, message["batch_ms"], message["watermark_ms"]
        if batch_ms < before.batch_ms:
            self.violate("K4", f"the batch time went back, from {before.batch_ms} to {batch_ms}")
        follows = (before.life, before.number + 1) == (message["life"], message["txn"])
        self._txn = TxnModel(
            life=message["life"],
            number=message["txn"],
            batch_ms=batch_ms,
            watermark_ms=watermark_ms,
            late_ms=before.watermark_ms if follows else None,
            latest=dict(before.latest),
        )
        if self.mode == "event":
            # Late rows, also those of this transaction, never move it.
            made = max(before.watermark_ms, _watermark(before.latest))
            if watermark_ms != made:
                self.violate("K4", f"the watermark is {watermark_ms}, the rows before made {made}")
            bound = before.watermark_ms if follows else watermark_ms
            if early := [at for at in self._late if at > bound]:
                self.violate("K4", f"rows of {early} were late, by a watermark of {bound}")
        self._late.clear()

    def _end(self) -> None:
        """Check that the transaction which was read last fired what was due."""
        txn = self._txn
        due = self._due()
        if txn.fired < len(due[:PIECE]):
            self.violate("K2", f"{due[txn.fired : PIECE]} were due, and did not fire")
        bound = self._bound()
        self._storm_ms = bound if len(due) > PIECE else None

    def _bound(self) -> int:
        if self._storm_ms is not None:
            return self._storm_ms
        return self._txn.batch_ms if self.mode == "processing" else self._txn.watermark_ms

    def _due(self) -> list[Timer]:
        """Return what is due in the transaction, fixed once its rows are handled."""
        if self._txn.due is None:
            self._txn.due = self._timers(self._bound())
        return self._txn.due

    def _timers(self, bound_ms: int) -> list[Timer]:
        return sorted(
            (expiry, key)
            for key, model in self.keys.items()
            for expiry in model.timers
            if expiry <= bound_ms
        )

    def _on_late(self, message: Message) -> None:
        number = message["id"]
        self._see(number, message["late_reason"])
        if self.mode != "event" or message["late_reason"] != "late":
            self.violate("K4", f"input {number} is set apart: {message}")
        self._late.append(at_of(number))
        self._observe(number)

    def _on_row(self, message: Message) -> None:
        number, key, batch_ms = message["id"], message["key"], message["batch_ms"]
        self._see(number, "row")
        if key != key_of(number):
            self.violate("S1", f"input {number} is handled by key {key}")
        txn = self._txn
        if txn.due is not None or key < txn.last_key:
            self.violate("K2", f"input {number} of {key} is handled behind timers, or later keys")
        txn.last_key = key
        late_ms = 0 if txn.late_ms is None else txn.late_ms
        if self.mode == "event" and at_of(number) <= late_ms:
            self.violate("K4", f"input {number} of {at_of(number)} is late, and was handled")
        model = self.keys.setdefault(key, KeyModel())
        model.numbers.append(number)
        model.version = message["version"]
        if renews(number):
            model.last = number, batch_ms
        model.seen[element_of(number)] = number, batch_ms
        alarm = alarm_of(number, at_of(number) if self.mode == "event" else batch_ms)
        if alarm is not None:
            model.timers.add(alarm)
        elif model.timers:
            model.timers.remove(min(model.timers))
        self._observe(number)
        self._compare(model, message)

    def _on_timer(self, message: Message) -> None:
        key, expiry = message["key"], message["at"]
        self.fired += 1
        self.tell(f"{OUTPUT} shows the timer {expiry} of {key}")
        txn, due = self._txn, self._due()
        expected = due[txn.fired] if txn.fired < len(due[:PIECE]) else None
        if (expiry, key) != expected:
            self.violate("K2", f"the timer {expiry} of {key} fired in place of {expected}")
        txn.fired += 1
        model = self.keys.setdefault(key, KeyModel())
        following = alarm_after(expiry)
        if following is not None:
            model.timers.add(following)
        self._compare(model, message)
        # Its own handler still sees it.
        model.timers.discard(expiry)

    def _compare(self, model: KeyModel, message: Message) -> None:
        expected: dict[str, Any] = {
            "count": len(model.numbers) or None,
            "numbers": model.numbers,
            "timers": sorted(model.timers),
            "shape": model.shape(message["version"]),
        }
        batch_ms = message["batch_ms"]
        self._expect("K1", message, expected)
        last = self._alive([] if model.last is None else [model.last], batch_ms)
        seen = self._alive(list(model.seen.values()), batch_ms)
        self._expect("K3", message, {"last": last[0] if last else None, "seen": seen})

    def _expect(self, invariant: str, message: Message, expected: Mapping[str, Any]) -> None:
        for name, value in expected.items():
            if message.get(name) != value:
                self.violate(
                    invariant,
                    f"{message['what']} {message['id'] or message['at']} of {message['key']} says {name}"
                    f" {message.get(name)}, not {value}",
                )

    @staticmethod
    def _alive(written: Sequence[tuple[int, int]], batch_ms: int) -> list[int]:
        return sorted(value for value, at_ms in written if batch_ms < at_ms + TTL_MS)

    def _see(self, number: int, what: str) -> None:
        self.tell(f"{OUTPUT} shows {number}: {what}")
        if number not in self.committed:
            self.violate("S1", f"input {number} is shown, and not committed")
        if number in self.handled:
            self.violate("S1", f"input {number} is shown twice")
        self.handled[number] = what

    def _observe(self, number: int) -> None:
        source, latest = self._sources.get(number, ""), self._txn.latest
        latest[source] = max(latest.get(source, 0), at_of(number))


def _watermark(latest: Mapping[str, int]) -> int:
    return min(max(0, latest.get(source, 0) - DELAY_MS) for source in INPUTS)
