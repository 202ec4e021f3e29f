"""What an append waits for: until it has succeeded, or is on its way to a broker that keeps the order."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Sequence

from consumer.errors import JournalError
from consumer.journal.append_queue import AnyFuture
from consumer.journal.in_turn import AFTER_MAX
from consumer.op_future import Turn, TurnFuture


async def succeed(journal: str, futures: Collection[AnyFuture]) -> None:
    """Wait until every future has succeeded; the first that is found to have failed fails us.

    Raises:
        JournalError: one failed or was cancelled; the cause is chained.
    """
    while unfinished := [one for one in futures if not _is_done(journal, one)]:
        await _any_done(unfinished)


async def succeed_or_go(journal: str, futures: Collection[AnyFuture]) -> tuple[Turn, ...]:
    """Wait until every future has succeeded, or its append is on its way in turn; return these turns, of one broker.

    Raises:
        JournalError: as `succeed`.
    """
    while unfinished := [one for one in futures if not _is_done(journal, one)]:
        # Looked at once: other threads send appends, and whatever is sent between two looks would be in neither.
        looks = [(one, _turn_of(one)) for one in unfinished]
        turns = tuple(turn for _, turn in looks if turn is not None)
        if len(turns) < len(looks):
            await _any_done_or_sent([one for one, turn in looks if turn is None])
        elif len(turns) > AFTER_MAX or len({turn.endpoint for turn in turns}) > 1:
            await _any_done(unfinished)
        else:
            return turns
    return ()


def _turn_of(future: AnyFuture) -> Turn | None:
    return future.turn if isinstance(future, TurnFuture) else None


def _is_done(journal: str, future: AnyFuture) -> bool:
    if not future.done():
        return False
    if future.cancelled():
        raise JournalError(journal, "what an append waited for was cancelled")
    error = future.exception()
    if error is not None:
        raise JournalError(journal, f"what an append waited for failed: {error}") from error
    return True


async def _any_done(futures: Sequence[AnyFuture]) -> None:
    """Wait until one of at least one is done.

    Unlike `asyncio.wrap_future`, cancelling the wait leaves the futures alone.
    """
    changed = _Change()
    for future in futures:
        future.add_done_callback(changed)
    await changed.wait()


async def _any_done_or_sent(futures: Sequence[AnyFuture]) -> None:
    changed = _Change()
    for future in futures:
        future.add_done_callback(changed)
        if isinstance(future, TurnFuture):
            future.when_sent(changed)
    await changed.wait()


class _Change:
    """Wakes one waiter on the event loop; called on any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def __call__(self, _: object) -> None:
        # The loop may be gone when a store's thread finishes late; nobody waits any more then.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self) -> None:
        await self._event.wait()
