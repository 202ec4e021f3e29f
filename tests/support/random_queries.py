"""Random processors and inputs of `transformWithState`: what they do is data, so that any engine can run them.

A case is a script: batches of rows, each of which says what its key's handler does with state and timers. Processor and
script are drawn from one seed; two engines that behave alike emit the same rows, batch by batch.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.support.spark_processors import TwoModes

MODES = ("None", "ProcessingTime", "EventTime")
SCHEMA = "id string, at timestamp, op string"
OUTPUT = "id string, n string"
DELAY_MS = 10_000
_GRID_MS = 5_000
"""Times are multiples of it, so that equal ones occur."""
_FAR = 10_000


@dataclass(frozen=True, slots=True)
class Script:
    """A case."""

    mode: str
    in_pandas: bool
    batches: Sequence[Sequence[tuple[str | None, int, str]]]
    """Rows (id, event time in ms, operation as JSON)."""


def script_of(
    seed: int, *, mode: str, in_pandas: bool, keys: int, batches: int, rows: int
) -> Script:
    """Return the case of a seed.

    Args:
        seed: Decides all of it.
        mode: Time mode.
        in_pandas: Whether handlers get frames.
        keys: Distinct keys.
        batches: Batches.
        rows: Rows of a batch.
    """
    random = Random(seed)
    names = [None, *(f"{seed}-{each}" for each in range(keys - 1))]
    made, base = [], _GRID_MS
    for _ in range(batches):
        batch = []
        for _ in range(random.randint(1, rows)):
            at = max(1, base + random.randint(-4, 4) * _GRID_MS)
            batch.append((random.choice(names), at, json.dumps(_operation(random, mode))))
        made.append(batch)
        base += random.randint(0, 3) * _GRID_MS
    return Script(mode, in_pandas, made)


def _operation(random: Random, mode: str) -> list[Any]:
    number = random.choice([0, 1, 2, 3, None, 1.5, True, 2**31])
    choices: list[list[Any]] = [
        ["v.update", number],
        ["v.clear"],
        ["l.put", [number, random.randint(0, 9)]],
        ["l.append", number],
        ["l.clear"],
        ["m.put", random.randint(-1, 3), number],
        ["m.remove", random.randint(-1, 3)],
        ["m.clear"],
        ["nothing"],
    ]
    if mode != "None":
        choices += [["register", random.randint(-3, 3) * _GRID_MS]] * 4
        choices += [["delete", random.randint(-3, 3) * _GRID_MS]] * 2
    return random.choice(choices)


class Scripted(TwoModes):
    """Does what the rows say, and emits all that it can see."""

    def __init__(self, *, mode: str, in_pandas: bool = False) -> None:
        super().__init__(in_pandas=in_pandas)
        self.mode = mode

    def init(self, handle: Any) -> None:
        """Declare one variable of each kind."""
        super().init(handle)
        self.v = handle.getValueState("v", "n int, s string")
        self.l = handle.getListState("l", "n int")
        self.m = handle.getMapState("m", "k int", "n int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Do the operations of a key's rows."""
        for row in self.taken(rows):
            self._do(json.loads(row.op), timerValues)
        yield from self.emitted((key[0], self._seen("rows", timerValues)))

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        """Change state and timers by the time that fires."""
        expiry = expiredTimerInfo.getExpiryTimeInMs()
        event = self.mode == "EventTime"
        text = f"timer {expiry if event else ''}"
        yield from self.emitted((key[0], self._seen(text, timerValues)))
        # By processing time, only how long ago it was compares.
        now = timerValues.getCurrentProcessingTimeInMs()
        grid = abs(expiry if event else now - expiry) // _GRID_MS
        if grid % 3 == 0:
            self.v.clear()
        if grid % 3 == 1:
            self.l.appendValue((grid % 7,))
        if event and grid % 2:
            self.h.registerTimer(expiry + 2 * _GRID_MS)

    def _do(self, operation: list[Any], times: Any) -> None:
        match operation:
            case ["v.update", number]:
                self.v.update((number, number))
            case ["v.clear"]:
                self.v.clear()
            case ["l.put", numbers]:
                self.l.put([(each,) for each in numbers])
            case ["l.append", number]:
                self.l.appendList([(number,)])
            case ["l.clear"]:
                self.l.clear()
            case ["m.put", name, number]:
                self.m.updateValue((name,), (number,))
            case ["m.remove", name]:
                self.m.removeKey((name,))
            case ["m.clear"]:
                self.m.clear()
            case ["register" | "delete" as what, offset]:
                call = self.h.registerTimer if what == "register" else self.h.deleteTimer
                # By processing time a timer fires in its own batch, or never: batches of engines take other times.
                is_far = self.mode == "ProcessingTime" and offset > 0
                call(self._now(times) + offset * (_FAR if is_far else 1))

    def _now(self, times: Any) -> int:
        if self.mode == "EventTime":
            return int(times.getCurrentWatermarkInMs())
        return int(times.getCurrentProcessingTimeInMs())

    def _seen(self, what: str, times: Any) -> str:
        seen: list[Any] = [
            what,
            self.v.get(),
            list(self.l.get()),
            sorted(self.m.iterator(), key=repr),
        ]
        if self.mode == "EventTime":
            seen += [times.getCurrentWatermarkInMs(), sorted(self.h.listTimers())]
        elif self.mode == "ProcessingTime":
            # The clocks of two engines differ: only how far ahead timers are compares.
            now = times.getCurrentProcessingTimeInMs()
            ahead = [each - now for each in self.h.listTimers()]
            seen.append(len([each for each in ahead if each > 0]))
        return repr(seen)
