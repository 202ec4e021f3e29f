"""The benchmark of leases, on a few of them: that it measures at all, and prints what is promised."""

from __future__ import annotations

import json

import pytest

from bench.leasing.__main__ import measure
from bench.leasing.balance import Scene

FIGURES = {
    *("renew_per_s", "renew_per_s_limit", "renew_per_s_ratio"),
    *("take_per_s", "take_per_s_limit", "take_per_s_ratio"),
    *("writes_per_lease_minute", "rebalance_s"),
}
LEASES = 10
WORKERS = 2
LEASE_SECONDS = {"etcd": 1.0, "sqlite": 0.5}
"""As short as the backend allows."""


@pytest.mark.parametrize("backend", ["etcd", "sqlite"])
def test_every_figure_is_measured(backend: str, capfd: pytest.CaptureFixture[str]) -> None:
    """All figures come, greater than 0; but etcd, which knows who lives, is not written while nothing changes."""
    measure(
        backend,
        Scene(
            leases=LEASES,
            rated_leases=LEASES,
            workers=WORKERS,
            lease_seconds=LEASE_SECONDS[backend],
            take_seconds=0.2,
            quiet_seconds=0.4,
            poll_seconds=0.1,
        ),
    )
    printed = [json.loads(line) for line in capfd.readouterr().out.splitlines()]
    assert {figure["figure"] for figure in printed} == FIGURES
    for figure in printed:
        assert figure["bench"] == "leasing"
        assert figure["params"]["backend"] == backend
        silent = backend == "etcd" and figure["figure"] == "writes_per_lease_minute"
        assert figure["value"] == 0 if silent else figure["value"] > 0, figure
        if figure["figure"] == "rebalance_s":
            # A dead worker's leases were taken, and the same count that says 0 above saw it.
            assert figure["params"]["writes"] >= LEASES // WORKERS
            assert figure["params"]["most_leases"] == LEASES
