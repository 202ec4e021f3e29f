"""`examples/kafka_totals` under `kill -9`: processes, etcd, a SQL file and a real Kafka, and no journal broker.

Too slow for CI: `make nightly-sinks`. `TOTALS_KILLS=60` kills a member so many times; without it, ten times.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from uuid import uuid4

import pytest
import sqlalchemy as sa

from broadsheet.consumer import EndpointError, ShardClient
from broadsheet.embedded.child_process import ChildProcess
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.examples.kafka_totals.app import ORDERS, TOTALS
from broadsheet.examples.kafka_totals.orders import committed, problems, send
from tests.support.documents import REPOSITORY
from tests.support.eventually import eventually
from tests.support.real_kafka import RealKafka

pytestmark = [pytest.mark.e2e, pytest.mark.etcd, pytest.mark.timeout(1_800)]

KILLS = int(os.environ.get("TOTALS_KILLS", "10"))
ORDERS_A_KILL = 300
MEMBERS = ("member-a", "member-b")
SHARDS = ("kafka-totals/part-000", "kafka-totals/part-001")
_SHARDCTL = (sys.executable, "-P", "-m", "broadsheet.cli.main")
_NO_BROKER = "http://127.0.0.1:1"
"""Nothing listens there, so a call of a broker would fail."""


class _Members:
    """Processes of `shardctl serve`, which can be killed and started again."""

    def __init__(self, etcd: str, servers: str, directory: Path) -> None:
        self._directory = directory
        self.database = f"sqlite:///{directory}/totals.db"
        self._env = {"KAFKA_SERVERS": servers, "TOTALS_DATABASE": self.database}
        self._where = (
            *("--etcd", etcd, "--broker", _NO_BROKER, "--root", f"/totals/{uuid4().hex}"),
            *("--port", "0", "--state-dir", str(directory), "--lease-ttl", "60"),
        )
        self._children: dict[str, ChildProcess] = {}

    def start(self, name: str) -> None:
        """Start a member, also the next life of a killed one."""
        serve = ("serve", "broadsheet.examples.kafka_totals.app:create", "--suffix", name)
        self._children[name] = ChildProcess(
            [*_SHARDCTL, *serve, "--replaces", name, *self._where],
            directory=REPOSITORY,
            log_file=self._directory / f"{name}.log",
            environment={**os.environ, **self._env},
        )

    def kill(self, name: str) -> None:
        """Kill -9."""
        self._children[name].kill()

    def addresses(self) -> list[str]:
        """Return where members serve, as their logs tell, the last life of each last."""
        logs = [self._directory / f"{name}.log" for name in self._children]
        texts = [log.read_text(errors="replace") for log in logs if log.exists()]
        lines = [line for text in texts for line in text.splitlines()]
        return [line.removeprefix("serving ") for line in lines if line.startswith("serving ")]


@pytest.fixture
def members(
    etcd_server: EmbeddedEtcdProcess, real_kafka: RealKafka, tmp_path: Path
) -> Iterator[_Members]:
    """Members of the example, not started."""
    running = _Members(etcd_server.endpoint, real_kafka.servers, tmp_path)
    yield running
    for name in MEMBERS:
        with suppress(KeyError):
            running.kill(name)


async def _primary_of(members: _Members, shard: str) -> str:
    """Return the suffix of the member that is a shard's primary, asking any; empty if none says so."""
    for address in reversed(members.addresses()):
        with suppress(EndpointError):
            async with ShardClient(address) as client:
                for each in (await client.list()).shards:
                    if each.spec.id == shard and each.route.primary >= 0:
                        return str(each.route.members[each.route.primary].suffix)
                return ""
    return ""


async def _apply(address: str) -> None:
    specs = str(REPOSITORY / "examples/kafka_totals/shards.yaml")
    apply = ("shards", "apply", "--specs", specs, "--no-verify-journals", "--address", address)
    process = await asyncio.create_subprocess_exec(*_SHARDCTL, *apply)
    assert await process.wait() == 0


async def test_example_tells_each_total_once_though_members_are_killed(
    members: _Members, real_kafka: RealKafka
) -> None:
    """Primaries die while orders come in: an outside reader sees each total once, in order, and the database agrees."""
    for topic in (ORDERS, TOTALS):
        await asyncio.to_thread(real_kafka.create, topic, 4)
    for name in MEMBERS:
        members.start(name)
    await eventually(lambda: len(members.addresses()) >= len(MEMBERS), timeout_seconds=60)
    await _apply(members.addresses()[0])

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
    with sa.create_engine(members.database).connect() as connection:
        orders = connection.execute(sa.text("SELECT sum(orders) FROM customer_totals")).scalar_one()
    assert orders == everything


async def _totals_above(kafka: RealKafka, count: int) -> bool:
    def counted() -> int:
        return sum(1 for _ in committed(kafka.servers, TOTALS))

    return await asyncio.to_thread(counted) > count
