"""Which appends have succeeded, for those that were sent to come after them.

Names are kept in memory, the newest `TURNS_MAX`: whoever asks for one that is forgotten, or that came before a restart,
is refused, has written nothing, and asks again without a turn once it knows the other's answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import grpc

from consumer.journal.broker.faults import RpcFault
from consumer.journal.broker.signal import Signal

TURNS_MAX = 4096
"""Names known at a time, of appends under way and done."""
WAIT_SECONDS_MAX = 5.0
"""Longest wait for others to succeed; a client whose append is refused then waits for them itself."""


class _End:
    """How an append ends."""

    def __init__(self) -> None:
        self.succeeded: bool | None = None
        """None until it has ended."""
        self._ended = Signal()

    def set(self, *, succeeded: bool) -> None:
        """End it; the first word counts."""
        if self.succeeded is None:
            self.succeeded = succeeded
            self._ended.notify()

    async def wait(self) -> bool:
        """Return whether it succeeded, once it has ended."""
        while self.succeeded is None:
            await self._ended.wait()
        return self.succeeded


class Turn:
    """An append's place among others; without arguments, that of one which has nothing to do with any."""

    def __init__(
        self,
        after: Sequence[_End] = (),
        end: _End | None = None,
        *,
        wait_seconds_max: float = 0.0,
        waits: set[asyncio.Timeout] | None = None,
    ) -> None:
        """Take the ends of those before it, its own, and where its wait can be cut short."""
        self._waits = waits if waits is not None else set()
        self._after = after
        self._end = end
        self._wait_seconds_max = wait_seconds_max

    @property
    def waits(self) -> bool:
        """Whether it comes after others."""
        return bool(self._after)

    async def wait(self) -> None:
        """Wait until all those before it have succeeded.

        Raises:
            RpcFault: one has failed, or is not known to have succeeded in time.
        """
        if not self._after:
            return
        timeout = asyncio.timeout(self._wait_seconds_max)
        try:
            async with timeout:
                self._waits.add(timeout)
                for end in self._after:
                    if not await end.wait():
                        raise _out_of_turn("an append that it comes after did not succeed")
        except TimeoutError:
            problem = "an append that it comes after is not known to have succeeded"
            raise _out_of_turn(problem) from None
        finally:
            self._waits.discard(timeout)

    def end(self, *, succeeded: bool) -> None:
        """Tell those after it whether it succeeded; the first word counts."""
        if self._end is not None:
            self._end.set(succeeded=succeeded)


class Turns:
    """Lives on the event loop."""

    def __init__(self, *, wait_seconds_max: float = WAIT_SECONDS_MAX) -> None:
        """Know no name.

        Args:
            wait_seconds_max: Longest wait for others to succeed.
        """
        self._wait_seconds_max = wait_seconds_max
        self._waits: set[asyncio.Timeout] = set()
        self._ends: dict[bytes, _End] = {}
        """Whether it succeeded, by name, oldest first."""

    @contextmanager
    def turn(self, name: bytes, after: Iterable[bytes]) -> Iterator[Turn]:
        """Yield the place of an append; if it has not ended well by the end of the block, it has failed.

        Args:
            name: Its own; empty if nothing will come after it.
            after: The names of those before it. They may come later: calls are not served in order.
        """
        ends = [self._end_of(each) for each in after]
        end = self._end_of(name) if name else None
        turn = Turn(ends, end, wait_seconds_max=self._wait_seconds_max, waits=self._waits)
        try:
            yield turn
        finally:
            turn.end(succeeded=False)

    def refuse_waiting(self) -> int:
        """End every wait for others now: the memory of those that wait is needed. Return how many there were."""
        waits, self._waits = self._waits, set()
        for timeout in waits:
            timeout.reschedule(0.0)
        return len(waits)

    def _end_of(self, name: bytes) -> _End:
        found = self._ends.get(name)
        if found is not None:
            return found
        while len(self._ends) >= TURNS_MAX:
            forgotten = self._ends.pop(next(iter(self._ends)))
            forgotten.set(succeeded=False)
        end = self._ends[name] = _End()
        return end


def _out_of_turn(problem: str) -> RpcFault:
    return RpcFault(grpc.StatusCode.FAILED_PRECONDITION, f"{problem}; nothing was written")
