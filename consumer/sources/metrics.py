"""What sources count, for Prometheus.

The label `source` is a shard of a stream, or a partition of a topic, by the name of its messages.
"""

from __future__ import annotations

from contextlib import suppress

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

from broadsheet.consumer.errors import SourceDataLossError, SourceError, SourceUnavailableError

UNAVAILABLE = "unavailable"


def kind_of(error: SourceError) -> str:
    """Return what kind of errors one is."""
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
        """Count a reading that begins, or begins anew."""
        self._begun.labels(source).inc()

    def on_read(self, source: str, *, records: int, record_bytes: int) -> None:
        """Count what was read."""
        self._records.labels(source).inc(records)
        self._bytes.labels(source).inc(record_bytes)

    def on_answered(self, source: str, seconds: float) -> None:
        """Count a question for records, and how long its answer took."""
        self._ask_seconds.labels(source).observe(seconds)

    def on_error(self, source: str, kind: str) -> None:
        """Count a refusal or a failure, of a kind as `kind_of` tells, or one of the system's own."""
        self._errors.labels(source, kind).inc()

    def on_behind(self, source: str, seconds: float) -> None:
        """Show how old what was read last is."""
        self._behind_seconds.labels(source).set(seconds)

    def on_lag(self, source: str, messages: int) -> None:
        """Show how many offsets lie ahead."""
        self._lag.labels(source).set(messages)

    def on_left(self, source: str) -> None:
        """Show nothing more of a source that is not read any more; what was counted stays."""
        for gauge in (self._behind_seconds, self._lag):
            with suppress(KeyError):
                gauge.remove(source)

    def _counter(self, name: str, text: str, *labels: str) -> Counter:
        return Counter(name, text, ("source", *labels), registry=self.registry)

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(name, text, ("source",), registry=self.registry)
