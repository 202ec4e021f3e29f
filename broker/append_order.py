"""Order of pipelined appends: each names the appends that must succeed before it.

Outcomes are kept in memory for the newest `TURNS_MAX` names. An append that names a forgotten one, or one from before a
restart, is refused with nothing written. Its client then waits for the predecessor's answer and sends the append again
without naming it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import Self

import grpc

from broadsheet.broker.faults import RpcFault
from broadsheet.runtime.event_loop import Signal

TURNS_MAX = 4096
"""Names remembered at a time, of appends in progress and finished."""
WAIT_SECONDS_MAX = 5.0
"""Longest wait for predecessors; a client whose append is refused then waits for their answers itself."""


class _End:
    """Outcome of one append, which later appends can await."""

    def __init__(self) -> None:
        self.succeeded: bool | None = None
        """None until the outcome is known."""
        self._ended = Signal()

    def set(self, *, succeeded: bool) -> None:
        """Record the outcome; only the first call counts."""
        if self.succeeded is None:
            self.succeeded = succeeded
            self._ended.notify()

    async def wait(self) -> bool:
        """Return whether the append succeeded, once its outcome is known."""
        while self.succeeded is None:
            await self._ended.wait()
        return self.succeeded


class AppendTurn:
    """Place of one append in the pipelined order; without arguments, an append that depends on no other."""

    def __init__(
        self,
        after: Sequence[_End] = (),
        end: _End | None = None,
        *,
        wait_seconds_max: float = 0.0,
        waits: set[asyncio.Timeout] | None = None,
    ) -> None:
        self._waits = waits if waits is not None else set()
        self._after = after
        self._end = end
        self._wait_seconds_max = wait_seconds_max

    @property
    def waits(self) -> bool:
        """True if the append names predecessors."""
        return bool(self._after)

    async def wait(self) -> None:
        """Wait until all predecessors have succeeded.

        Raises:
            RpcFault: a predecessor has failed, or is not known to have succeeded in time.
        """
        if not self._after:
            return
        timeout = asyncio.timeout(self._wait_seconds_max)
        try:
            async with timeout:
                self._waits.add(timeout)
                for end in self._after:
                    if not await end.wait():
                        raise _not_committed("its predecessor append did not succeed")
        except TimeoutError:
            problem = "its predecessor append is not known to have succeeded"
            raise _not_committed(problem) from None
        finally:
            self._waits.discard(timeout)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end(succeeded=False)

    def end(self, *, succeeded: bool) -> None:
        """Tell the successors whether this append succeeded; only the first call counts."""
        if self._end is not None:
            self._end.set(succeeded=succeeded)


class AppendOrder:
    """Order of pipelined appends, by name. Lives on the event loop."""

    def __init__(self, *, wait_seconds_max: float = WAIT_SECONDS_MAX) -> None:
        """Begin without any names.

        Args:
            wait_seconds_max: Longest wait for predecessors.
        """
        self._wait_seconds_max = wait_seconds_max
        self._waits: set[asyncio.Timeout] = set()
        self._ends: dict[bytes, _End] = {}
        """Outcomes by name, oldest first."""

    def turn(self, name: bytes, after: Iterable[bytes]) -> AppendTurn:
        """Return the block of an append and its place; it has failed if it did not succeed by the end of the block.

        Args:
            name: The append's name; empty if no other will follow it.
            after: Names of its predecessors. They may arrive later, because calls are not served in order.
        """
        ends = [self._end_of(each) for each in after]
        end = self._end_of(name) if name else None
        return AppendTurn(ends, end, wait_seconds_max=self._wait_seconds_max, waits=self._waits)

    def refuse_waiting(self) -> int:
        """End every wait for predecessors, because the memory is needed; return how many there were."""
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


def _not_committed(problem: str) -> RpcFault:
    return RpcFault(grpc.StatusCode.FAILED_PRECONDITION, f"{problem}; nothing was written")
