"""Metrics of a member: its peers, its broker, the shards that its standbys took over, and how it scales as leader."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector


class PeerMetrics:
    """Counts of what the failure detector found."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self.revoked = Counter(
            "broadsheet_member_peers_found_dead",
            "Peers whose lease was revoked because their process had ended.",
            registry=registry,
        )
        self.suspected = Counter(
            "broadsheet_member_peers_suspected",
            "Times that a peer was suspected because it fell silent.",
            registry=registry,
        )
        self.silenced = Counter(
            "broadsheet_member_peers_found_silent",
            "Peers whose lease was revoked because they fell silent, to others too, and did not renew it.",
            registry=registry,
        )
        self.held = Gauge(
            "broadsheet_member_peers_held",
            "Peers to whose port a connection is open: should one of their processes end, it is noticed at once.",
            registry=registry,
        )


def broker_unavailable(registry: CollectorRegistry) -> Gauge:
    """Return the gauge of a broker that does not answer."""
    return Gauge(
        "broadsheet_member_broker_unavailable",
        "1 while the journal broker has not answered this process for `unavailable_seconds`.",
        registry=registry,
    )


def shards_taken_over(registry: CollectorRegistry) -> Counter:
    """Return the count of shards that standbys here took."""
    return Counter(
        "broadsheet_member_shards_taken_over",
        "Shards that standbys here took from primaries that were cut off from their brokers.",
        registry=registry,
    )


class ScalingMetrics(Collector):
    """Metrics of the autoscaler; the leader alone has the wanted members, so that no former leader's value is left."""

    def __init__(self, registry: CollectorRegistry) -> None:
        """Have a registry show them.

        Args:
            registry: Of Prometheus metrics.
        """
        self.wanted_members: int | None = None
        """None: this member does not lead, or does not act on what it decides."""
        self._decisions = Counter(
            "broadsheet_scaling_decisions",
            "Decisions of this member as leader to change the number of shards or members.",
            ("action", "outcome"),
            registry=registry,
        )
        registry.register(self)

    def on_decided(self, action: str, outcome: str) -> None:
        """Count a decision."""
        self._decisions.labels(action, outcome).inc()

    def collect(self) -> Iterator[Metric]:
        """Return the present number, if there is one."""
        family = GaugeMetricFamily(
            "broadsheet_wanted_members",
            "Members that the cluster's load needs; the leader has it, if it acts on its decisions.",
        )
        if self.wanted_members is not None:
            family.add_metric((), self.wanted_members)
        yield family
