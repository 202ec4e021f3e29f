"""Polling reader of a shard: pages of records in order, from a place to the shard's end.

Each shard answers five requests a second, for all readers together, and delivers two megabytes a second. So a reader
asks again at once only while it is behind, and backs off when it is throttled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import dataclass
from typing import Any, Final, Protocol

import structlog

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
from broadsheet.runtime.backoff import Backoff
from broadsheet.runtime.clock import Clock, SystemClock

READ_INTERVAL_SECONDS = 0.25
"""Least time between two requests to a shard: Kinesis allows five a second, and others may read it too."""
IDLE_INTERVAL_SECONDS = 1.0
"""The same while there is nothing more to read."""
RECORDS_MAX = 2_000
"""Most records of the stream in a page; Kinesis returns at most 10,000, and 10 MiB."""
OUTAGE_ATTEMPTS_MAX = 8
"""Attempts, with pauses of up to five seconds, before an outage fails the reader."""


# Metrics of a stream's readers: `broadsheet.consumer.sources.metrics` by shard.


class PageCounts:
    """The metrics of one stream's readers."""

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
        """Show a shard's lag while it is read."""
        try:
            yield
        finally:
            self._metrics.on_left(self._name(shard))

    def on_begun(self, shard: StreamShard) -> None:
        """Count a new iterator or subscription."""
        self._metrics.on_begun(self._name(shard))

    def on_answered(self, shard: StreamShard, seconds: float) -> None:
        """Count a request for records, and the time of its answer."""
        self._metrics.on_answered(self._name(shard), seconds)

    def on_page(self, shard: StreamShard, page: Page) -> None:
        """Count a page's records."""
        name = self._name(shard)
        self._metrics.on_read(
            name,
            records=len(page.records),
            record_bytes=sum(len(record.data) for record in page.records),
        )
        if page.behind_ms is not None:
            self._metrics.on_behind(name, page.behind_ms / 1000)

    def on_error(self, shard: StreamShard, error: SourceError) -> None:
        """Count a refusal or a failure."""
        self._metrics.on_error(self._name(shard), _kind_of(error))

    def _name(self, shard: StreamShard) -> str:
        return f"kinesis/{self._stream}/{shard.id}"


def _kind_of(error: SourceError) -> str:
    if isinstance(error, ThrottledError):
        return "throttled"
    if isinstance(error, ExpiredIteratorError):
        return "expired"
    return kind_of(error)


# Pages: the records of one request, with aggregates unpacked.
@dataclass(frozen=True, slots=True)
class Page:
    """A page of a shard's records; it may be empty."""

    records: tuple[StreamRecord, ...]
    """The records as their producers put them, unpacked from aggregates."""
    first: str = ""
    """Sequence number of the first record of the stream; empty: there was none."""
    last: str = ""
    """Sequence number of its last record."""
    behind_ms: int | None = None
    """Time by which the end of the page is behind the end of the shard."""
    ended: bool = False
    """True for the last page: the shard is closed, and was read to its end."""


def page_of(shard: StreamShard, records: list[Any], *, behind_ms: int | None, ended: bool) -> Page:
    """Convert boto3's records into a page, unpacking aggregates."""
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
    """Port of readers of shards."""

    def pages(self, shard: StreamShard, place: Place) -> AsyncGenerator[Page, None]:
        """Yield pages until the shard ends."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Intervals between requests, seconds."""

    read_interval_seconds: float = READ_INTERVAL_SECONDS
    idle_interval_seconds: float = IDLE_INTERVAL_SECONDS


DEFAULT_PACE: Final = Pace()


class PollingReader:
    """Reads shards by polling."""

    def __init__(
        self,
        calls: KinesisCalls,
        *,
        pace: Pace = DEFAULT_PACE,
        records_max: int = RECORDS_MAX,
        clock: Clock | None = None,
        metrics: SourceMetrics | None = None,
    ) -> None:
        """Create the reader.

        Args:
            calls: About the stream.
            pace: How often to ask.
            records_max: Records of the stream in a page, 1 to 10,000.
            clock: Tells when the latest records were asked for, and how long answers take.
            metrics: Where it counts; None: in a private registry.
        """
        self._counts = PageCounts(metrics, calls.stream)
        self._clock = clock or SystemClock()
        self._calls = calls
        self._pace = pace
        self._records_max = records_max

    async def pages(self, shard: StreamShard, place: Place) -> AsyncGenerator[Page, None]:
        """Yield pages until the shard ends; an empty page whenever there is nothing more to read."""
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
                    _log.info("kinesis.request_retried", shard=shard.id, reason=str(error))
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
    """Tell whether a reader retries after an error: always when throttled, a few times in an outage."""
    if isinstance(error, ThrottledError):
        return True
    return isinstance(error, SourceUnavailableError) and backoff.attempt < OUTAGE_ATTEMPTS_MAX


def place_again(place: Place, clock: Clock) -> Place:
    """Return the place to resume if a reading fails before its first record. `Latest` becomes the present time, so that
    no record in between is skipped.
    """
    return (
        AtTimestamp(time_of(int(clock.wall_seconds() * 1000)))
        if isinstance(place, Latest)
        else place
    )
