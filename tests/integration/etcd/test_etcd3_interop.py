"""An independent witness: PyPI's `etcd3`, in a process of its own, reads what we wrote, and we what it wrote."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import AsyncIterator
from contextlib import aclosing
from pathlib import Path
from typing import Any

import pytest

from broadsheet.allocator.etcd.api import KeyDeleted, KeyPut, WatchEvent
from broadsheet.allocator.etcd.client import EtcdClient, EtcdConfig
from broadsheet.allocator.ops import Compare, Put, prefix_range_end
from broadsheet.embedded.etcd import EmbeddedEtcd
from tests.support.eventually import DEADLINE_SECONDS

pytestmark = pytest.mark.etcd
WITNESS = Path(__file__).parents[2] / "support" / "etcd3_witness.py"


@pytest.fixture
async def server() -> AsyncIterator[EmbeddedEtcd]:
    """The witness only knows host and port."""
    async with EmbeddedEtcd(listen="tcp") as running:
        yield running


async def _witness(server: EmbeddedEtcd, prefix: str) -> dict[str, Any]:  # decoded JSON
    host, port = server.endpoint.split(":")
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "ignore", str(WITNESS), host, port, prefix),
        env=os.environ | {"PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION": "python"},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    async with asyncio.timeout(DEADLINE_SECONDS):
        output, errors = await process.communicate()
    assert process.returncode == 0, errors.decode()
    report: dict[str, Any] = json.loads(output)
    return report


async def test_etcd3_reads_what_we_wrote_and_we_what_it_wrote(
    server: EmbeddedEtcd, etcd_root: str
) -> None:
    """Keys, histories, leases and transactions mean the same to both; our watch sees its writes as they were made."""
    ours, theirs = f"{etcd_root}/ours/".encode(), f"{etcd_root}/theirs/".encode()
    async with EtcdClient(EtcdConfig(endpoints=(server.endpoint,))) as client:
        lease = await client.lease_grant(77)
        written = await client.txn(
            (Compare.absent(ours + b"a"),),
            (Put(ours + b"a", b"1"), Put(ours + b"b", "zwölf".encode(), lease)),
        )
        rewritten = await client.put(ours + b"a", b"2")

        report = await _witness(server, etcd_root)

        read = await client.get_range(theirs, prefix_range_end(theirs))
        events: list[WatchEvent] = []
        watch = client.watch(theirs, start_revision=rewritten + 1)
        async with asyncio.timeout(DEADLINE_SECONDS), aclosing(watch) as batches:
            async for batch in batches:
                events.extend(batch.events)
                if len(events) >= 5:
                    break

    first = written.header.revision
    assert report["ours"] == [
        {
            "key": (ours + b"a").decode(),
            "value": "2",
            "create_revision": first,
            "mod_revision": rewritten,
            "version": 2,
            "lease": 0,
        },
        {
            "key": (ours + b"b").decode(),
            "value": "zwölf",
            "create_revision": first,
            "mod_revision": first,
            "version": 1,
            "lease": lease,
        },
    ]
    assert report["granted_ttls"] == [77]
    assert report["txn_succeeded"]
    assert {kv.key.removeprefix(theirs): (kv.value, kv.lease) for kv in read.kvs} == {
        b"leased": (b"on a lease", report["their_lease"]),
        b"txn": (b"both", 0),
        b"txn2": (b"at once", 0),
    }
    seen = [
        (
            type(event),
            (event.kv.key if isinstance(event, KeyPut) else event.key).removeprefix(theirs),
        )
        for event in events
    ]
    assert seen[:2] == [(KeyPut, b"plain"), (KeyPut, b"leased")]
    assert set(seen[2:]) == {(KeyPut, b"txn"), (KeyPut, b"txn2"), (KeyDeleted, b"plain")}
