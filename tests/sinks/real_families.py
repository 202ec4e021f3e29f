"""Shards that are split and merged while a member is killed, and whose output goes to Kafka or a table.

`make nightly-elastic`. Rounds into journals are in tests/integration/consumer.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from broadsheet.consumer.direct import KafkaCluster, KafkaOutput
from broadsheet.consumer.relay import Relay, Sink, SinkKind, labels_of_sink
from broadsheet.journals.client import JournalClient
from tests.integration.consumer.conftest import cluster as cluster
from tests.support.family_rounds import MERGE_STEPS, SPLIT_STEPS, FamilyRound, asked_of
from tests.support.kafka_sinks import CommittedReader
from tests.support.members import Cluster, client_of, shard, upserts
from tests.support.real_kafka import RealKafka
from tests.support.splitting import ECHO_SCHEMA, OUTPUT

pytestmark = pytest.mark.etcd

_PARTITIONS = 3
_ROUNDS = range(int(os.environ.get("SINK_FAMILY_ROUNDS", "1")))
_SPLIT_STEPS = asked_of(SPLIT_STEPS, os.environ.get("SPLIT_STEPS", "all").split(","))
_MERGE_STEPS = asked_of(MERGE_STEPS, os.environ.get("MERGE_STEPS", "all").split(","))


@pytest.fixture
async def into_topic(
    cluster: Cluster, journals: JournalClient, tmp_path: Path, real_kafka: RealKafka
) -> AsyncIterator[FamilyRound]:
    """A round whose shards send straight into a topic, which a reader of committed records reads."""
    topic = f"echoes-{uuid4().hex[:12]}"
    await asyncio.to_thread(real_kafka.create, topic, _PARTITIONS)
    to = KafkaOutput(topic, KafkaCluster(real_kafka.config), key="key", schema=ECHO_SCHEMA)
    with closing(CommittedReader(real_kafka.config, topic, partitions=_PARTITIONS)) as reader:

        async def echoes() -> list[dict[str, Any]]:
            records = await asyncio.to_thread(reader.catch_up)
            return [json.loads(each.value or b"") for each in records]

        yield FamilyRound(cluster, journals, tmp_path, to, echoes)


class _MemberRelay(Relay):
    """With the end that the members of tests give their applications."""

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
async def into_table(
    cluster: Cluster, journals: JournalClient, tmp_path: Path
) -> AsyncIterator[FamilyRound]:
    """A round whose journal a relay of another cluster carries into a table, which delta-rs reads."""
    sinks = replace(cluster, root=f"{cluster.root}-sinks")
    table = str(tmp_path / "table")
    carrying = shard("sink", OUTPUT)
    carrying.labels.CopyFrom(labels_of_sink(Sink(kind=SinkKind.DELTA, to=table)))
    # `Any`: the members of tests are typed for another application.
    relay: Any = _MemberRelay()

    async def echoes() -> list[dict[str, Any]]:
        return await asyncio.to_thread(_rows_of, table)

    async with sinks.member("sink", application=relay) as member:
        async with client_of(member) as client:
            await client.apply(upserts(carrying))
        yield FamilyRound(cluster, journals, tmp_path, echoes=echoes)


def _rows_of(table: str) -> list[dict[str, Any]]:
    """Return the rows of a table in the order of their journal; none if there is no table yet."""
    try:
        rows = DeltaTable(table).to_pyarrow_table()
    except TableNotFoundError:
        return []
    found: list[dict[str, Any]] = rows.sort_by("_offset").select(["key", "n", "count"]).to_pylist()
    return found


@pytest.fixture(params=["topic", "table"])
def family_round(request: pytest.FixtureRequest) -> FamilyRound:
    """A round into each."""
    found: FamilyRound = request.getfixturevalue(f"into_{request.param}")
    return found


@pytest.mark.parametrize("round_", _ROUNDS)
@pytest.mark.parametrize("step", _SPLIT_STEPS)
async def test_split_whose_member_is_killed_sends_each_row_once(
    family_round: FamilyRound, step: str, round_: int
) -> None:
    """The child inherits nothing that its parent has to send, and the parent sends what it has: once, in order."""
    del round_
    await family_round.split(SPLIT_STEPS[step])


@pytest.mark.parametrize("round_", _ROUNDS)
@pytest.mark.parametrize("step", _MERGE_STEPS)
async def test_merge_whose_member_is_killed_sends_each_row_once(
    family_round: FamilyRound, step: str, round_: int
) -> None:
    """The survivor takes over state, and the absorbed shard's records have been sent before: once, in order."""
    del round_
    await family_round.merge(MERGE_STEPS[step])
