"""Dependencies of an append: each must have succeeded, or be on its way to a broker that keeps the order."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Collection, Sequence
from concurrent.futures import Future
from typing import Any, TypeAlias

from broadsheet.journals.errors import (
    JournalError,
)
from broadsheet.journals.pipelining import (
    AFTER_MAX,
    AppendToken,
    TurnFuture,
)

# `Any`, because futures are invariant in their result, and a dependency's result is not used here.
AnyFuture: TypeAlias = "Future[Any]"


async def succeed(journal: str, futures: Collection[AnyFuture]) -> None:
    """Wait until every future has succeeded; the first failure found is raised.

    Raises:
        JournalError: one failed or was cancelled; the cause is chained.
    """
    while unfinished := [one for one in futures if not _is_done(journal, one)]:
        await _any_done(unfinished)


async def await_committed_or_sent(
    journal: str, futures: Collection[AnyFuture]
) -> tuple[AppendToken, ...]:
    """Wait until every future has succeeded or its append was sent.

    Returns the tokens of the sent ones, which are all of one broker.

    Raises:
        JournalError: as `succeed`.
    """
    while unfinished := [one for one in futures if not _is_done(journal, one)]:
        # All tokens are taken at one moment, because other threads send appends, and one sent
        # between two passes would be missed by both.
        looks = [(one, _turn_of(one)) for one in unfinished]
        turns = tuple(turn for _, turn in looks if turn is not None)
        if len(turns) < len(looks):
            await _any_done_or_sent([one for one, turn in looks if turn is None])
        elif len(turns) > AFTER_MAX or len({turn.endpoint for turn in turns}) > 1:
            await _any_done(unfinished)
        else:
            return turns
    return ()


def _turn_of(future: AnyFuture) -> AppendToken | None:
    return future.turn if isinstance(future, TurnFuture) else None


def _is_done(journal: str, future: AnyFuture) -> bool:
    if not future.done():
        return False
    if future.cancelled():
        raise JournalError(journal, "the append's dependency was cancelled")
    error = future.exception()
    if error is not None:
        raise JournalError(journal, f"the append's dependency failed: {error}") from error
    return True


async def _any_done(futures: Sequence[AnyFuture]) -> None:
    """Wait until at least one future is done. Requires at least one.

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
    """Wake-up of one waiter on the event loop; called on any thread."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._event = asyncio.Event()

    def __call__(self, _: object) -> None:
        # The loop may be closed when a store's thread finishes late; then no task waits any more.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(self._event.set)

    async def wait(self) -> None:
        await self._event.wait()
