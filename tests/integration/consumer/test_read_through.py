"""What one primary has told of its progress, the next one honours: offsets read, and where what was published ends."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import pytest

from broadsheet.consumer.client import ShardClient
from broadsheet.consumer.errors import ShardNotFoundError
from broadsheet.consumer.shard.live_shard import LiveShard
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.journals.message.publisher import Publisher
from broadsheet.journals.message.uuid import MessageClock, new_producer_id
from broadsheet.runtime.task_group import TaskGroup
from tests.support.eventually import eventually
from tests.support.live_shards import (
    OUTPUT,
    SHARD,
    SOURCE,
    Counting,
    ShardHost,
    counts,
    read_through,
    spec_of,
)
from tests.support.members import (
    Cluster,
    Producer,
    client_of,
    create_journals,
    shard,
    upserts,
    wait_for_primaries,
)

pytestmark = pytest.mark.etcd

FOLLOWER = "shard-2"
FINAL_OUTPUT = "test/final"


async def told(live: LiveShard, offsets: Mapping[str, int]) -> dict[str, int]:
    """Return where what was published ends, as of the moment at which `offsets` are read through."""
    with live.acquire() as reference:
        await reference.wait_ready()
        await reference.wait_for_offsets(offsets)
        return dict(live.progress()[1])


async def test_next_primary_knows_where_earlier_publications_end(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """A message is consumed and published, then a transaction publishes nothing, then there are two hand-overs, one of
    them in the middle of nothing. Who asks the last primary about the message must learn where to look for its echo.
    """
    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    producer = Producer(journals)
    first = host.start(spec, Counting(tmp_path, output=OUTPUT))
    asked = {SOURCE: await producer.publish(SOURCE, ["a"])}
    before = await told(first, asked)
    assert before[OUTPUT] == await journals.write_head(OUTPUT)
    await first.stop()

    silent = host.start(spec, Counting(tmp_path))
    await read_through(silent, source=await producer.publish(SOURCE, ["b"]))
    await silent.stop()
    last = host.start(spec, Counting(tmp_path))

    after = await told(last, asked)
    assert after[OUTPUT] >= before[OUTPUT]


async def test_offset_of_a_duplicate_is_read_again_by_the_next_primary(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """Duplicates are in no checkpoint: the next primary reads them once more before it says so."""
    spec = spec_of(SHARD, SOURCE)
    await host.assign(spec)
    publisher = Publisher(MessageClock(), new_producer_id())
    publisher.publish_committed(MappedJournal(SOURCE, NDJSON), {"key": "a", "n": 1}, JsonType())
    (message,) = publisher.take_appends()
    first = host.start(spec, Counting(tmp_path))
    await journals.append(SOURCE, message.content)
    await read_through(first, source=await journals.write_head(SOURCE))
    await journals.append(SOURCE, message.content)
    end = await journals.write_head(SOURCE)
    await told(first, {SOURCE: end})
    await first.stop()

    second = host.start(spec, Counting(tmp_path))
    await told(second, {SOURCE: end})

    assert second.progress()[0] == {SOURCE: end}
    assert await counts(second) == {"a": 1}


async def test_client_follows_a_message_through_two_shards_over_hand_overs(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """Read your writes, across two shards, each of which changes its primary between every two steps."""
    await create_journals(journals, FINAL_OUTPUT)
    specs = {SHARD: spec_of(SHARD, SOURCE), FOLLOWER: spec_of(FOLLOWER, OUTPUT)}
    outputs = {SHARD: OUTPUT, FOLLOWER: FINAL_OUTPUT}
    producer = Producer(journals)
    for spec in specs.values():
        await host.assign(spec)

    def started(shard_id: str) -> LiveShard:
        return host.start(specs[shard_id], Counting(tmp_path, output=outputs[shard_id]))

    leader, follower = started(SHARD), started(FOLLOWER)
    for number in range(1, 5):
        end = await producer.publish(SOURCE, [f"k{number}"])
        await told(leader, {SOURCE: end})
        async with TaskGroup() as group:
            group.start_soon(leader.stop(grace_seconds=0), name="stop leader")
            group.start_soon(follower.stop(grace_seconds=0), name="stop follower")
        leader, follower = started(SHARD), started(FOLLOWER)

        published = await told(leader, {SOURCE: end})
        await told(follower, {OUTPUT: published[OUTPUT]})

        assert await counts(follower) == {f"k{n}": 1 for n in range(1, number + 1)}


async def test_stat_at_the_next_primary_blocks_until_it_has_read(
    cluster: Cluster, journals: JournalClient
) -> None:
    """One client waits for an offset while the shard's process is replaced, others ask again: all learn the truth."""
    producer = Producer(journals)
    async with (
        cluster.member("b") as standing,
        client_of(standing) as client,
        cluster.member("a") as leaving,
        client_of(leaving) as first_client,
    ):
        await client.apply(upserts(*(shard(f"shard-{n}", "test/source") for n in range(2))))
        primaries = await wait_for_primaries(client, "shard-0", "shard-1")
        moved = next(s for s, suffix in primaries.items() if suffix == "member-a")
        end = await producer.publish("test/source", ["a"])
        seen = await first_client.stat(moved, read_through={"test/source": end})
        later = end + 1
        async with TaskGroup() as group:
            waiting = group.start_soon(
                client.wait_read_through(moved, {"test/source": later}, timeout_seconds=30),
                name="wait",
            )
            leaving.force_stop()
            await eventually(partial(primary_is, client, moved, "member-b"))
            assert not waiting.done()
            answer = await client.wait_read_through(moved, seen.read_through, timeout_seconds=30)
            assert dict(answer.read_through) == dict(seen.read_through)
            assert answer.publish_at["test/output"] >= seen.publish_at["test/output"]
            with pytest.raises(TimeoutError):
                await client.stat(moved, read_through={"test/source": later}, timeout_seconds=0.1)
            await producer.publish("test/source", ["a"])
            assert (await waiting).read_through["test/source"] >= later


async def primary_is(client: ShardClient, shard_id: str, suffix: str) -> bool:
    """Return whether a member is the shard's primary."""
    return (await wait_for_primaries(client, shard_id))[shard_id] == suffix


async def test_waiting_for_a_shard_that_does_not_exist_ends_at_once(cluster: Cluster) -> None:
    """Only what a hand-over explains is waited out; and the time is bounded, and its end tells why."""
    async with cluster.member("a") as service, client_of(service) as client:
        with pytest.raises(ShardNotFoundError):
            await client.wait_read_through("absent", {}, timeout_seconds=30)
        await client.apply(upserts(shard("shard-0", "test/source")))
        await wait_for_primaries(client, "shard-0")
        with pytest.raises(TimeoutError):
            await client.wait_read_through("shard-0", {"test/source": 10**9}, timeout_seconds=0.2)
