"""What the Spark tests do to a cluster from outside: find its processes, make its journals, ask its shards."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

import psutil

from broadsheet.journals.client import JournalClient
from broadsheet.wire.journal_pb2 import ApplyRequest, CompressionCodec, JournalSpec
from broadsheet.wire.labels import label_set
from broadsheet.wire.shard_pb2 import ShardSpec


def make_journals(
    broker_address: str,
    names: Iterable[str],
    *,
    content_type: str = "application/x-ndjson",
    labels: Mapping[str, str] = MappingProxyType({}),
) -> None:
    """Create journals, of JSON lines unless told otherwise, with more labels if there are some."""
    specs = [
        JournalSpec(
            name=name,
            replication=1,
            labels=label_set({"content-type": content_type, **labels}),
            fragment=JournalSpec.Fragment(length=1 << 24, compression_codec=CompressionCodec.NONE),
        )
        for name in names
    ]
    for spec in specs:
        spec.fragment.refresh_interval.FromSeconds(60)

    async def apply() -> None:
        async with JournalClient(broker_address) as client:
            await client.apply([ApplyRequest.Change(upsert=spec) for spec in specs])

    asyncio.run(apply())


def shard_specs(prefix: str, journals: Sequence[str]) -> list[ShardSpec]:
    """Return a spec for each journal, with a standby and short transactions."""
    specs = []
    for index, journal in enumerate(journals):
        spec = ShardSpec(
            id=f"{prefix}-{index:03d}",
            sources=[ShardSpec.Source(journal=journal)],
            hot_standbys=1,
        )
        spec.max_txn_duration.FromMilliseconds(200)
        specs.append(spec)
    return specs


def process_listening_at(endpoint: str) -> psutil.Process:
    """Return the process that serves at `http://HOST:PORT`."""
    port = int(endpoint.rpartition(":")[2])
    for connection in psutil.net_connections("tcp"):
        here = connection.laddr
        if connection.status == psutil.CONN_LISTEN and here and here.port == port:
            return psutil.Process(connection.pid)
    raise LookupError(f"nobody listens at {endpoint}")


def executor_of(worker: psutil.Process) -> psutil.Process:
    """Return the executor's JVM that a Python worker belongs to."""
    return next(parent for parent in worker.parents() if parent.name() == "java")
