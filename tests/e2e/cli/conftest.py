"""One cluster of the counter example for the tests of `shardctl`'s commands."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.counter_cluster import CounterCluster, running_counter_cluster


@pytest.fixture(scope="package")
def counter_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[CounterCluster]:
    """Etcd, a broker and two members, for every test that runs in this process."""
    with running_counter_cluster(tmp_path_factory.mktemp("dev")) as running:
        yield running


@pytest.fixture
def cluster(counter_cluster: CounterCluster) -> CounterCluster:
    """The same, at rest: a test before this one may have taken a primary or a member away."""
    counter_cluster.wait_until_at_rest()
    return counter_cluster
