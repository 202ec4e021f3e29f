"""A stream read in parts by several shards of a member: merged across them, and taken over by another member."""

from __future__ import annotations

from pathlib import Path

import pytest

from broadsheet.consumer.sources.kinesis.lineage import AskedByStat
from broadsheet.consumer.sources.kinesis.pages import Pace
from broadsheet.consumer.sources.kinesis.source import KinesisSource
from broadsheet.consumer.sources.part import SOURCE_PART
from broadsheet.journals.content.json import JsonType
from broadsheet.wire.labels import label_set
from broadsheet.wire.shard_pb2 import ShardSpec
from tests.support.eventually import eventually
from tests.support.kinesis_streams import HASH_END, TestStream
from tests.support.members import Cluster, client_of, shard, upserts, wait_for_primaries
from tests.support.tally import JsonTally

pytestmark = pytest.mark.etcd


class Asking:
    """Asks a member that is there later than the application."""

    def __init__(self) -> None:
        self.member: AskedByStat | None = None
        self.answers: list[bool] = []

    async def has_ended(self, name: str, part_index: int) -> bool:
        """Ask, if there is somebody to ask."""
        if self.member is None:
            return False
        self.answers.append(await self.member.has_ended(name, part_index))
        return self.answers[-1]


class StreamTally(JsonTally):
    """Counts the messages of a stream."""

    def __init__(self, directory: Path, stream: TestStream) -> None:
        super().__init__(directory, output="")
        self.asking = Asking()
        source = KinesisSource(
            stream.name,
            JsonType(),
            open_client=stream.open_client,
            pace=Pace(read_interval_seconds=0.01, idle_interval_seconds=0.02),
            discovery_seconds=0.1,
            elsewhere=self.asking,
        )
        self.read_messages = source.read_messages
        self.replay_range = source.replay_range
        self.read_through = source.read_through

    def ask(self, address: str) -> None:
        """Have it ask the member at an address."""
        self.asking.member = AskedByStat(
            address, lambda index: f"shard-{index}", timeout_seconds=0.1
        )


def parts(count: int) -> list[ShardSpec]:
    """Return a shard for each part."""
    specs = [shard(f"shard-{index}") for index in range(count)]
    for index, spec in enumerate(specs):
        spec.labels.CopyFrom(label_set({SOURCE_PART: f"{index}/{count}"}))
    return specs


async def test_child_waits_until_another_part_has_committed_its_parent(
    cluster: Cluster, tmp_path: Path, kinesis_endpoint: str
) -> None:
    """The parts' shards of the stream are merged while one part cannot get on: what follows in the child waits for it,
    also if the parent was read to its end, for that is not committed. Then another member goes on.
    """
    cluster.json_store = True
    stream = await TestStream(kinesis_endpoint).create(2)
    await stream.put("low", range(5), hash_key=0)
    await stream.put("high", range(5), hash_key=HASH_END - 1)
    await stream.merge(0, 1)
    await stream.put("child", range(5))

    application = StreamTally(cluster.directory, stream)
    application.broken_by = "high"
    async with (
        cluster.member("a", application=application) as service,
        client_of(service) as client,
    ):
        await client.apply(upserts(*parts(2)))
        await wait_for_primaries(client, "shard-0")
        application.ask(client.address)
        await eventually(lambda: len(application.asking.answers) >= 3)
        await eventually(lambda: cluster.counts("shard-0", "shard-1") == {"low": 5})
        assert not any(application.asking.answers)

        application.broken_by = None
        expected = {"low": 5, "high": 5, "child": 5}
        await eventually(
            lambda: cluster.counts("shard-0", "shard-1") == expected, timeout_seconds=20
        )

    await stream.split(2, HASH_END // 2)
    await stream.put("high", range(3), hash_key=HASH_END - 1)
    successor = StreamTally(cluster.directory, stream)
    async with (
        cluster.member("b", application=successor) as service,
        client_of(service) as client,
    ):
        successor.ask(client.address)
        expected["high"] += 3
        await eventually(
            lambda: cluster.counts("shard-0", "shard-1") == expected, timeout_seconds=20
        )
