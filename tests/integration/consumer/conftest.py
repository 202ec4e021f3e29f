"""A cluster of the test's own: etcd, broker, a source, an output, and a directory for databases."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.embedded.broker import EmbeddedBroker
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.journals.client import JournalClient
from tests.support import live_shards
from tests.support.family_rounds import FamilyRound
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


@pytest.fixture
def family_round(cluster: Cluster, journals: JournalClient, tmp_path: Path) -> FamilyRound:
    """A round of a split or a merge whose outputs go to a journal."""
    return FamilyRound(cluster, journals, tmp_path)


@pytest.fixture
async def host(
    etcd: EtcdClient, etcd_root: str, journals: JournalClient
) -> AsyncIterator[live_shards.ShardHost]:
    """A host without shards; its journals exist."""
    await create_journals(journals, *live_shards.JOURNALS)
    loop = asyncio.get_running_loop()
    ready: asyncio.Future[live_shards.ShardHost] = loop.create_future()
    done = asyncio.Event()

    async def run() -> None:
        async with live_shards.running_host(etcd, etcd_root, journals) as running:
            ready.set_result(running)
            await done.wait()

    # A task group is entered and left by one task, but the halves of a fixture are two.
    task = loop.create_task(run(), name="host")
    # `Any`: their results differ.
    either: set[asyncio.Future[Any]] = {task, ready}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if task.done():
        task.result()  # Raises why there is no host.
    yield await ready
    done.set()
    await task
