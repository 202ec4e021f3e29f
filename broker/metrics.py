"""Metrics of a broker; its parts count, and what they hold anyway is read when the metrics are collected."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator
from itertools import accumulate

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Metric,
)
from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from broadsheet.broker.limits import BrokerLimits
from broadsheet.serving.metrics import BoundMetrics

COMMIT_BUCKETS_SECONDS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
"""A sync takes a tenth of a millisecond on a good disk, ten on a spinning one; above 0.1 s the disk is overloaded."""


_COMMIT_BOUNDS = (*map(str, COMMIT_BUCKETS_SECONDS), "+Inf")


class CommitMetrics(Collector):
    """Metrics of a broker's commits, of all journals together; plain numbers, because each row takes three commits."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._seconds = 0.0
        self._buckets = [0] * len(_COMMIT_BOUNDS)
        """Commits that took at most a bound, and more than the one before."""
        self._appends = self._bytes = self._failures = 0
        registry.register(self)

    def on_committed(self, seconds: float, *, appends: int, content_bytes: int) -> None:
        """Count a commit of appends with content; on the event loop."""
        self._seconds += seconds
        self._buckets[bisect_left(COMMIT_BUCKETS_SECONDS, seconds)] += 1
        self._appends += appends
        self._bytes += content_bytes

    def on_failed(self) -> None:
        """Count a commit that the disk failed; on the event loop."""
        self._failures += 1

    def collect(self) -> Iterator[Metric]:
        """Return the present metrics."""
        counts = accumulate(
            tuple(self._buckets)
        )  # A copy: Prometheus collects on a separate thread.
        yield HistogramMetricFamily(
            "broadsheet_broker_commit_seconds",
            "Time of a commit of appends of one journal, with the sync that its durability asks for.",
            buckets=list(zip(_COMMIT_BOUNDS, counts, strict=True)),
            sum_value=self._seconds,
        )
        yield CounterMetricFamily(
            "broadsheet_broker_appended_bytes", "Content committed, bytes.", value=self._bytes
        )
        yield CounterMetricFamily(
            "broadsheet_broker_appends",
            "Appends with content that were committed.",
            value=self._appends,
        )
        yield CounterMetricFamily(
            "broadsheet_broker_commit_failures",
            "Commits that the disk failed; their appends were refused or may be lost.",
            value=self._failures,
        )


def show_bounds(registry: CollectorRegistry, limits: BrokerLimits) -> None:
    """Show the use of a broker's bounds, and what readers got."""
    registry.register(
        BoundMetrics(
            "broadsheet_broker", limits.bounds, in_use=limits.in_use, refused=limits.refused
        )
    )
    registry.register(_ReadBytes(limits))


class _ReadBytes(Collector):
    """Collects what readers got."""

    def __init__(self, limits: BrokerLimits) -> None:
        self._limits = limits

    def collect(self) -> Iterator[Metric]:
        """Return the present value."""
        yield CounterMetricFamily(
            "broadsheet_broker_read_bytes",
            "Content sent to readers, bytes.",
            value=self._limits.reader_bytes.sent_bytes,
        )


class PublishMetrics:
    """Counters of publications."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def counter(name: str, text: str) -> Counter:
            return Counter(f"broadsheet_broker_{name}", text, registry=registry)

        def gauge(name: str, text: str) -> Gauge:
            return Gauge(f"broadsheet_broker_{name}", text, registry=registry)

        self.published = counter("published_fragments", "Fragments published to stores.")
        self.published_bytes = counter(
            "published_bytes", "Their content before compression, bytes."
        )
        self.failures = counter("publish_failures", "Failed attempts to publish a fragment.")
        self.fetched_bytes = counter(
            "fetched_bytes", "Content of fragments that was fetched from stores, bytes."
        )
        self.unpublished = gauge(
            "unpublished_fragments", "Sealed fragments that wait for their store."
        )
        self.unpublished_bytes = gauge("unpublished_bytes", "Their content, bytes.")
        self.oldest = gauge(
            "unpublished_oldest_seconds", "Time that the oldest of them has waited, seconds."
        )


class ScrubMetrics:
    """Counters of the scrub."""

    def __init__(self, damaged: Callable[[], int], registry: CollectorRegistry) -> None:
        self.bytes = Counter(
            "broadsheet_broker_scrubbed_bytes",
            "Bytes of sealed fragments verified in the background.",
            registry=registry,
        )
        self.completed = Gauge(
            "broadsheet_broker_scrub_completed_timestamp_seconds",
            "Time of the last complete pass over all sealed fragments; 0 before the first one.",
            registry=registry,
        )
        Gauge(
            "broadsheet_broker_damaged_fragments",
            "Sealed fragments that fail their checksums, found by readers or in the background.",
            registry=registry,
        ).set_function(damaged)


def show_disk(
    registry: CollectorRegistry,
    *,
    journals: Callable[[], int],
    free_bytes: Callable[[], int],
    floor_bytes: int,
) -> None:
    """Show the number of journals, and the disk that they share.

    Args:
        registry: Takes the gauges.
        journals: Counts those of the catalogue.
        free_bytes: Measures the file system of the data directory.
        floor_bytes: Below it appends are refused.
    """

    def gauge(name: str, text: str) -> Gauge:
        return Gauge(f"broadsheet_broker_{name}", text, registry=registry)

    gauge("journals", "Journals of the catalogue.").set_function(journals)
    gauge(
        "disk_free_bytes",
        "Free space of the file system of the data directory; below the floor, appends are refused.",
    ).set_function(free_bytes)
    gauge("disk_floor_bytes", "Space that must stay free.").set(floor_bytes)
