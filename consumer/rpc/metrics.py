"""Metrics of a member that hands its shards over before it leaves."""

from __future__ import annotations

import math
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Gauge

from broadsheet.wire.progress_pb2 import Progress


def register_drain(registry: CollectorRegistry, progress: Callable[[], Progress]) -> None:
    """Have a registry show the progress of this process's drain; `Progress()` if there is none."""
    left = Gauge(
        "broadsheet_member_drain_shards_left",
        "Shards that this member has still to hand over before it leaves; 0 if it does not leave.",
        registry=registry,
    )
    eta = Gauge(
        "broadsheet_member_drain_eta_seconds",
        "Time until this member has handed all shards over; NaN: unknown, 0: it does not leave.",
        registry=registry,
    )
    left.set_function(lambda: progress().to_do)
    eta.set_function(lambda: seconds if (seconds := progress().eta_s) >= 0 else math.nan)
