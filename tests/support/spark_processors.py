"""Processors as users of Spark write them, for rows and for pandas: one class does both, by a flag.

What they do was rewritten from the facts of Spark's own tests of `transformWithState`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd  # type: ignore[import-untyped]  # it ships no types
import pytest
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import Row
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle


class TwoModes(StatefulProcessor):
    """A processor whose rows are tuples in both modes."""

    columns: Sequence[str] = ("id", "n")

    def __init__(self, *, in_pandas: bool = False) -> None:
        self.in_pandas = in_pandas

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Keep the handle."""
        self.h = handle

    def taken(self, rows: Any) -> Iterator[Any]:
        """Yield rows with attributes."""
        if not self.in_pandas:
            yield from rows
            return
        for frame in rows:
            yield from frame.itertuples(index=False)

    def emitted(self, *rows: Sequence[Any]) -> Iterator[Any]:
        """Yield rows of output."""
        if self.in_pandas:
            frame = pd.DataFrame(list(rows), columns=list(self.columns))
            yield frame if len(frame) else pd.DataFrame()
        else:
            yield from (Row(**dict(zip(self.columns, row, strict=True))) for row in rows)


class Violations(TwoModes):
    """Counts hot rows of a key, tells how many rows came, and uses a variable that it removed."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the count, and a variable that goes."""
        super().init(handle)
        self.hot = handle.getValueState("numViolations", "value int")
        self.gone = handle.getValueState("tempState", "value int")
        handle.deleteIfExists("tempState")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Count."""
        with pytest.raises(PySparkRuntimeError, match="Error checking value state exists"):
            self.gone.exists()
        temperatures = [row.temperature for row in self.taken(rows)]
        hot = sum(each > 100 for each in temperatures)
        self.hot.update(((self.hot.get() or (0,))[0] + hot,))
        yield from self.emitted((key[0], str(len(temperatures))))


class Summed(TwoModes):
    """Adds temperatures to what state began with; in event and processing time tells of timers of its beginnings."""

    def __init__(self, *, in_pandas: bool = False, with_timers: bool = False) -> None:
        super().__init__(in_pandas=in_pandas)
        self.with_timers = with_timers

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the sum."""
        super().init(handle)
        self.sum = handle.getValueState("sum", "value int")

    def handleInitialState(self, key: Any, initialState: Any, timerValues: Any) -> None:
        """Begin with a temperature."""
        first = initialState.at[0, "initVal"] if self.in_pandas else initialState.initVal
        self.sum.update((int(first),))
        if self.with_timers:
            self.h.registerTimer(timerValues.getCurrentProcessingTimeInMs() - 1)

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Add."""
        total = (self.sum.get() or (0,))[0] + sum(row.temperature for row in self.taken(rows))
        self.sum.update((int(total),))
        yield from self.emitted((key[0], str(int(total))))

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        """Tell."""
        yield from self.emitted((key[0], f"{key[0]}-expired"))


class LatestTime(TwoModes):
    """Keeps the latest event time of a key, and tells when the watermark of its batch is passed."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare it."""
        super().init(handle)
        self.latest = handle.getValueState("latest", "at timestamp")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Keep the latest, in seconds."""
        seconds = [row.at.timestamp() for row in self.taken(rows)]
        stored = self.latest.get()
        if stored is not None:
            seconds.append((stored[0] - pd.Timestamp(0).to_pydatetime()).total_seconds())
        self.latest.update((pd.Timestamp(max(seconds), unit="s").to_pydatetime(),))
        self.h.registerTimer(timerValues.getCurrentWatermarkInMs())
        yield from self.emitted((key[0], str(int(max(seconds)))))

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        """Forget, and tell."""
        self.latest.clear()
        yield from self.emitted((f"{key[0]}-expired", str(expiredTimerInfo.getExpiryTimeInMs())))


class Alarmed(TwoModes):
    """Counts rows; the key 0 has a timer a millisecond later, which tells how many timers there are, and forgets."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare the count."""
        super().init(handle)
        self.count = handle.getValueState("count", "value int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Count."""
        count = (self.count.get() or (0,))[0] + len(list(self.taken(rows)))
        self.count.update((count,))
        if key[0] == "0":
            self.h.registerTimer(timerValues.getCurrentProcessingTimeInMs() + 1)
        yield from self.emitted((key[0], str(count)))

    def handleExpiredTimer(
        self, key: Any, timerValues: Any, expiredTimerInfo: Any
    ) -> Iterator[Any]:
        """Forget, and tell."""
        timers = list(self.h.listTimers())
        assert len(timers) == 2, "the one that fires, and that of this batch's rows"
        self.count.clear()
        assert expiredTimerInfo.getExpiryTimeInMs() < timerValues.getCurrentProcessingTimeInMs()
        yield from self.emitted((key[0], "-1"))


class Expiring(TwoModes):
    """Counts in a value, a list and a map that expire, and in a value that does not; leaves out writes when told to."""

    columns = ("id", "n", "l", "m", "plain")

    def __init__(self, *, in_pandas: bool = False, ttl_ms: int = 10_000) -> None:
        super().__init__(in_pandas=in_pandas)
        self.ttl_ms = ttl_ms

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare them."""
        super().init(handle)
        self.value = handle.getValueState("ttl", "n int", self.ttl_ms)
        self.list = handle.getListState("list", "n int", self.ttl_ms)
        self.map = handle.getMapState("map", "k string", "n int", self.ttl_ms)
        self.plain = handle.getValueState("plain", "n int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Count one."""
        skips = any(row.temperature == 0 for row in self.taken(rows))
        entry: Any = self.map.getValue((key[0],))
        found = [
            (self.value.get() or (0,))[0] + 1,
            len(list(self.list.get())) + 1,
            (0 if entry is None else entry.n) + 1,
            (self.plain.get() or (0,))[0] + 1,
        ]
        if not skips:
            self.value.update((found[0],))
            self.list.appendValue((found[1],))
            self.map.updateValue((key[0],), (found[2],))
        self.plain.update((found[3],))
        yield from self.emitted((key[0], *found))


class Listed(TwoModes):
    """Puts and appends to a list, and reads it by three iterators at once."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare two lists, one of times."""
        super().init(handle)
        self.one = handle.getListState("one", "temperature int")
        self.two = handle.getListState("two", "temperature int")
        self.times = handle.getListState("times", "at timestamp")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Write and read."""
        count = len(list(self.taken(rows)))
        at = pd.Timestamp("2026-01-01 10:00").to_pydatetime()
        for state, appended in ((self.one, 111), (self.two, 222)):
            state.put([(120,), (20,)])
            state.appendValue((appended,))
            state.appendList([(120,), (20,)])
        self.times.put([(at,)])
        self.times.appendValue((at,))
        assert list(self.times.get()) == [(at,), (at,)]
        first, second, again = self.one.get(), self.two.get(), self.one.get()
        merged = [(next(first)[0], next(second)[0], next(again)[0]) for _ in range(3)]
        assert merged == [(120, 120, 120), (20, 20, 20), (111, 222, 111)]
        assert [each for (each,) in (*first,)] == [120, 20]
        yield from self.emitted((key[0], str(count)))


class Mapped(TwoModes):
    """Uses all of a map."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare it."""
        super().init(handle)
        self.map = handle.getMapState("map", "name string", "value int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Write and read."""
        count = len(list(self.taken(rows)))
        before = 0
        if self.map.exists():
            before = sum(value for (value,) in self.map.values())
            assert sorted(self.map.keys()) == [("key1",), ("key2",)]
            self.map.removeKey(("key2",))
            assert list(self.map.iterator()) == [(("key1",), (count if before else 0,))] or before
        self.map.updateValue(("key1",), (count,))
        self.map.updateValue(("key2",), (before,))
        assert self.map.containsKey(("key2",))
        assert self.map.getValue(("key1",)) == (count,)
        yield from self.emitted((key[0], str(count)))


class Grown(TwoModes):
    """A list of many elements, with a null field."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare it."""
        super().init(handle)
        self.list = handle.getListState("list", "value int, other int")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Grow from 100 to 190 elements: the key 0 by put, others by appendList."""
        list(self.taken(rows))
        before = list(self.list.get())
        assert before == [(each, None) for each in range(len(before))]
        more = [(each, None) for each in range(len(before), 190 if before else 100)]
        if key[0] == "0" or not before:
            self.list.put([*before, *more])
        else:
            self.list.appendList(more)
        yield from self.emitted((key[0], str(len(list(self.list.get())))))


class Composite(TwoModes):
    """Structs, arrays and maps in a value, a list and a map."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        """Declare them."""
        super().init(handle)
        self.value = handle.getValueState(
            "value",
            "id array<int>, tags array<struct<k:string,v:int>>, config map<string,map<string,int>>",
        )
        self.list = handle.getListState("list", "s struct<x:int,y:array<string>>")
        self.map = handle.getMapState("map", "name string", "m map<string,array<int>>")

    def handleInputRows(self, key: Any, rows: Any, timerValues: Any) -> Iterator[Any]:
        """Extend each by the rows' temperatures."""
        temperatures = [int(row.temperature) for row in self.taken(rows)]
        ids, tags, config = self.value.get() or ([], [], {})
        self.value.update(
            (
                [*ids, sum(temperatures)],
                [*tags, Row(k="t", v=len(ids))],
                {**config, f"c{len(ids)}": {"a": 1}},
            )
        )
        self.list.appendValue(((len(ids), ["a", None]),))
        self.map.updateValue((f"key{len(ids)}",), ({"all": temperatures},))
        shown = [
            self.value.get(),
            [s.x for (s,) in self.list.get()],
            {name: m["all"] for (name,), (m,) in self.map.iterator()},
        ]
        yield from self.emitted((key[0], repr(shown)))
