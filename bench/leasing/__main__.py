"""The cost of leases in each backend, and the time until those of a dead worker are taken: `make bench BENCH=leasing`.

renew_per_s, take_per_s     beside as many writes of the backend's own client
writes_per_lease_minute     counted while four workers hold 1,000 leases and nothing happens
rebalance_s                 from a SIGKILL of one of the four to when the others have all, each no more than its share
"""

from __future__ import annotations

import asyncio
import logging
import sys
import tempfile
from pathlib import Path

import structlog

from bench.leasing import balance, rates
from bench.leasing.balance import Scene
from bench.leasing.places import BACKENDS, Place
from bench.leasing.servers import SERVERS, NoServerError
from bench.report import Params

BENCH = "leasing"
SCENES = {
    # Of 1,000 leases the default settings renew 300 a second; moto answers 130 to 200, with their writers on the same
    # two cores, and a look at all takes it half a second. So all leases, but longer ones, with fewer looks of ours.
    "dynamodb": Scene(
        rated_leases=200, lease_seconds=26.0, renew_seconds=12.5, take_seconds=8.0, poll_seconds=4.0
    ),
    # Azurite answers some 300: all leases, with longer ones.
    "azure_blob": Scene(rated_leases=200, lease_seconds=20.0, take_seconds=15.0, poll_seconds=2.0),
}
"""By backend, where the default scene is too much for an emulator."""


def main() -> None:
    """Measure the backends that are named, or all."""
    structlog.configure(
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        wrapper_class=structlog.make_filtering_bound_logger(logging.WARNING),
    )
    backends = sys.argv[1:] or list(BACKENDS)
    unknown = set(backends) - BACKENDS.keys()
    if unknown:
        sys.exit(f"backend: expected {', '.join(BACKENDS)}, got {', '.join(sorted(unknown))}")
    for backend in backends:
        try:
            measure(backend, SCENES.get(backend, Scene()))
        except NoServerError as error:
            print(f"{backend} is left out: {error}", file=sys.stderr)


def measure(backend: str, scene: Scene) -> None:
    """Measure one backend on a server of its own.

    Args:
        backend: Its name.
        scene: What the workers do.
    """
    with tempfile.TemporaryDirectory() as name, SERVERS[backend](Path(name)) as (address, server):
        params: Params = {"backend": backend, "server": server}
        idle = Place(backend=backend, address=address, space="bench-rates")
        shared = Place(
            backend=backend,
            address=address,
            space="bench-workers",
            lease_seconds=scene.lease_seconds,
        )
        asyncio.run(rates.run(BENCH, idle, scene.rated_leases, params))
        asyncio.run(balance.run(BENCH, shared, scene, Path(name), params))


if __name__ == "__main__":
    main()
