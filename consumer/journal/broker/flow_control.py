"""How slow and how fast an append may be.

Source: gazette/core broker/append_flow_control.go (credit, balance, burst, bank factor). There a ticker moves both
every 50 ms; here both follow from elapsed time, so an append costs no timer per tick.
"""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Self

from allocator.runtime.clock import Clock

BURST_SECONDS = 1.0
"""An append may be silent this long; a throttle starts with this much to spend."""
BANK_FACTOR = 10
"""Unspent throttle accumulates to this many seconds' worth."""


class StalledSenderError(Exception):
    """A client sends its append slower than the minimum rate."""


class MinimumRate:
    """Cuts off a client whose content comes too slowly: staged content must not be pinned for ever.

    The credit is one second's worth of the minimum rate. Time spends it, content earns it.
    """

    def __init__(self, clock: Clock, *, bytes_per_second: int) -> None:
        self._clock = clock
        self._rate = bytes_per_second
        self._credit = bytes_per_second * BURST_SECONDS
        self._since = clock.monotonic_seconds()
        self._timeout = asyncio.timeout(None)

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
            raise StalledSenderError(
                f"content comes slower than {self._rate} bytes a second: is the sender stalled?"
            ) from stalled

    def pause(self) -> None:
        """Stop spending: the broker itself is busy now."""
        elapsed = self._clock.monotonic_seconds() - self._since
        self._credit = max(0.0, self._credit - elapsed * self._rate)
        self._timeout.reschedule(None)

    def earn(self, length: int) -> None:
        """Count content that arrived, bytes; while paused."""
        self._credit = min(self._rate * BURST_SECONDS, self._credit + length)

    def resume(self) -> None:
        """Spend again: it is the client's turn."""
        self._since = self._clock.monotonic_seconds()
        if self._rate:
            # The timeout lives in the loop's own time; only the distance is taken from the clock.
            self._timeout.reschedule(asyncio.get_running_loop().time() + self._credit / self._rate)


class Throttle:
    """Holds appends of one journal to its maximum rate; what was not used is kept for a while."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._rate = 0
        self._balance = 0.0
        self._at = 0.0

    def delay_seconds(self, length: int, *, bytes_per_second: int) -> float:
        """Pay for a chunk and return how long to wait before going on, seconds.

        The balance may become negative: whoever comes next waits for that debt too, so chunks pass in order.

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
