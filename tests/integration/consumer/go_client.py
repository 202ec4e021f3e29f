"""The example's client in Go asks by key through a fail-over: `make nightly-clients`, where there is Go."""

from __future__ import annotations

import asyncio
import subprocess
from pathlib import Path

import pytest

from broadsheet.journals.client import JournalClient
from broadsheet.journals.message.partitioning import fnv1a_32
from tests.support.key_clients import CLIENTS, key_client, primaries_of
from tests.support.members import (
    Cluster,
    client_of,
    create_journals,
    shard,
    upserts,
    wait_for_primaries,
)

pytestmark = [pytest.mark.etcd, pytest.mark.timeout(600)]

JOURNALS = ("keys/part-000", "keys/part-001")
SHARDS = ("keys-000", "keys-001")
KEYS = [f"N{number}" for number in range(10)]


async def test_client_in_go_asks_the_primary_of_each_key_through_a_fail_over(
    cluster: Cluster, journals: JournalClient, tmp_path: Path
) -> None:
    """The program knows one member's address. That member ends: the client goes on with those that the table named."""
    program = tmp_path / "ask"
    build = ["go", "build", "-o", str(program), "."]
    await asyncio.to_thread(subprocess.run, build, cwd=CLIENTS / "go", check=True)
    await create_journals(journals, *JOURNALS)
    async with cluster.member("a", admin_port=0) as a, client_of(a) as client:
        await client.apply(upserts(*map(shard, SHARDS, JOURNALS)))
        await wait_for_primaries(client, *SHARDS)
        command = [str(program), a.admin_address, "rule=modulo"]
        async with key_client(command, directory=tmp_path) as asking:
            before = await primaries_of(asking, KEYS)
            async with cluster.member("b", admin_port=0):
                a.stop()
                after = await primaries_of(asking, KEYS)

    shards = {key: SHARDS[fnv1a_32(key.encode()) % 2] for key in KEYS}
    assert {key: one for key, (one, _) in before.items()} == shards
    assert {key: one for key, (one, _) in after.items()} == shards
    assert "zone-a#member-b" in {member for _, member in after.values()}
