"""Pages of records of one shard, in order, from a place to the shard's end: read by asking for them.

Each shard answers five questions a second, for all who ask, and gives two megabytes a second. So a reader asks at once
again only while it is behind, and backs off when it is refused.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import structlog

from broadsheet.allocator.runtime.backoff import Backoff
from broadsheet.allocator.runtime.clock import Clock, SystemClock
from broadsheet.consumer.errors import SourceError, SourceUnavailableError
from broadsheet.consumer.sources.kinesis.calls import (
    ExpiredIteratorError,
    KinesisCalls,
    ThrottledError,
)
from broadsheet.consumer.sources.kinesis.lineage import StreamShard
from broadsheet.consumer.sources.kinesis.places import AfterSequence, Place, time_of
from broadsheet.consumer.sources.kinesis.records import KinesisMetadata, StreamRecord, user_records
from broadsheet.consumer.sources.metrics import SourceMetrics, kind_of
from broadsheet.consumer.sources.part import AtTimestamp, Latest

READ_INTERVAL_SECONDS = 0.25
"""Least time between two readings of a shard: Kinesis allows five a second, and others may read it too."""
IDLE_INTERVAL_SECONDS = 1.0
"""The same once there is nothing more to read."""
RECORDS_MAX = 2_000
"""Records of the stream in a page; Kinesis gives 10,000 at most, and 10 MiB."""
OUTAGE_ATTEMPTS_MAX = 8
"""Attempts, with pauses of up to five seconds, before an outage fails the reader."""


# What readers of a stream's shards count: `broadsheet.consumer.sources.metrics` in words of Kinesis.


class PageCounts:
    """Counts for one stream."""

    def __init__(self, metrics: SourceMetrics | None, stream: str) -> None:
        """Count under the stream's name.

        Args:
            metrics: Of the process; None: of its own.
            stream: Its name.
        """
        self._metrics = metrics or SourceMetrics()
        self._stream = stream

    @contextmanager
    def reading(self, shard: StreamShard) -> Iterator[None]:
        """Show how far a shard is behind as long as it is read."""
        try:
            yield
        finally:
            self._metrics.on_left(self._name(shard))

    def on_begun(self, shard: StreamShard) -> None:
        """Count an iterator, or a subscription."""
        self._metrics.on_begun(self._name(shard))

    def on_answered(self, shard: StreamShard, seconds: float) -> None:
        """Count a question for records, and how long its answer took."""
        self._metrics.on_answered(self._name(shard), seconds)

    def on_page(self, shard: StreamShard, page: Page) -> None:
        """Count what a page holds."""
        name = self._name(shard)
        self._metrics.on_read(
            name,
            records=len(page.records),
            record_bytes=sum(len(record.data) for record in page.records),
        )
        if page.behind_ms is not None:
            self._metrics.on_behind(name, page.behind_ms / 1000)

    def on_error(self, shard: StreamShard, error: SourceError) -> None:
        """Count a refusal, or a failure."""
        self._metrics.on_error(self._name(shard), _kind_of(error))

    def _name(self, shard: StreamShard) -> str:
        return f"kinesis/{self._stream}/{shard.id}"


def _kind_of(error: SourceError) -> str:
    if isinstance(error, ThrottledError):
        return "throttled"
    if isinstance(error, ExpiredIteratorError):
        return "expired"
    return kind_of(error)


# A page: what one reading of a shard brought.
@dataclass(frozen=True, slots=True)
class Page:
    """Some records of a shard; may be none."""

    records: tuple[StreamRecord, ...]
    """As their producers meant them."""
    first: str = ""
    """Number of the first record of the stream; empty: there was none."""
    last: str = ""
    """Number of its last."""
    behind_ms: int | None = None
    """How old the end of the page is, compared with the end of the shard."""
    ended: bool = False
    """No page will follow: the shard is closed, and was read to its end."""


def page_of(shard: StreamShard, records: list[Any], *, behind_ms: int | None, ended: bool) -> Page:
    """Return records as boto3 gives them as a page, aggregates taken apart."""
    found: list[StreamRecord] = []
    for record in records:
        metadata = KinesisMetadata(
            shard_id=shard.id,
            sequence_number=record["SequenceNumber"],
            partition_key=record["PartitionKey"],
            arrived_at=record.get("ApproximateArrivalTimestamp"),
        )
        parts = user_records(metadata, record["Data"], shard.hashes)
        if not parts:
            _log.warning(
                "kinesis.misplaced_aggregate", shard=shard.id, sequence=record["SequenceNumber"]
            )
        found += parts
    return Page(
        tuple(found),
        first=records[0]["SequenceNumber"] if records else "",
        last=records[-1]["SequenceNumber"] if records else "",
        behind_ms=behind_ms,
        ended=ended,
    )


_log = structlog.get_logger()


class PageReader(Protocol):
    """Reads shards."""

    def pages(self, shard: StreamShard, place: Place) -> AsyncGenerator[Page, None]:
        """Yield pages until the shard ends."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How often to ask, seconds."""

    read_interval_seconds: float = READ_INTERVAL_SECONDS
    idle_interval_seconds: float = IDLE_INTERVAL_SECONDS


