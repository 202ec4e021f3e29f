"""Metrics of what a client's readers received, computed at collection."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from broadsheet.journals.direct_fragments import ReadTotals


class JournalReads(Collector):
    """Collects what readers of journals received from brokers, and from stores without them."""

    def __init__(self, totals: ReadTotals) -> None:
        self._totals = totals

    def collect(self) -> Iterable[CounterMetricFamily]:
        """Return the present samples."""
        received, failures = self.describe()
        received.add_metric(("direct",), self._totals.direct_bytes)
        received.add_metric(("broker",), self._totals.broker_bytes)
        # A copy, because Prometheus collects on a separate thread.
        for reason, count in tuple(self._totals.failures.items()):
            failures.add_metric((reason,), count)
        return received, failures

    def describe(self) -> tuple[CounterMetricFamily, CounterMetricFamily]:
        """Return the names alone, so that registering does not collect."""
        return (
            CounterMetricFamily(
                "broadsheet_journal_read_bytes",
                "Content of journals received, bytes.",
                labels=("path",),
            ),
            CounterMetricFamily(
                "broadsheet_journal_direct_failures",
                "Stored fragments that could not be read directly.",
                labels=("reason",),
            ),
        )
