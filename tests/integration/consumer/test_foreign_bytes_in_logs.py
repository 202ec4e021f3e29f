"""Foreign bytes in the recovery log of a live shard: noticed at the next commit, and no successor loses anything."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from structlog.testing import capture_logs

from broadsheet.journals.client import JournalClient
from tests.support.members import (
    Cluster,
    Producer,
    client_of,
    shard,
    upserts,
    wait_for_primaries,
)
from tests.support.recorded_tally import LOGS, TALLIES, counts_of, create_logs, recorded

pytestmark = pytest.mark.etcd

SOURCE, SHARD = "test/source", "shard-a"
KEYS = ["a", "b", "a", "c"]


async def _torn(journals: JournalClient, log: str, length: int) -> bytes:
    """Return the first bytes of a log, which begin with an operation."""
    content = b""
    async for span in journals.reader(log, offset=0, end_offset=length, block=False):
        content += span.content
    return content[:length]


@pytest.mark.parametrize("length", [4, 11, 37, 150])
@pytest.mark.parametrize("is_last", [False, True], ids=["commit follows", "nothing follows"])
async def test_part_of_an_operation_in_a_live_log_costs_no_commit(
    cluster: Cluster, journals: JournalClient, tmp_path: Path, length: int, is_last: bool
) -> None:
    """A stranger appends the first bytes of an operation, which take what follows for their own rest. The primary says
    so at its next commit, and makes the log playable; where there is none, the successor does. The successor, with an
    empty disk, has every count.
    """
    await create_logs(journals, SHARD)
    log = f"{LOGS}/{SHARD}"
    producer = Producer(journals)
    tally = TALLIES["sqlite"][0]
    async with (
        cluster.member(
            "one", application=tally(cluster.directory, output=""), state_dir=str(tmp_path / "one")
        ) as one,
        client_of(one) as client,
    ):
        await client.apply(upserts(recorded(shard(SHARD, SOURCE), cluster.root)))
        await wait_for_primaries(client, SHARD)
        end = await producer.publish(SOURCE, KEYS)
        await counts_of(one.resolver, SHARD, "sqlite", read_through={SOURCE: end})
        await journals.append(log, await _torn(journals, log, length))
        if not is_last:
            with capture_logs() as said:
                for _ in range(3):
                    end = await producer.publish(SOURCE, KEYS)
                    await counts_of(one.resolver, SHARD, "sqlite", read_through={SOURCE: end})
            events = [entry["event"] for entry in said]
            assert events.count("recovery_log.foreign_bytes") == 1
            assert "shard.failed" not in events
        one.force_stop()
    async with (
        cluster.member(
            "two", application=tally(cluster.directory, output=""), state_dir=str(tmp_path / "two")
        ) as two,
        client_of(two) as client,
    ):
        await wait_for_primaries(client, SHARD)
        counts = await counts_of(two.resolver, SHARD, "sqlite", read_through={SOURCE: end})
        rounds = 1 if is_last else 4
        assert counts == {key: n * rounds for key, n in Counter(KEYS).items()}
