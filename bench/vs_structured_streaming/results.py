"""Results of a system: sums by key, when each was seen and by which process; and what is measured, and how much."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

from bench.disturbances import Disturbances, Longest
from bench.vs_structured_streaming.rows import Row


@dataclass(frozen=True, slots=True)
class Pace:
    """So many rows at so many a second."""

    rows: int
    rows_per_second: float


ROWS = 1_000_000
"""Of one load."""
LOADS = 2
"""Measured after one that warms up."""
WARM_UP = Pace(2_000, 200.0)
LATENCY = (Pace(2_000, 200.0), Pace(500, 50.0))
"""After the warm-up, one after the other."""
RECOVERY = Pace(1_000_000, 100.0)
"""Until all kills are done."""
RESULT_SECONDS_MAX = 180.0
"""Longest wait for any result."""


@dataclass(frozen=True, slots=True)
class Sums:
    """The sums of one key, as a user saw them."""

    key: str
    n: int
    total: int
    pid: int
    """The process that had them."""
    at_monotonic_seconds: float


@dataclass(frozen=True, slots=True)
class SentRow:
    """A row, and when it was due to be published: a system that is late with taking it is late."""

    row: Row
    at_monotonic_seconds: float


class Results:
    """Fed by the thread that reads a system's results; waited for on others."""

    def __init__(self) -> None:
        """Begin with nothing seen."""
        self._changed = threading.Condition()
        self._all: list[Sums] = []
        self._latest: dict[str, Sums] = {}
        self._counted = 0
        self._failure: BaseException | None = None

    def add(self, found: Sequence[Sums]) -> None:
        """Add what was seen together."""
        with self._changed:
            for one in found:
                before = self._latest.get(one.key)
                self._counted += one.n - (before.n if before else 0)
                self._latest[one.key] = one
            self._all += found
            self._changed.notify_all()

    def fail(self, error: BaseException) -> None:
        """Let nobody wait for more."""
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    @property
    def seen(self) -> list[Sums]:
        """Everything, in the order in which it was seen."""
        with self._changed:
            return list(self._all)

    def latest(self) -> dict[str, tuple[int, int]]:
        """Return (n, total) by key as last seen."""
        with self._changed:
            return {key: (one.n, one.total) for key, one in self._latest.items()}

    def wait_until_counted(self, rows: int, *, timeout_seconds: float) -> float:
        """Wait until so many rows are in the sums; return when the last of them was seen, monotonic seconds."""
        with self._changed:
            self._wait_for(lambda: self._counted >= rows, f"{rows} rows", timeout_seconds)
            return self._all[-1].at_monotonic_seconds

    def wait_for_other(
        self,
        *,
        after: float,
        pids: Collection[int],
        keys: Collection[str] | None = None,
        timeout_seconds: float,
    ) -> Sums:
        """Wait for sums, of one of `keys` if given, seen after a time, that another process than `pids` had."""
        begin, found = 0, None

        def there() -> bool:
            nonlocal begin, found
            fresh, begin = self._all[begin:], len(self._all)
            matching = (
                one
                for one in fresh
                if one.at_monotonic_seconds > after
                and one.pid not in pids
                and (keys is None or one.key in keys)
            )
            found = next(matching, None)
            return found is not None

        with self._changed:
            self._wait_for(there, f"a result of another process than {pids}", timeout_seconds)
        assert found is not None
        return found

    def wait_until_seen(self, sent: Sequence[SentRow], *, timeout_seconds: float) -> None:
        """Wait until every row that was sent is in a result of its key."""
        wanted = {each.row.key: each.row.ordinal for each in sent}

        def there() -> bool:
            latest = self._latest
            return all(key in latest and latest[key].n >= n for key, n in wanted.items())

        with self._changed:
            self._wait_for(there, f"{len(sent)} rows, each", timeout_seconds)

    def _wait_for(self, condition: Callable[[], bool], what: str, timeout_seconds: float) -> None:
        deadline = time.monotonic() + timeout_seconds
        while not condition():
            if self._failure is not None:
                raise self._failure
            if not self._changed.wait(timeout=max(0.0, deadline - time.monotonic())):
                raise TimeoutError(
                    f"after {timeout_seconds:g} s there is no {what}; {self._counted} are counted"
                )