DEFAULT_PACE: Final = Pace()


class PollingReader:
    """Asks for records, again and again."""

    def __init__(
        self,
        calls: KinesisCalls,
        *,
        pace: Pace = DEFAULT_PACE,
        records_max: int = RECORDS_MAX,
        clock: Clock | None = None,
        metrics: SourceMetrics | None = None,
    ) -> None:
        """Bind the reader.

        Args:
            calls: About the stream.
            pace: How often to ask.
            records_max: Records of the stream in a page, 1 to 10,000.
            clock: Tells when the latest records were asked for, and how long answers take.
            metrics: Where it counts; None: nowhere that anybody sees.
        """
        self._counts = PageCounts(metrics, calls.stream)
        self._clock = clock or SystemClock()
        self._calls = calls
        self._pace = pace
        self._records_max = records_max

    async def pages(self, shard: StreamShard, place: Place) -> AsyncGenerator[Page, None]:
        """Yield pages until the shard ends; a page without records whenever there is nothing more to read."""
        with self._counts.reading(shard):
            async with aclosing(self._pages(shard, place)) as pages:
                async for page in pages:
                    self._counts.on_page(shard, page)
                    yield page

    async def _pages(self, shard: StreamShard, place: Place) -> AsyncGenerator[Page, None]:
        backoff = Backoff(initial_seconds=2 * self._pace.read_interval_seconds)
        iterator: str | None = None
        while True:
            try:
                if iterator is None:
                    iterator = await self._calls.iterator(shard.id, place)
                    self._counts.on_begun(shard)
                    place = place_again(place, self._clock)
                asked_seconds = self._clock.monotonic_seconds()
                got = await self._calls.get_records(iterator, self._records_max)
                answered_seconds = self._clock.monotonic_seconds()
                self._counts.on_answered(shard, answered_seconds - asked_seconds)
            except SourceError as error:
                self._counts.on_error(shard, error)
                if isinstance(error, ExpiredIteratorError):
                    iterator = None
                elif may_try_again(error, backoff):
                    _log.info("kinesis.refused", shard=shard.id, reason=str(error))
                    await backoff.sleep()
                else:
                    raise
                continue
            backoff.reset()
            iterator = got.next_iterator
            page = page_of(shard, got.records, behind_ms=got.behind_ms, ended=iterator is None)
            if page.last:
                place = AfterSequence(page.last)
            yield page
            if iterator is None:
                return
            behind = bool(got.records) or bool(got.behind_ms)
            await asyncio.sleep(
                self._pace.read_interval_seconds if behind else self._pace.idle_interval_seconds
            )


def may_try_again(error: SourceError, backoff: Backoff) -> bool:
    """Tell whether a reader waits and goes on: when it is refused always, in an outage a few times."""
    if isinstance(error, ThrottledError):
        return True
    return isinstance(error, SourceUnavailableError) and backoff.attempt < OUTAGE_ATTEMPTS_MAX


def place_again(place: Place, clock: Clock) -> Place:
    """Return where to begin anew if a reading breaks off before it brought anything: not at what is the latest then."""
    return (
        AtTimestamp(time_of(int(clock.wall_seconds() * 1000)))
        if isinstance(place, Latest)
        else place
    )
