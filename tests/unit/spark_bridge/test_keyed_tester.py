"""A hosted processor does what PySpark's own `TwsTester` says of it, where the tester is like Spark."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.support.hosted_runs import HostedLives
from tests.support.spark_processors import TwoModes

tws_tester = pytest.importorskip("pyspark.sql.streaming.tws_tester", reason="PySpark 4.2 has it")

STEPS = 40
SEEDS = 25
_TICK_MS = 125
"""An eighth of a second: the clock's seconds are exact then."""


class Remembering(TwoModes):
    """Keeps numbers in each kind of variable, sets timers ahead, and tells all that it has."""

    def init(self, handle: Any) -> None:
        """Declare one variable of each kind."""
        super().init(handle)
        self.v = handle.getValueState("v", "n int")
        self.l = handle.getListState("l", "n int")
        self.m = handle.getMapState("m", "k int", "n int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Put each number where it belongs."""
        now = timerValues.getCurrentProcessingTimeInMs()
        for row in rows:
            match row.n % 6:
                case 0:
                    self.v.update((row.n,))
                case 1:
                    self.v.clear()
                case 2:
                    self.l.appendValue((row.n,))
                case 3:
                    self.m.updateValue((row.n % 5,), (row.n,))
                case 4:
                    self.m.removeKey((row.n % 5,))
                case _:
                    self.h.registerTimer(now + 50 * (row.n % 7 + 1))
        yield from self.emitted((key[0], self._seen()))

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        """Tell the time that fires, and forget the list."""
        del timerValues
        yield from self.emitted((key[0], f"{expiredTimerInfo.getExpiryTimeInMs()} {self._seen()}"))
        self.l.clear()

    def _seen(self) -> str:
        entries = [(tuple(name), tuple(number)) for name, number in self.m.iterator()]
        return repr(
            (self.v.exists(), self.v.get(), list(map(tuple, self.l.get())), sorted(entries))
        )


@pytest.mark.parametrize("seed", range(SEEDS))
def test_hosted_processor_emits_what_the_tester_emits(tmp_path: Path, seed: int) -> None:
    """Values, lists, maps and timers in processing time, key by key: PySpark's tester is a second opinion without JVM.

    The tester fires timers key by key, Spark and shards by time, so rows of one moment are compared sorted.
    """
    from pyspark.sql import Row

    random = Random(seed)
    tester = tws_tester.TwsTester(Remembering(), timeMode="ProcessingTime", outputMode="Update")
    lives = HostedLives(
        tmp_path,
        processor=Remembering(),
        key="id",
        inputSchema="id string, n int",
        outputStructType="id string, n string",
        outputMode="Update",
        timeMode="ProcessingTime",
    )
    try:
        tester.setProcessingTime(lives.clock.now_ms)
        for _ in range(STEPS):
            if random.random() < 0.3:
                lives.clock.now_ms += random.randint(1, 4) * _TICK_MS
                expected = tester.setProcessingTime(lives.clock.now_ms)
                emitted = lives.batch()
            else:
                name = random.choice("abc")
                rows = [(name, random.randint(0, 60)) for _ in range(random.randint(1, 4))]
                expected = tester.test(name, [Row(id=name, n=number) for _, number in rows])
                emitted = lives.batch(*rows)
            assert sorted(emitted) == sorted(tuple(row) for row in expected)
    finally:
        lives.end()
