"""Push reader of a shard: Kinesis' enhanced fan-out, two megabytes a second for each consumer alone.

A subscription lasts five minutes; then a new one continues after the last record. Events arrive at least every few
seconds. boto3 blocks while it waits for them, so each subscription has its own thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, Protocol, Self, cast

import structlog
from botocore.exceptions import BotoCoreError, ClientError
from urllib3.exceptions import HTTPError

from broadsheet.consumer.errors import SourceError, SourceUnavailableError
from broadsheet.consumer.sources.kinesis.calls import KinesisCalls, told_apart
from broadsheet.consumer.sources.kinesis.lineage import StreamShard
from broadsheet.consumer.sources.kinesis.pages import (
    Pace,
    Page,
    PageCounts,
    PageReader,
    PollingReader,
    may_try_again,
    page_of,
    place_again,
)
from broadsheet.consumer.sources.kinesis.places import AfterSequence, Place, place_arguments
from broadsheet.consumer.sources.metrics import SourceMetrics
from broadsheet.runtime.backoff import Backoff
from broadsheet.runtime.clock import Clock, SystemClock

_ENDED: Final = object()

_log = structlog.get_logger()


class _Events(Protocol):
    """boto3's event stream of a subscription."""

    def __iter__(self) -> Iterator[Any]: ...

    def close(self) -> None: ...


class FanOutReader:
    """Subscribes to shards for a registered consumer."""

    def __init__(
        self,
        calls: KinesisCalls,
        consumer_arn: str,
        *,
        fallback: PageReader,
        clock: Clock | None = None,
        metrics: SourceMetrics | None = None,
    ) -> None:
        """Create the reader.

        Args:
            calls: About the stream.
            consumer_arn: Of the consumer. Two readers of one shard need two.
            fallback: Reads where subscriptions are refused for good.
            clock: Tells when the latest records were asked for.
            metrics: Where it counts; None: in a private registry.
        """
        self._counts = PageCounts(metrics, calls.stream)
        self._clock = clock or SystemClock()
        self._calls = calls
        self._consumer_arn = consumer_arn
        self._fallback = fallback

    async def pages(self, shard: StreamShard, place: Place) -> AsyncGenerator[Page, None]:
        """Yield pages until the shard ends; an empty page whenever there is nothing more to read."""
        backoff = Backoff(initial_seconds=1.0)
        while True:
            try:
                with self._counts.reading(shard):
                    async with aclosing(self._subscribed(shard, place)) as pages:
                        async for page in pages:
                            backoff.reset()
                            self._counts.on_page(shard, page)
                            place = (
                                AfterSequence(page.last)
                                if page.last
                                else place_again(place, self._clock)
                            )
                            yield page
                            if page.ended:
                                return
            except SourceError as error:
                self._counts.on_error(shard, error)
                if may_try_again(error, backoff):
                    _log.info("kinesis.subscription_broken", shard=shard.id, reason=str(error))
                    await backoff.sleep()
                elif isinstance(error, SourceUnavailableError):
                    raise
                else:
                    _log.warning("kinesis.fan_out_refused", shard=shard.id, reason=str(error))
                    break
        async with aclosing(self._fallback.pages(shard, place)) as pages:
            async for page in pages:
                yield page

    async def _subscribed(self, shard: StreamShard, place: Place) -> AsyncGenerator[Page, None]:
        """Yield the pages of one subscription."""
        client = await self._calls.client()
        thread = ThreadPoolExecutor(1, thread_name_prefix=f"subscription-{shard.id}")
        loop = asyncio.get_running_loop()

        def subscribe() -> _Events:
            answer = client.subscribe_to_shard(
                ConsumerARN=self._consumer_arn,
                ShardId=shard.id,
                # The stubs require a dict of exact keys.
                StartingPosition=cast("Any", place_arguments(place)),
            )
            return cast("_Events", answer["EventStream"])

        stream: _Events | None = None
        try:
            stream = await self._told(loop.run_in_executor(thread, subscribe))
            self._counts.on_begun(shard)
            events = iter(stream)
            while True:
                event = await self._told(loop.run_in_executor(thread, next, events, _ENDED))
                if event is _ENDED:
                    return
                if "SubscribeToShardEvent" in event:
                    yield _page_of(shard, event["SubscribeToShardEvent"])
        finally:
            if stream is not None:
                stream.close()
            thread.shutdown(wait=False, cancel_futures=True)

    async def _told(self, answer: asyncio.Future[Any]) -> Any:
        try:
            return await answer
        except (ClientError, BotoCoreError) as error:
            raise told_apart(self._calls.stream, error) from error
        except (HTTPError, OSError) as error:
            raise SourceUnavailableError(self._calls.stream, str(error)) from error


def _page_of(shard: StreamShard, event: Any) -> Page:
    """Convert an event into a page; one that names children, or no continuation, is the shard's last."""
    ended = bool(event.get("ChildShards")) or not event.get("ContinuationSequenceNumber")
    return page_of(
        shard, list(event["Records"]), behind_ms=event.get("MillisBehindLatest"), ended=ended
    )


@dataclass(frozen=True, slots=True)
class KinesisStream:
    """One stream: requests about it, and the reader of its shards' pages."""

    calls: KinesisCalls
    reader: PageReader

    @classmethod
    def of(
        cls, calls: KinesisCalls, consumer_arn: str, *, pace: Pace, metrics: SourceMetrics | None
    ) -> Self:
        """Return a stream that is read by subscription, if there is a consumer to subscribe, or else by asking.

        Args:
            calls: About the stream.
            consumer_arn: Of a registered consumer; empty: none.
            pace: How often to ask.
            metrics: Where it counts; None: in a private registry.
        """
        reader: PageReader = PollingReader(calls, pace=pace, metrics=metrics)
        if consumer_arn:
            reader = FanOutReader(calls, consumer_arn, fallback=reader, metrics=metrics)
        return cls(calls, reader)

    @property
    def name(self) -> str:
        """The stream's name."""
        return self.calls.stream
