"""Plans the micro-batches of one streaming query, on a thread of its own in Spark's planning process."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from typing import Any, Final

from consumer.client.loop_thread import LoopThread
from spark_bridge.brokers import open_client
from spark_bridge.journal_source.commit_scan import UNLIMITED
from spark_bridge.journal_source.journal_state import JournalState
from spark_bridge.journal_source.journals import (
    selected_journals,
    states_at,
    write_heads,
)
from spark_bridge.journal_source.offsets import (
    States,
    StreamOffset,
    SymbolicStart,
    parse_offset,
    span_of,
)
from spark_bridge.journal_source.options import ReadOptions
from spark_bridge.journal_source.partition_reader import JournalPartition
from spark_bridge.journal_source.places import parse_place
from spark_bridge.journal_source.planner import BatchLimits, Planner

POLL_SECONDS: Final = 0.05
"""Between two looks at the write heads: an idle query asks some hundred times a second."""
POLL_SECONDS_PER_JOURNAL: Final = 0.002
DISCOVERY_SECONDS: Final = 5.0
"""Between two listings of the journals."""


class StreamPlan:
    """Answers what Spark asks on the driver. Used by one thread."""

    def __init__(self, options: ReadOptions) -> None:
        """Open what reads the journals."""
        self._options = options
        self._limits = BatchLimits(options.rows_max or UNLIMITED, options.bytes_max or UNLIMITED)
        self._loop = LoopThread(name="journal-stream-plan")
        self._client = open_client(options.access)
        self._planner = Planner(self._client, options)
        self._content_types: dict[str, str] = {}
        self._heads: dict[str, int] = {}
        self._listed_at = self._looked_at = float("-inf")
        self._idle = False
        """Whether the last look found nothing new."""
        self._stop_at: Mapping[str, int] | None = None

    def latest_offset(self, start: dict[str, Any], *, limited: bool) -> dict[str, Any]:
        """Return where the micro-batch that begins at `start` ends; `start` itself if there is nothing new.

        Args:
            start: An offset.
            limited: Whether the limits of the options hold.
        """
        return self._loop.call(self._latest_offset(start, limited=limited))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[JournalPartition]:
        """Return the partitions of the micro-batch between two offsets."""
        return self._loop.call(self._partitions(start, end))

    def stop_at_heads(self) -> None:
        """Go no further than the journals reach now."""
        self._stop_at = self._loop.call(self._look())

    def reported(self) -> dict[str, Any]:
        """Return how far the journals reached when they were last looked at."""
        states = {name: JournalState(head) for name, head in self._heads.items()}
        return StreamOffset(states).to_json()

    def close(self) -> None:
        """Close the connections and end the thread."""
        self._loop.call(self._client.close())
        self._loop.close()

    async def _latest_offset(self, start: dict[str, Any], *, limited: bool) -> dict[str, Any]:
        offset = parse_offset(start)
        heads = self._stop_at
        if heads is None:
            if self._idle:
                # Spark asks again at once, and must not be told what was true before it asked.
                await asyncio.sleep(self._looked_at + self._poll_seconds() - time.monotonic())
            heads = await self._look()
        if isinstance(offset, SymbolicStart):
            began: States | None = await self._began(offset)
            states = began or {}
        else:
            began, states = None, offset.journals
        limits = self._limits if limited else BatchLimits()
        end = await self._planner.plan_end(states, heads, limits)
        self._idle = began is None and end == states
        if self._idle:
            return start
        return StreamOffset(end, began).to_json()

    async def _began(self, start: SymbolicStart) -> States:
        place = parse_place("start", start.text)
        return await states_at(
            self._client, place, content_types=self._content_types, options=self._options
        )

    async def _partitions(
        self, start: dict[str, Any], end: dict[str, Any]
    ) -> list[JournalPartition]:
        span = span_of(start, end)
        if not self._content_types.keys() >= set(span.names):
            await self._list()
        partitions = await self._planner.partitions(span)
        return [JournalPartition(each, self._content_types[each.journal]) for each in partitions]

    async def _look(self) -> dict[str, int]:
        """Return the write heads of now."""
        if time.monotonic() - self._listed_at >= DISCOVERY_SECONDS:
            await self._list()
        self._heads = await write_heads(self._client, sorted(self._content_types))
        self._looked_at = time.monotonic()
        return self._heads

    async def _list(self) -> None:
        self._content_types = await selected_journals(self._client, self._options)
        self._planner.select(self._content_types)
        self._listed_at = time.monotonic()

    def _poll_seconds(self) -> float:
        return POLL_SECONDS + POLL_SECONDS_PER_JOURNAL * len(self._content_types)
