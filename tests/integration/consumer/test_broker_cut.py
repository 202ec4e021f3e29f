"""Primaries that are cut off from their broker, though etcd and everybody else reach them: who serves, what is said."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from broadsheet.consumer.client import ShardClient
from broadsheet.consumer.member.service import Service
from broadsheet.consumer.shard.environment import ShardConfig
from broadsheet.journals.client import JournalClient
from tests.support.eventually import eventually
from tests.support.members import (
    Cluster,
    Producer,
    client_of,
    committed,
    shard,
    statuses,
    upserts,
    wait_for_primaries,
)
from tests.support.shardctl_runs import shardctl
from tests.support.tcp_proxy import TcpProxy

pytestmark = pytest.mark.etcd

SOURCE, OUTPUT, SHARD = "test/source", "test/output", "counts"
CONFIG = ShardConfig(unavailable_seconds=0.6, restart_delay_seconds=0.05)
PATIENCE_SECONDS = 30.0


def _behind(cluster: Cluster, proxy: TcpProxy) -> Cluster:
    """The same cluster, its broker seen through the proxy."""
    return replace(cluster, broker_address=f"http://{proxy.endpoint}")


async def _unavailable(client: ShardClient) -> str:
    """Return why the shard's primary is unavailable; empty if it is not."""
    (listed,) = (await client.list()).shards
    return "".join(status.unavailable for status in listed.status)


async def _one_primary(service: Service) -> str:
    async with client_of(service) as client:
        found = await wait_for_primaries(client, SHARD, timeout_seconds=PATIENCE_SECONDS)
        return found[SHARD]


async def _echoes(journals: JournalClient, wanted: int) -> None:
    async def all_there() -> bool:
        return len(await committed(journals, OUTPUT)) == wanted

    await eventually(all_there, timeout_seconds=PATIENCE_SECONDS)


@pytest.mark.parametrize("silently", [True, False], ids=["dropped", "refused"])
async def test_standby_that_reaches_the_broker_takes_the_shard(
    cluster: Cluster, journals: JournalClient, silently: bool
) -> None:
    """The primary's way to its broker is cut, without a word or by resets; its lease is fine, so nobody else would
    notice. Its standby takes the shard over, and each message counts once; healed, the old primary stands by.
    """
    async with (
        TcpProxy(cluster.broker_address.removeprefix("http://")) as proxy,
        _behind(cluster, proxy).member("cut", shards=CONFIG) as first,
        client_of(first) as client,
    ):
        await client.apply(upserts(shard(SHARD, SOURCE, hot_standbys=1)))
        assert await _one_primary(first) == "member-cut"
        async with cluster.member("well", shards=CONFIG) as second:
            await eventually(
                lambda: _are(client, ("member-cut", "PRIMARY"), ("member-well", "STANDBY")),
                timeout_seconds=PATIENCE_SECONDS,
            )
            producer = Producer(journals)
            await producer.publish(SOURCE, ["a", "b"])
            await _echoes(journals, 2)
            if silently:
                proxy.freeze()
            else:
                await proxy.cut()
            await producer.publish(SOURCE, ["a", "c"])

            await _echoes(journals, 4)

            assert await _one_primary(second) == "member-well"
            if silently:
                proxy.thaw()
            else:
                await proxy.heal()
            await eventually(
                lambda: _are(client, ("member-well", "PRIMARY"), ("member-cut", "STANDBY")),
                timeout_seconds=PATIENCE_SECONDS,
            )
            assert cluster.counts(SHARD) == {"a": 2, "b": 1, "c": 1}


async def _are(client: ShardClient, *wanted: tuple[str, str]) -> bool:
    return (await statuses(client))[SHARD] == list(wanted)


async def test_broker_that_answers_nobody_moves_nothing_and_is_told(
    cluster: Cluster, journals: JournalClient
) -> None:
    """The broker is dead for all: the primary says so, with the cause, and keeps its shard, for no standby would do
    better. Once the broker is back it says PRIMARY alone, and goes on.
    """
    async with TcpProxy(cluster.broker_address.removeprefix("http://")) as proxy:
        behind = _behind(cluster, proxy)
        async with (
            behind.member("a", shards=CONFIG) as first,
            behind.member("b", shards=CONFIG) as second,
            client_of(first) as client,
        ):
            await client.apply(upserts(shard(SHARD, SOURCE, hot_standbys=1)))
            primary = await _one_primary(first)
            producer = Producer(journals)
            await producer.publish(SOURCE, ["a"])
            await _echoes(journals, 1)
            await proxy.cut()

            cause = await eventually(lambda: _unavailable(client), timeout_seconds=PATIENCE_SECONDS)

            assert cause is not None
            assert proxy.endpoint in cause
            assert "connection refused" in cause
            listed = await asyncio.to_thread(
                shardctl, f"shardctl shards list --replicas --address {first.address}"
            )
            assert f"{primary}:UNAVAILABLE" in listed.stdout
            assert cause in listed.stdout + listed.stderr
            await _refused_to(second if primary == "member-a" else first)
            await producer.publish(SOURCE, ["b"])
            await proxy.heal()
            await _echoes(journals, 2)
            await eventually(lambda: _is_available(client), timeout_seconds=PATIENCE_SECONDS)
            assert await _one_primary(first) == primary
            assert _taken_over(first) == _taken_over(second) == 0


async def _refused_to(standby: Service) -> None:
    """Wait until the standby has asked the broker itself, and heard nothing."""
    gauge = "broadsheet_member_broker_unavailable"
    await eventually(
        lambda: standby.registry.get_sample_value(gauge) == 1, timeout_seconds=PATIENCE_SECONDS
    )


async def _is_available(client: ShardClient) -> bool:
    return not await _unavailable(client)


def _taken_over(service: Service) -> float | None:
    return service.registry.get_sample_value("broadsheet_member_shards_taken_over_total")
