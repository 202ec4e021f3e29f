"""What appends wait for, which other threads tell them of at any moment."""

from __future__ import annotations

import asyncio

import pytest

from broadsheet.journals.append_dependencies import await_committed_or_sent, succeed
from broadsheet.journals.errors import JournalError
from broadsheet.journals.pipelining import AFTER_MAX, AppendToken, TurnFuture
from broadsheet.runtime.task_group import TaskGroup

TURN = AppendToken("http://broker", b"name")
DEADLINE_SECONDS = 20.0


def _sent(turn: AppendToken) -> TurnFuture[None]:
    """Return the future of an append that is on its way."""
    future: TurnFuture[None] = TurnFuture()
    future.sent(turn)
    return future


class SentBetweenLooks(TurnFuture[None]):
    """One whose append another thread sends right after a look that found it unsent."""

    @property
    def turn(self) -> AppendToken | None:
        """The turn; from the second look on there is one."""
        found = self._turn
        if self._armed and found is None:
            self._armed = False
            self.sent(TURN)
        return found

    @turn.setter
    def turn(self, turn: AppendToken | None) -> None:
        self._turn = turn

    def arm(self) -> None:
        """Have the next look send it."""
        self._armed = True

    _armed = False


async def test_what_is_sent_right_after_a_look_is_not_waited_for() -> None:
    """It is neither unsent any more, as it was found, nor done, so nobody would tell of it again."""
    future = SentBetweenLooks()
    future.arm()
    async with asyncio.timeout(DEADLINE_SECONDS):
        assert await await_committed_or_sent("a", {future}) == (TURN,)


async def test_turns_of_one_broker_are_gone_after() -> None:
    """Of several brokers, or of too many appends, one is waited for until that is no more so."""
    here = [_sent(AppendToken("http://broker", b"0")), _sent(AppendToken("http://broker", b"1"))]
    elsewhere = _sent(AppendToken("http://other", b"2"))
    many = [_sent(TURN) for _ in range(AFTER_MAX + 1)]
    async with asyncio.timeout(DEADLINE_SECONDS):
        assert {turn.name for turn in await await_committed_or_sent("a", here)} == {b"0", b"1"}
        for futures, left in (([elsewhere, *here], 2), (many, AFTER_MAX)):
            async with TaskGroup() as group:
                waiting = group.start_soon(await_committed_or_sent("a", futures), name="wait")
                await asyncio.sleep(0)
                assert not waiting.done()
                futures[0].set_result(None)
                assert len(await waiting) == left


async def test_failures_and_cancellations_are_told() -> None:
    """The cause stands in the error; there is no wait for the others."""
    failed: TurnFuture[None] = TurnFuture()
    failed.set_exception(OSError("disk"))
    cancelled: TurnFuture[None] = TurnFuture()
    cancelled.cancel()
    for wait in (succeed, await_committed_or_sent):
        with pytest.raises(JournalError, match="failed: disk"):
            await wait("a", {failed})
        with pytest.raises(JournalError, match="was cancelled"):
            await wait("a", {cancelled})