def latencies_seconds(sent: Sequence[SentRow], seen: Sequence[Sums]) -> list[float]:
    """Return, for each row, the time from when it was due to when it was first in a result.

    Requires:
        Rows of one key were sent in order, and every one is in a result.
    """
    by_key: dict[str, list[Sums]] = {}
    for one in seen:
        by_key.setdefault(one.key, []).append(one)
    next_by_key = dict.fromkeys(by_key, 0)
    found = []
    for each in sent:
        results, index = by_key[each.row.key], next_by_key[each.row.key]
        while results[index].n < each.row.ordinal:
            index += 1
        next_by_key[each.row.key] = index
        found.append(results[index].at_monotonic_seconds - each.at_monotonic_seconds)
    return found


def longest_wait_seconds(sent: Sequence[SentRow], seen: Sequence[Sums], *, since: int) -> float:
    """Return the longest time that a row waited for its result, of rows `since` and later; see `latencies_seconds`.

    After a kill it is the outage as a reader sees it, even if survivors answer for a moment before all of them stop.
    """
    return max(latencies_seconds(sent, seen)[since:])


def check_exact(
    found: Mapping[str, tuple[int, int]], expected: Mapping[str, tuple[int, int]], system: str
) -> None:
    """Check that every row is in the sums, once: a speed of wrong answers is none.

    Raises:
        AssertionError: it is not so.
    """
    wrong = [key for key, sums in expected.items() if found.get(key) != sums]
    assert not wrong, (
        f"{system}: {len(wrong)} keys are wrong, e.g. {wrong[0]}: {found.get(wrong[0])}"
    )


@dataclass(frozen=True, slots=True)
class Latencies:
    """Of rows that were sent at one pace."""

    seconds: list[float]
    """Of each row."""
    longest: Longest
    """What disturbed the machine, from when the first row was due to when the last one was seen."""

    def and_of(self, other: Latencies) -> Latencies:
        """Return those of two rounds."""
        return Latencies(self.seconds + other.seconds, Longest.of((self.longest, other.longest)))


@dataclass(slots=True)
class Measured:
    """Of one system."""

    rows_per_second: list[float] = field(default_factory=list)
    """Of each load."""
    latencies: dict[float, Latencies] = field(default_factory=dict)
    """By the rows a second that were sent."""
    recoveries_seconds: dict[str, list[float]] = field(default_factory=dict)
    """Of each kill, by what was killed."""

    def add(self, other: Measured) -> None:
        """Add what another round measured."""
        self.rows_per_second += other.rows_per_second
        for rate, latencies in other.latencies.items():
            before = self.latencies.get(rate)
            self.latencies[rate] = before.and_of(latencies) if before else latencies
        for kill, recoveries in other.recoveries_seconds.items():
            self.recoveries_seconds.setdefault(kill, []).extend(recoveries)


def latencies_by_pace(
    sent: Sequence[SentRow], seen: Sequence[Sums], disturbances: Disturbances
) -> dict[float, Latencies]:
    """Return the latencies of rows after the warm-up, by the rows a second that were sent then."""
    all_seconds = latencies_seconds(sent, seen)
    begin, found = WARM_UP.rows, {}
    for pace in LATENCY:
        end = begin + pace.rows
        due = [row.at_monotonic_seconds for row in sent[begin:end]]
        seconds = all_seconds[begin:end]
        last_seen = max(at + latency for at, latency in zip(due, seconds, strict=True))
        longest = disturbances.longest(since=due[0], until=last_seen)
        found[pace.rows_per_second] = Latencies(seconds, longest)
        begin = end
    return found
