"""`examples/kafka_totals` under `kill -9`: processes, etcd, a SQL file and a real Kafka, and no journal broker.

Too slow for CI: `make nightly-sinks`. `TOTALS_KILLS=60` kills a member so many times; without it, ten times.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa

from broadsheet.consumer import EndpointError, ShardClient
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.examples.kafka_totals.app import ORDERS, TOTALS
from broadsheet.examples.kafka_totals.orders import committed, problems, send
from tests.support.documents import REPOSITORY
from tests.support.eventually import eventually
from tests.support.real_kafka import RealKafka
from tests.support.serving_members import ServingMembers, run_shardctl

pytestmark = [pytest.mark.e2e, pytest.mark.etcd, pytest.mark.timeout(1_800)]

KILLS = int(os.environ.get("TOTALS_KILLS", "10"))
ORDERS_A_KILL = 300
MEMBERS = ("member-a", "member-b")
SHARDS = ("kafka-totals/part-000", "kafka-totals/part-001")
APPLICATION = "broadsheet.examples.kafka_totals.app:create"


@pytest.fixture
def database(tmp_path: Path) -> str:
    """A SQLite file, as SQLAlchemy calls it."""
    return f"sqlite:///{tmp_path}/totals.db"


@pytest.fixture
def members(
    etcd_server: EmbeddedEtcdProcess, real_kafka: RealKafka, database: str, tmp_path: Path
) -> Iterator[ServingMembers]:
    """Members of the example, not started."""
    environment = {"KAFKA_SERVERS": real_kafka.servers, "TOTALS_DATABASE": database}
    running = ServingMembers(APPLICATION, etcd_server.endpoint, tmp_path, environment)
    yield running
    running.close()


async def _primary_of(members: ServingMembers, shard: str) -> str:
    """Return the suffix of the member that is a shard's primary, asking any; empty if none says so."""
    for address in reversed(members.addresses()):
        with suppress(EndpointError):
            async with ShardClient(address) as client:
                for each in (await client.list()).shards:
                    if each.spec.id == shard and each.route.primary >= 0:
                        return str(each.route.members[each.route.primary].suffix)
                return ""
    return ""


async def test_example_tells_each_total_once_though_members_are_killed(
    members: ServingMembers, real_kafka: RealKafka, database: str
) -> None:
    """Primaries die while orders come in: an outside reader sees each total once, in order, and the database agrees."""
    for topic in (ORDERS, TOTALS):
        await asyncio.to_thread(real_kafka.create, topic, 4)
    for name in MEMBERS:
        members.start(name)
    address = await members.ready()
    specs = str(REPOSITORY / "examples/kafka_totals/shards.yaml")
    apply = ("shards", "apply", "--specs", specs, "--no-verify-journals")
    await run_shardctl(*apply, "--address", address)

    for kill in range(KILLS):
        victim = await eventually(
            partial(_primary_of, members, SHARDS[kill % 2]), timeout_seconds=120
        )
        sending = partial(send, real_kafka.servers, ORDERS_A_KILL, seed=kill)
        sent = asyncio.get_running_loop().run_in_executor(None, sending)
        before = (kill - 1) * ORDERS_A_KILL
        await eventually(partial(_totals_above, real_kafka, before), timeout_seconds=120)
        members.kill(victim)
        await sent
        members.start(victim)
    everything = KILLS * ORDERS_A_KILL
    await eventually(partial(_totals_above, real_kafka, everything - 1), timeout_seconds=120)

    assert await asyncio.to_thread(problems, real_kafka.servers) == []
    with sa.create_engine(database).connect() as connection:
        orders = connection.execute(sa.text("SELECT sum(orders) FROM customer_totals")).scalar_one()
    assert orders == everything


async def _totals_above(kafka: RealKafka, count: int) -> bool:
    def counted() -> int:
        return sum(1 for _ in committed(kafka.servers, TOTALS))

    return await asyncio.to_thread(counted) > count
