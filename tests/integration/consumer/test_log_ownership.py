"""One recovery log, two shards that name it: the stranger is refused, and the owner is not disturbed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from broadsheet.consumer.client import ShardClient
from broadsheet.journals.client import JournalClient
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.labels import RECOVERY_LOG_OF, label_set
from broadsheet.wire.shard_pb2 import ReplicaStatus, ShardSpec
from tests.support.eventually import eventually
from tests.support.members import (
    Cluster,
    Producer,
    client_of,
    create_journals,
    shard,
    upserts,
    wait_for_primaries,
)
from tests.support.recorded_tally import TALLIES, counts_of, create_logs, recorded

pytestmark = pytest.mark.etcd

SOURCE, SHARD = "test/source", "shard-a"


async def _failure(client: ShardClient, expected: str) -> str:
    """Return the text of the shard's FAILED status, once it has the one that is expected."""

    async def failed() -> str:
        (listed,) = (await client.list()).shards
        text = "; ".join(error for status in listed.status for error in status.errors)
        assert expected in text, listed
        assert listed.status[0].code == ReplicaStatus.FAILED
        return text

    return await eventually(failed)


def _staging(cluster: Cluster, *, former: str = "") -> ShardSpec:
    """Production's spec as it was copied, but for its hints."""
    spec = recorded(shard(SHARD, "test/staging-source"), f"{cluster.root}/staging")
    if former:
        spec.labels.CopyFrom(label_set((RECOVERY_LOG_OF, former)))
    return spec


async def test_copy_of_a_spec_in_another_root_is_refused_by_the_log_and_the_owner_serves_on(
    cluster: Cluster, journals: JournalClient, tmp_path: Path
) -> None:
    """Production's YAML is applied to a second root with the same broker. Its shard fails by name before it
    has written anything: the owner is not fenced, and counts right. A label moves the log on purpose; then the old
    root's shard is the stranger.
    """
    await create_logs(journals, SHARD)
    await create_journals(journals, "test/staging-source")
    tally, other = (TALLIES["json"][0](cluster.directory, output="") for _ in range(2))
    second = replace(cluster, root=f"{cluster.root}-staging")
    producer = Producer(journals)
    async with (
        cluster.member("one", application=tally, state_dir=str(tmp_path / "one")) as one,
        client_of(one) as client,
    ):
        await client.apply(upserts(recorded(shard(SHARD, SOURCE), cluster.root)))
        await wait_for_primaries(client, SHARD)
        end = await producer.publish(SOURCE, ["a", "b", "a"])
        await counts_of(one.resolver, SHARD, "json", read_through={SOURCE: end})
        async with (
            second.member("two", application=other, state_dir=str(tmp_path / "two")) as two,
            client_of(two) as strangers,
        ):
            await strangers.apply(upserts(_staging(cluster)))
            text = await _failure(strangers, f"shard {SHARD} of root {cluster.root}, and this is")
            assert "not retried before the spec changes" in text
            end = await producer.publish(SOURCE, ["a"])
            counts = await counts_of(one.resolver, SHARD, "json", read_through={SOURCE: end})
            assert counts == {"a": 3, "b": 1}

            await strangers.apply(upserts(_staging(cluster, former=cluster.root), expect=-1))
            await wait_for_primaries(strangers, SHARD)
            assert await counts_of(two.resolver, SHARD, "json", read_through={}) == counts
            await producer.publish(SOURCE, ["a"])
            await _failure(client, f"belongs to shard {SHARD} of root {second.root}")


async def test_apply_refuses_logs_that_it_sees_to_be_anothers(
    cluster: Cluster, journals: JournalClient, tmp_path: Path
) -> None:
    """Ids that make one log within a root, another prefix for a live shard, and hints of another root's shard."""
    await create_logs(journals, SHARD, f"xx/{SHARD}")
    tally = TALLIES["json"][0](cluster.directory, output="")
    second = replace(cluster, root=f"{cluster.root}-staging")
    spec = recorded(shard(f"xx/{SHARD}", SOURCE), cluster.root)
    async with (
        cluster.member("one", application=tally, state_dir=str(tmp_path / "one")) as one,
        second.member("two", application=tally, state_dir=str(tmp_path / "two")) as two,
        client_of(one) as client,
        client_of(two) as strangers,
    ):
        await client.apply(upserts(spec))
        await wait_for_primaries(client, spec.id)
        sharer = recorded(shard(SHARD, SOURCE), cluster.root)
        sharer.recovery_log_prefix += "/xx"
        with pytest.raises(ValidationError, match=f"is the recovery log of shard xx/{SHARD}"):
            await client.apply(upserts(sharer))
        exchanged = ShardSpec()
        exchanged.CopyFrom(spec)
        exchanged.recovery_log_prefix = "elsewhere"
        with pytest.raises(ValidationError, match="its state is in"):
            await client.apply(upserts(exchanged, expect=-1))

        async def hinted() -> bool:
            # The owner's first hints come a moment after it serves.
            return bool((await client.get_hints(spec.id)).primary_hints.hints.properties)

        await eventually(hinted)
        with pytest.raises(ValidationError, match=f"of root {cluster.root}"):
            await strangers.apply(upserts(spec))
