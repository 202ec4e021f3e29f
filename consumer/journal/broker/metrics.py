"""What a broker's clients take of its bounds, for Prometheus; `bound` is the name of a bound, see `BrokerBounds`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from consumer.journal.broker.limits import Limits


class BoundMetrics(Collector):
    """Reads the limits when it is asked: calls pay nothing for it."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits

    def collect(self) -> Iterator[Metric]:
        """Return them as they are now."""
        limits = self._limits
        places = limits.calls, limits.append_streams, limits.readers
        levels = limits.append_bytes, limits.reader_bytes.level
        bounds = GaugeMetricFamily(
            "broadsheet_broker_bound", "Bounds that the broker was started with.", labels=["bound"]
        )
        for each in fields(limits.bounds):
            bounds.add_metric([each.name], getattr(limits.bounds, each.name))
        in_use = GaugeMetricFamily(
            "broadsheet_broker_in_use",
            "Calls, streams, reads or bytes that clients hold of a bound.",
            labels=["bound"],
        )
        refused = CounterMetricFamily(
            "broadsheet_broker_refused",
            "Requests refused, and calls cut off, because a bound was reached.",
            labels=["bound"],
        )
        for one in (*places, *levels):
            in_use.add_metric([one.name], one.in_use)
        for name, count in limits.refused().items():
            refused.add_metric([name], count)
        yield from (bounds, in_use, refused)
