"""What readers of a stream's shards count: `consumer.sources.metrics` in words of Kinesis."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from consumer.errors import SourceError
from consumer.sources.kinesis.calls import ExpiredIteratorError, ThrottledError
from consumer.sources.kinesis.lineage import StreamShard
from consumer.sources.kinesis.page import Page
from consumer.sources.metrics import SourceMetrics, kind_of


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
