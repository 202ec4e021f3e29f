"""Prometheus metrics of sources.

The label `source` is a shard of a stream, or a partition of a topic, by the name of its messages.
"""

from __future__ import annotations

from contextlib import suppress

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from broadsheet.consumer.errors import SourceDataLossError, SourceError, SourceUnavailableError

UNAVAILABLE = "unavailable"


def kind_of(error: SourceError) -> str:
    """Return the kind of an error, as the label says it."""
    if isinstance(error, SourceUnavailableError):
        return UNAVAILABLE
    return "data loss" if isinstance(error, SourceDataLossError) else "refused"


class SourceMetrics:
    """The counters of one process; its sources share them."""

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        """Register everything.

        Args:
            registry: Where to; a new one if none is given.
        """
        self.registry = registry or CollectorRegistry()
        self._records = self._counter("broadsheet_source_records", "Records that were read.")
        self._bytes = self._counter("broadsheet_source_bytes", "Content of those records, bytes.")
        self._begun = self._counter(
            "broadsheet_source_readings",
            "How often reading was begun, or begun again: iterators, subscriptions, assigned partitions.",
        )
        self._errors = self._counter(
            "broadsheet_source_errors", "Refusals and failures, by what they mean.", "kind"
        )
        self._ask_seconds = Histogram(
            "broadsheet_source_ask_seconds",
            "Time of questions for records that were answered, where a source is asked.",
            ("source",),
            registry=self.registry,
        )
        self._behind_seconds = self._gauge(
            "broadsheet_source_behind_latest_seconds",
            "How old what was read last is, compared with the source's end, as the source says.",
        )
        self._lag = self._gauge(
            "broadsheet_source_lag_messages",
            "Offsets between what was read last and the source's end.",
        )

    def on_begun(self, source: str) -> None:
        """Count a reading that begins, or begins again."""
        self._begun.labels(source).inc()

    def on_read(self, source: str, *, records: int, record_bytes: int) -> None:
        """Count read records."""
        self._records.labels(source).inc(records)
        self._bytes.labels(source).inc(record_bytes)

    def on_answered(self, source: str, seconds: float) -> None:
        """Count a request for records, and the time of its answer."""
        self._ask_seconds.labels(source).observe(seconds)

    def on_error(self, source: str, kind: str) -> None:
        """Count a refusal or a failure, of a kind from `kind_of` or specific to the system."""
        self._errors.labels(source, kind).inc()

    def on_behind(self, source: str, seconds: float) -> None:
        """Show the age of the last read record."""
        self._behind_seconds.labels(source).set(seconds)

    def on_lag(self, source: str, messages: int) -> None:
        """Show the lag in offsets."""
        self._lag.labels(source).set(messages)

    def on_left(self, source: str) -> None:
        """Stop showing the gauges of a source that is not read any more; its counters stay."""
        for gauge in (self._behind_seconds, self._lag):
            with suppress(KeyError):
                gauge.remove(source)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, ("source", *labels), registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, ("source",), registry=self.registry)
