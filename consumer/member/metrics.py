"""Metrics of a member: its peers, its broker, and the shards that its standbys took over."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge


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
