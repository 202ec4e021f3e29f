"""Lowest and highest rates of appends.

Source: gazette/core broker/append_flow_control.go (credit, balance, burst, bank factor). There a ticker moves both
every 50 ms; here both follow from elapsed time, so an append costs no timer per tick.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Self

from broadsheet.broker.config import BrokerBounds
from broadsheet.broker.limits import Refusals
from broadsheet.runtime.clock import Clock

BURST_SECONDS = 1.0
"""Longest silence of a sender; a throttle starts with this much credit."""
BANK_FACTOR = 10
"""Unused credit of a throttle accumulates to this many seconds' worth."""


class StalledSenderError(Exception):
    """A client that sends its append below the minimum rate."""


class MinimumRate:
    """Cut-off for clients that send too slowly, because staged content must not be pinned forever.

    The credit is one second's worth of the minimum rate. Time spends it, content earns it.
    """

    def __init__(self, clock: Clock, *, bytes_per_second: int) -> None:
        self._clock = clock
        self._rate = bytes_per_second
        self._credit = bytes_per_second * BURST_SECONDS
        self._since = clock.monotonic_seconds()
        self._timeout = asyncio.timeout(None)
        self._given_up = ""
        self.waits_since: float | None = None
        """Time since which the broker waits for the client, monotonic seconds; None while it does not."""

    def give_up(self, problem: str) -> None:
        """Cut the client off now, if the broker is waiting for it."""
        self._given_up = problem
        self.waits_since = None
        self._timeout.reschedule(0.0)

    async def __aenter__(self) -> Self:
        await self._timeout.__aenter__()
        self.resume()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            await self._timeout.__aexit__(kind, error, trace)
        except TimeoutError as stalled:
            problem = f"content comes slower than {self._rate} bytes a second"
            raise StalledSenderError(
                f"{self._given_up or problem}: is the sender stalled?"
            ) from stalled

    def pause(self) -> None:
        """Stop the clock: the broker itself is busy now."""
        self.waits_since = None
        elapsed = self._clock.monotonic_seconds() - self._since
        self._credit = max(0.0, self._credit - elapsed * self._rate)
        self._timeout.reschedule(None)

    def earn(self, length: int) -> None:
        """Add content that arrived, bytes, to the credit; only while paused."""
        self._credit = min(self._rate * BURST_SECONDS, self._credit + length)

    def resume(self) -> None:
        """Restart the clock: the broker waits for the client again."""
        self._since = self.waits_since = self._clock.monotonic_seconds()
        if self._rate:
            # The timeout uses the loop's own time, so only the difference is taken from the clock.
            self._timeout.reschedule(asyncio.get_running_loop().time() + self._credit / self._rate)


class Receivers:
    """Appends of one journal whose content is being received; a new one never waits for a stalled one."""

    def __init__(self, bounds: BrokerBounds, refusals: Refusals) -> None:
        self._bound = bounds.appends_per_journal_max
        self._refusals = refusals
        self._paces: set[MinimumRate] = set()

    @contextmanager
    def receiving(self, pace: MinimumRate) -> Iterator[None]:
        """Count an append during the block; above the bound, the sender that has been silent longest is cut off.

        If none is silent, all go on: staging bounds their content, and the broker's limit on calls their number.
        """
        while len(self._paces) >= self._bound:
            silent = min(
                (each for each in self._paces if each.waits_since is not None),
                key=lambda each: each.waits_since or 0.0,
                default=None,
            )
            if silent is None:
                break
            self._paces.discard(silent)
            self._refusals.counts["appends_per_journal_max"] += 1
            silent.give_up(f"the journal receives {self._bound} appends at a time, others came")
        self._paces.add(pace)
        try:
            yield
        finally:
            self._paces.discard(pace)


class Throttle:
    """Limit of one journal's appends to its maximum rate; unused credit is kept for a while."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rate = 0
        self._balance = 0.0
        self._at = 0.0

    def delay_seconds(self, length: int, *, bytes_per_second: int) -> float:
        """Charge for a chunk and return how long to wait before going on, seconds.

        The balance may become negative. The next chunk waits for that debt too, so chunks pass in order.

        Args:
            length: Of the chunk, bytes.
            bytes_per_second: The journal's present maximum; zero is none.
        """
        now = self._clock.monotonic_seconds()
        if bytes_per_second != self._rate:
            self._rate, self._at = bytes_per_second, now
            self._balance = bytes_per_second * BURST_SECONDS
        if not bytes_per_second:
            return 0.0
        earned = max(0.0, now - self._at) * self._rate
        self._balance = min(self._balance + earned, float(BANK_FACTOR * self._rate)) - length
        self._at = now
        return max(0.0, -self._balance / self._rate)
