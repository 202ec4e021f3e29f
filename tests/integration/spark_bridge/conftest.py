"""A cluster of the test's own, and a worker that knows nothing yet."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from broadsheet.embedded.broker import EmbeddedBroker
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.journals.client import JournalClient
from tests.support.members import create_journals
from tests.support.resolving import JOURNALS, AskedCluster, connections_closed
from tests.support.sink_queries import SINK_JOURNALS
from tests.support.spark import make_journals


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


@pytest.fixture
async def sink_options(
    etcd_server: EmbeddedEtcdProcess, broker: EmbeddedBroker, etcd_root: str
) -> Mapping[str, str]:
    """Options of the sink, without a key, for two empty journals and a root of the test's own."""
    await asyncio.to_thread(make_journals, broker.address, SINK_JOURNALS)
    return {
        "address": broker.address,
        "etcd": etcd_server.endpoint,
        "selector": "name:prefix=sink/",
        "root": etcd_root,
    }
