"""A cluster of the test's own: etcd, broker, a source, an output, and a directory for databases."""

from __future__ import annotations

from pathlib import Path

import pytest

from consumer.embedded.broker import EmbeddedBroker
from consumer.embedded.etcd import EmbeddedEtcdProcess
from consumer.journal.client import JournalClient
from tests.support.members import Cluster, create_journals

SOURCE = "test/source"
OUTPUT = "test/output"


@pytest.fixture
async def cluster(
    etcd_server: EmbeddedEtcdProcess,
    broker: EmbeddedBroker,
    journals: JournalClient,
    etcd_root: str,
    tmp_path: Path,
) -> Cluster:
    """A cluster without members yet; its source and output journals exist."""
    await create_journals(journals, SOURCE, OUTPUT)
    directory = tmp_path / "databases"
    directory.mkdir()
    return Cluster(
        etcd_endpoint=etcd_server.endpoint,
        broker_address=broker.address,
        root=etcd_root,
        directory=directory,
        output=OUTPUT,
    )
