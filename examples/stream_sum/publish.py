"""Runs producers: performs their rounds, one append after the other, despite failures of the brokers."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from random import Random

from broadsheet.allocator import TaskGroup
from broadsheet.examples.stream_sum.messages import CHUNK_JOURNALS, StreamSum
from broadsheet.examples.stream_sum.producer import Producer
from broadsheet.journals import AppendService, JournalClient, PendingAppend, WriterEpochRegister


class Producers:
    """Several producers that publish at the same time until they are told to end their streams."""

    def __init__(
        self,
        *,
        seed: int,
        count: int = 4,
        journals: Sequence[str] = CHUNK_JOURNALS,
        pause_seconds: float = 0.2,
    ) -> None:
        """Create producers; every fourth publishes outside of transactions.

        Args:
            seed: Chooses all that they do; their streams' names have it.
            count: Number of producers.
            journals: Where to.
            pause_seconds: Longest pause of a producer between two rounds.
        """
        random = Random(seed)
        # Producers run many transactions: a late copy of an acknowledgement must not undo a later one.
        self._copies = WriterEpochRegister.of(f"examples/stream_sum/{seed}", secrets.token_bytes)
        self._pauses = Random(seed)
        self._pause_seconds = pause_seconds
        self._ending = asyncio.Event()
        self._ahead_seconds = [0.0] * count
        self.each = tuple(
            Producer(
                Random(random.getrandbits(64)),
                name=f"{seed}-{index}",
                journals=journals,
                transactional=index % 4 != 3,
            )
            for index in range(count)
        )

    @property
    def expected(self) -> dict[str, StreamSum]:
        """Expected sum of every ended stream, by stream."""
        return {
            stream: expected
            for producer in self.each
            for stream, expected in producer.source.expected.items()
        }

    def count(self, what: str) -> int:
        """Return how much of a kind all producers made; see `Producer.counts`."""
        return sum(producer.counts[what] for producer in self.each)

    async def run(self, journals: JournalClient) -> None:
        """Publish until `end`, and then what ends every stream; return when all of it is written."""
        async with (
            AppendService(journals, copies=self._copies) as appends,
            TaskGroup() as group,
        ):
            for index, producer in enumerate(self.each):
                group.start_soon(self._run_one(index, producer, appends), name=f"producer {index}")

    def set_clock_ahead(self, producer: int, seconds: float) -> None:
        """Have a producer's clock be ahead of the wall clock from its next round on."""
        self._ahead_seconds[producer] = seconds

    def end(self) -> None:
        """Have every stream ended."""
        self._ending.set()

    async def _run_one(self, index: int, producer: Producer, appends: AppendService) -> None:
        def now() -> float:
            return time.time() + self._ahead_seconds[index]

        while not self._ending.is_set():
            await _perform(appends, producer.next_round(now()))
            with suppress(TimeoutError):
                async with asyncio.timeout(self._pauses.uniform(0.0, self._pause_seconds)):
                    await self._ending.wait()
        await _perform(appends, producer.end(now()))


async def _perform(appends: AppendService, wanted: Iterable[PendingAppend]) -> None:
    """Do the appends, each after the one before: an acknowledgement must not be there before what it commits."""
    for append in wanted:
        await asyncio.wrap_future(appends.append(append.journal, append.content))
