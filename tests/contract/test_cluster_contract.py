"""The cluster of the test kit: virtual and real ones do the same."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from broadsheet.testing import ShardFailedError, Step, TestCluster
from tests.support.broken_applications import Alerts

ORDERS = [{"customer": "ada"}, {"customer": "bob"}, {"customer": "ada"}]


@pytest.fixture(params=[False, pytest.param(True, marks=pytest.mark.etcd)], ids=["virtual", "real"])
def cluster(request: pytest.FixtureRequest) -> Iterator[TestCluster]:
    """A cluster of each kind."""
    with TestCluster(Alerts, real=request.param) as running:
        yield running


def test_every_fault_is_got_over(cluster: TestCluster) -> None:
    """Kills after each step, a failed commit, a lost answer and a hand-over: nothing is lost or repeated."""
    rounds = 1
    cluster.publish("orders", *ORDERS)
    cluster.read_through()
    assert cluster.state() == {"ada": 2, "bob": 1}

    for step in Step:
        cluster.kill_primary(after=step)
        if step is Step.RESTORED:
            cluster.kill_primary()  # The next primary restores, and is killed there.
        cluster.publish("orders", *ORDERS)
        cluster.read_through()
        rounds += 1
        cluster.check_faults()
    for fault in (cluster.fail_commit, cluster.lose_answer, cluster.hand_over):
        fault()
        cluster.publish("orders", *ORDERS)
        cluster.read_through()
        rounds += 1

    assert cluster.state() == {"ada": 2 * rounds, "bob": rounds}
    assert cluster.query(lambda store: store.state["ada"]) == 2 * rounds
    alerts = sorted((each["customer"], each["orders"]) for each in cluster.published("alerts"))
    expected = [("ada", 2 * number) for number in range(1, rounds + 1)]
    assert alerts == sorted(expected + [("bob", 2 * each) for each in range(1, rounds // 2 + 1)])


def test_a_failure_of_the_application_is_raised(cluster: TestCluster) -> None:
    """A shard that cannot go on ends the wait, with the application's error."""
    cluster.publish("orders", {"customr": "ada"})

    with pytest.raises(ShardFailedError, match="KeyError: 'customer'"):
        cluster.read_through()
