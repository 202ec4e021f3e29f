"""Follows the committed sums as they come, and says at once when one is wrong or comes twice."""

from __future__ import annotations

import time

from broadsheet.examples.stream_sum.check import Comparison, compare, read_sums
from broadsheet.examples.stream_sum.messages import SUM_JOURNALS, StreamSum
from broadsheet.examples.stream_sum.publish import Producers
from broadsheet.journals.client import JournalClient
from broadsheet.runtime.task_group import TaskGroup


class Witness:
    """What a reader of the sums has seen."""

    def __init__(self, producers: Producers) -> None:
        """Expect what the producers have made."""
        self._producers = producers
        self._found: list[StreamSum] = []
        self._newest_monotonic_seconds = time.monotonic()
        self.longest_gap_seconds = 0.0
        """Longest time without a new sum so far."""

    @property
    def sums(self) -> int:
        """Sums seen."""
        return len(self._found)

    def compare(self) -> Comparison:
        """Compare what was seen with what must be."""
        return compare(self._producers.expected, self._found)

    async def run(self, journals: JournalClient) -> None:
        """Follow the sums for ever."""
        async with TaskGroup() as group:
            for journal in SUM_JOURNALS:
                group.start_soon(self._follow(journals, journal), name=f"witness {journal}")

    async def _follow(self, journals: JournalClient, journal: str) -> None:
        async for found in read_sums(journals, journal, block=True):
            now = time.monotonic()
            gap_seconds = now - self._newest_monotonic_seconds
            self.longest_gap_seconds = max(self.longest_gap_seconds, gap_seconds)
            self._newest_monotonic_seconds = now
            self._found.append(found)
