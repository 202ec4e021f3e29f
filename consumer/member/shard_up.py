"""The gauge of which shards run here, and how they stand.

Source: gazette/core consumer/resolver.go (Collect).
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

from consumer.key_space import status_of
from consumer.protocol.shard_pb2 import ReplicaStatus
from consumer.resolver.local_shards import LocalShards

NAME = "gazette_shard_up"


class ShardUp(Collector):
    """Collects one sample a local shard: 1, labelled with the shard's id and its status as last observed."""

    def __init__(self, local_shards: LocalShards) -> None:
        self._local_shards = local_shards

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return the samples of now."""
        gauge = GaugeMetricFamily(
            NAME, "Replicas that this process runs, by status.", labels=("shard", "status")
        )
        # A copy: Prometheus collects on a thread of its own.
        for shard in tuple(self._local_shards.shards.values()):
            code = status_of(shard.assignment).code
            gauge.add_metric((shard.id, ReplicaStatus.Code.Name(code)), 1)
        yield gauge

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Return the name alone, so that registering does not collect."""
        yield GaugeMetricFamily(NAME, "Replicas that this process runs, by status.")
