"""One process's way to the table of a `FencedRowStore`: late, lost, cut, as its way to everything else."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextvars import Context
from typing import Final

from allocator.simulation.network import Link
from consumer.errors import StoreUnavailableError
from consumer.simulation.stores import Answer, raised_by

IMPATIENCE_SECONDS: Final = 2.0


class FaultyWay:
    """Implements `consumer.simulation.stores.Way` over a `Link`."""

    def __init__(self, link: Link) -> None:
        """Take what is in between."""
        self._link = link

    def check(self) -> None:
        """Fail if nothing gets through."""
        if self._link.cut:
            raise _unavailable()

    def send(self, action: Callable[[], None], answer: Answer) -> None:
        """Have `action` done when the request arrives; give up waiting for the answer after a while."""
        answered = False

        def settle(failure: BaseException | None) -> None:
            nonlocal answered
            if not answered:
                answered = True
                answer(failure)

        loop = asyncio.get_running_loop()
        # In the process's own time, and so in its own context.
        settled: asyncio.Future[BaseException | None] = loop.create_future()
        settled.add_done_callback(lambda done: settle(done.result()))
        loop.call_later(IMPATIENCE_SECONDS, settle, _unavailable())

        def on_answer(failure: BaseException | None) -> None:
            if not settled.done():
                settled.set_result(failure)

        self._carry(lambda: self._perform(action, on_answer))

    def _perform(self, action: Callable[[], None], on_answer: Answer) -> None:
        failure = raised_by(action)
        self._carry(lambda: on_answer(failure))

    def _carry(self, arrive: Callable[[], None]) -> None:
        seconds = self._link.travel_seconds()
        if seconds is None or self._link.cut:
            return

        def on_arrival() -> None:
            if not self._link.cut:
                arrive()

        # Outside of any process: the network does not stop with those who use it.
        asyncio.get_running_loop().call_later(seconds, on_arrival, context=Context())


def _unavailable() -> StoreUnavailableError:
    return StoreUnavailableError("simulated", "the table does not answer")
