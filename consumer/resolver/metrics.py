"""Metrics of the shards that run in this process, computed at collection.

Source of `gazette_shard_up`: gazette/core consumer/resolver.go (Collect).
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from prometheus_client import CollectorRegistry, Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from broadsheet.allocator.model import ItemId
from broadsheet.consumer.registry.key_space import status_of
from broadsheet.consumer.shard.live_shard import LiveShard
from broadsheet.consumer.shard.replica_progress import keyed_counts
from broadsheet.consumer.stores.keyed_queries import KeyedCounts
from broadsheet.wire.shard_pb2 import ReplicaStatus

NAME = "gazette_shard_up"
SIZES_SECONDS = 30.0
"""How long measured sizes of files are shown, because a look takes a system call for each file."""


def register_shard_gauges(shards: Mapping[ItemId, LiveShard], registry: CollectorRegistry) -> None:
    """Show the shards of a mapping, as it is at each collection."""
    registry.register(ShardUp(shards))
    registry.register(ShardSizes(shards))
    registry.register(KeyedStates(shards))


class ShardUp(Collector):
    """Collects one sample for each local shard: 1, labelled with the shard's id and its status as last observed."""

    def __init__(self, shards: Mapping[ItemId, LiveShard]) -> None:
        self._shards = shards

    def collect(self) -> Iterable[GaugeMetricFamily]:
        """Return the present samples."""
        gauge = GaugeMetricFamily(
            NAME, "Replicas that this process runs, by status.", labels=("shard", "status")
        )
        # A copy, because Prometheus collects on a separate thread.
        for shard in tuple(self._shards.values()):
            code = status_of(shard.assignment).code
            gauge.add_metric((shard.id, ReplicaStatus.Code.Name(code)), 1)
        yield gauge

    def describe(self) -> Iterable[GaugeMetricFamily]:
        """Return the name alone, so that registering does not collect."""
        yield GaugeMetricFamily(NAME, "Replicas that this process runs, by status.")


class ShardSizes(Collector):
    """Collects the sizes of local shards: files, and what of recovery logs is recorded or to be played."""

    def __init__(self, shards: Mapping[ItemId, LiveShard]) -> None:
        self._shards = shards
        self._measured: dict[str, tuple[float, int]] = {}
        """When the files of a shard were measured, monotonic seconds, and their bytes."""

    def collect(self) -> Iterable[Metric]:
        """Return the present samples. Blocking; Prometheus collects on a separate thread."""
        recorded = CounterMetricFamily(
            "broadsheet_shard_recovery_log_recorded_bytes",
            "Bytes that a primary recorded into its recovery log; begins at 0 with each attempt.",
            labels=("shard",),
        )
        behind = GaugeMetricFamily(
            "broadsheet_shard_recovery_log_behind_bytes",
            "Bytes of its recovery log that a replica has not played.",
            labels=("shard",),
        )
        files = GaugeMetricFamily(
            "broadsheet_shard_store_bytes",
            "Size of the files of a shard with a recovery log, here; at most 30 s old.",
            labels=("shard",),
        )
        shards = tuple(self._shards.values())
        for shard in shards:
            directory, playback = shard.files, shard.playback
            if directory is None or playback is None:
                continue
            recorded.add_metric((shard.fqn,), shard.recorded_bytes)
            behind.add_metric((shard.fqn,), 0 if shard.primary else playback.behind_bytes)
            files.add_metric((shard.fqn,), self._size(shard.fqn, directory))
        for gone in self._measured.keys() - {shard.fqn for shard in shards}:
            del self._measured[gone]
        yield from (recorded, behind, files)

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering does not collect."""
        return ()

    def _size(self, shard: str, directory: Path) -> int:
        at, size = self._measured.get(shard, (-SIZES_SECONDS, 0))
        if time.monotonic() - at >= SIZES_SECONDS:
            size = _size_of(directory)
            self._measured[shard] = time.monotonic(), size
        return size


class KeyedStates(Collector):
    """Collects the state of keyed shards in numbers, each in constant time, from the primaries of this process."""

    def __init__(self, shards: Mapping[ItemId, LiveShard]) -> None:
        self._shards = shards

    def collect(self) -> Iterable[Metric]:
        """Return the present samples; a time that is not known yet has none."""
        families = [(kind(name, text, labels=("shard",)), of) for kind, name, text, of in _KEYED]
        for shard in tuple(self._shards.values()):
            counts = keyed_counts(shard)
            if counts is None:
                continue
            for family, value_of in families:
                value = value_of(counts)
                if value is not None:
                    family.add_metric((shard.fqn,), value)
        return [family for family, _ in families]

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering does not collect."""
        return ()


_KEYED: Final[
    tuple[
        tuple[
            type[GaugeMetricFamily] | type[CounterMetricFamily],
            str,
            str,
            Callable[[KeyedCounts], float | None],
        ],
        ...,
    ]
] = (
    (
        GaugeMetricFamily,
        "broadsheet_keyed_state_rows",
        "Rows of a primary's keyed state and of its indexes, as the index estimates them.",
        lambda counts: counts.rows,
    ),
    (
        GaugeMetricFamily,
        "broadsheet_keyed_state_bytes",
        "Bytes of these rows, as the index estimates them.",
        lambda counts: counts.state_bytes,
    ),
    (
        GaugeMetricFamily,
        "broadsheet_keyed_watermark_timestamp_seconds",
        "Watermark of the last transaction, Unix time; none before the first event time.",
        lambda counts: counts.watermark_ms / 1000 if counts.watermark_ms else None,
    ),
    (
        GaugeMetricFamily,
        "broadsheet_keyed_next_timer_timestamp_seconds",
        "The earliest timer as of the last transaction, Unix time; none if there is no timer.",
        lambda counts: None if counts.next_timer_ms is None else counts.next_timer_ms / 1000,
    ),
    (
        CounterMetricFamily,
        "broadsheet_keyed_late_rows",
        "Rows that came behind the watermark; begins at 0 with each attempt.",
        lambda counts: counts.late_rows,
    ),
    (
        CounterMetricFamily,
        "broadsheet_keyed_failed_calls",
        "Calls of handlers that failed and were set apart; begins at 0 with each attempt.",
        lambda counts: counts.failed_calls,
    ),
)


def _size_of(directory: Path) -> int:
    """Return the bytes of the files below a directory; files may come and go meanwhile."""
    size = 0
    for parent, _, names in os.walk(directory):
        for name in names:
            with suppress(OSError):
                size += (Path(parent) / name).stat().st_size
    return size
