"""Whole clusters under faults: the real session, key space and allocation loop over an etcd in memory, on virtual time.

A few seeds run always; `make test-sim` runs two thousand.
"""

from __future__ import annotations

import pytest

from broadsheet.testing.allocator import ClusterFault, ClusterScenario, simulate
from broadsheet.testing.allocator.kernel.command import run_seed
from broadsheet.testing.allocator.run import clusters

CALM = ClusterScenario(
    faults={ClusterFault.JOIN: 1.0, ClusterFault.ITEM_ADDED: 1.0},
    steps=(6, 6),
    limit=(6, 8),
    members=(3, 3),
)


@pytest.mark.parametrize("seed", range(30))
def test_cluster_keeps_every_invariant_under_faults(seed: int) -> None:
    """I0 to I6 and I9 hold at every revision and at rest, whatever the seed brings."""
    outcome = run_seed(seed, clusters())

    assert outcome.ok, outcome.text


def test_member_whose_lease_ends_before_it_is_announced_again_says_that_it_lost_it() -> None:
    """Seed 6579: the answer to an announcement is lost, the lease revoked, and the next attempt names one that is gone.
    The member ends as one that lost its lease, whoever is told of that first.
    """
    report = simulate(6579)

    assert report.ok, str(report)


@pytest.mark.parametrize("seed", range(3))
def test_cluster_without_faults_serves_every_item(seed: int) -> None:
    """Members and items come: at rest each item has its replicas, and none is anywhere twice."""
    report = simulate(seed, CALM)

    assert report.ok, str(report)
    assert report.allocations
    assert all(len(set(members)) == len(members) for members in report.placement.values())
    assert any(len(members) > 1 for members in report.placement.values())


def test_cluster_that_lost_everyone_is_served_by_who_comes_then() -> None:
    """All processes are killed, zone by zone: a member that comes later finds the items, and takes them."""
    scenario = ClusterScenario(
        faults={ClusterFault.ZONE_LOST: 1.0},
        zones=(2, 2),
        steps=(12, 12),
        items=(4, 4),
        replication=(1, 1),
        limit=(8, 8),
    )

    report = simulate(1, scenario)

    assert report.ok, str(report)
    assert all(len(members) == 1 for members in report.placement.values())
