"""A cluster of the test's own, and a worker that knows nothing yet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from broadsheet.embedded.broker import EmbeddedBroker
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.journals.client import JournalClient
from tests.support.members import create_journals
from tests.support.resolving import JOURNALS, AskedCluster, connections_closed


@pytest.fixture(autouse=True)
def _fresh_worker() -> Iterator[None]:
    with connections_closed():
        yield


@pytest.fixture
async def cluster(
    etcd_server: EmbeddedEtcdProcess,
    broker: EmbeddedBroker,
    journals: JournalClient,
    etcd_root: str,
    tmp_path: Path,
) -> AskedCluster:
    """A cluster without members yet; its journals exist."""
    await create_journals(journals, *JOURNALS)
    directory = tmp_path / "databases"
    directory.mkdir()
    return AskedCluster(
        etcd_endpoint=etcd_server.endpoint,
        broker_address=broker.address,
        root=etcd_root,
        directory=directory,
    )
