"""Journals and shards against real Gazette brokers, some of which crash. Too slow for CI: `make nightly-gazette`."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.duration_pb2 import Duration
from structlog.testing import capture_logs

from broadsheet.consumer.client import ShardClient
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.journals import read_committed
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.errors import AppendOutcomeUnknownError, JournalUnavailableError
from broadsheet.runtime.errors import EndpointError
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.journal_pb2 import AppendResponse, ApplyRequest, CompressionCodec
from broadsheet.wire.labels import CONTENT_TYPE, CONTENT_TYPE_RECOVERY_LOG, label_set
from broadsheet.wire.shard_pb2 import ReplicaStatus
from tests.gazette.brokers import (
    BUILD_TIMEOUT_SECONDS,
    LEASE_SECONDS,
    GazetteBroker,
    running_brokers,
)
from tests.support.broker import journal_spec
from tests.support.eventually import eventually
from tests.support.members import (
    Cluster,
    Producer,
    client_of,
    shard,
    statuses,
    upserts,
    wait_for_primaries,
)
from tests.support.recorded_tally import LOGS, TALLIES, counts_of, recorded

pytestmark = pytest.mark.timeout(BUILD_TIMEOUT_SECONDS)

SOURCE, OUTPUT, SHARD = "test/source", "test/output", "shard-a"
BROKERS, REPLICATION = 4, 3
FIRST_APPENDS = 60
RECOVERY_SECONDS = 6.0 * LEASE_SECONDS
"""For brokers that were started again: their journals get replicas, and clients that waited try again."""


@dataclass(slots=True)
class _Fleet:
    etcd: EmbeddedEtcdProcess
    brokers: list[GazetteBroker]

    @property
    def door(self) -> GazetteBroker:
        """The broker that clients are told of; it stays."""
        return self.brokers[0]


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[_Fleet]:
    """Four brokers on an etcd of their own."""
    directory = tmp_path / "gazette"
    directory.mkdir()
    with (
        EmbeddedEtcdProcess(data_dir=tmp_path / "etcd", listen="tcp") as etcd,
        running_brokers(BROKERS, etcd_endpoint=etcd.endpoint, directory=directory) as brokers,
    ):
        yield _Fleet(etcd, brokers)


@pytest.fixture
async def gazette_journals(fleet: _Fleet) -> AsyncIterator[JournalClient]:
    """A client whose journals exist, and have their replicas."""
    async with JournalClient(fleet.door.address) as journals:
        await _create(journals, SOURCE, CONTENT_TYPE, NDJSON)
        await _create(journals, OUTPUT, CONTENT_TYPE, NDJSON)
        await _create(journals, f"{LOGS}/{SHARD}", CONTENT_TYPE, CONTENT_TYPE_RECOVERY_LOG)

        for name in (SOURCE, OUTPUT, f"{LOGS}/{SHARD}"):
            await journals.append(name, b"")
        yield journals


async def _create(journals: JournalClient, name: str, label: str, value: str) -> None:
    spec = journal_spec(name, labels=label_set((label, value)))
    spec.replication = REPLICATION
    spec.fragment.compression_codec = CompressionCodec.SNAPPY
    spec.fragment.stores.append("file:///")
    spec.fragment.flush_interval.CopyFrom(Duration(seconds=60))
    await journals.apply([ApplyRequest.Change(upsert=spec, expect_mod_revision=0)])


def _members(fleet: _Fleet, root: str, directory: Path) -> Cluster:
    return Cluster(
        etcd_endpoint=fleet.etcd.endpoint,
        broker_address=fleet.door.address,
        root=root,
        directory=directory,
        output=OUTPUT,
    )


async def test_first_appends_at_gazette_brokers_have_known_outcomes(
    fleet: _Fleet, gazette_journals: JournalClient
) -> None:
    """They refuse the stream of appends while its first message is written; that must not read as "perhaps done"."""

    async def first_append(number: int) -> None:
        async with JournalClient(fleet.brokers[number % BROKERS].address) as client:
            await client.append(SOURCE, f'{{"n": {number}}}\n'.encode())

    await asyncio.gather(*(first_append(number) for number in range(FIRST_APPENDS)))
    head = (await gazette_journals.append(SOURCE, b"")).commit.end
    content = bytearray()
    async for span in gazette_journals.reader(SOURCE, block=False):
        content += span.content
    lines = bytes(content).splitlines()
    assert len(content) == head
    assert len(set(lines)) == len(lines) == FIRST_APPENDS
    fragments = await gazette_journals.list_fragments(SOURCE)
    assert max(each.spec.end for each in fragments) == head


async def test_crash_of_two_of_four_brokers_loses_no_shard_and_counts_once(
    fleet: _Fleet,
    gazette_journals: JournalClient,
    etcd_root: str,
    tmp_path: Path,
) -> None:
    """A standby must not call its log lost because a replica newly assigned shows an old head, and the primary goes on
    once the journals have replicas; a fail-over behind all that finds each message counted and published once.
    """
    cluster = _members(fleet, etcd_root, tmp_path)
    tally = TALLIES["sqlite"][0]
    producer = Producer(_Repeating(gazette_journals))
    async with (
        cluster.member(
            "one", application=tally(tmp_path, output=OUTPUT), state_dir=str(tmp_path / "one")
        ) as one,
        cluster.member(
            "two", application=tally(tmp_path, output=OUTPUT), state_dir=str(tmp_path / "two")
        ) as two,
        client_of(one) as client,
    ):
        spec = recorded(shard(SHARD, SOURCE, hot_standbys=1), cluster.root)
        await client.apply(upserts(spec))
        await _wait_for_standby(client)
        sent = [f"k{number % 5}" for number in range(50)]
        end = await producer.publish(SOURCE, sent)
        with capture_logs() as events:
            for broker in fleet.brokers[1:3]:
                broker.kill()
            crashed = time.monotonic()
            more = [f"k{number % 5}" for number in range(30)]
            async with TaskGroup() as group:
                publishing = group.start_soon(producer.publish(SOURCE, more), name="publishing")
                # Two brokers are too few for the journals, and those of their replicas that are new lag.
                failures = await _failures_until(client, crashed + 2 * LEASE_SECONDS)
                for broker in fleet.brokers[1:3]:
                    broker.start()
                end = await asyncio.wait_for(publishing, RECOVERY_SECONDS)
            await _wait_for_standby(client)
        assert not failures
        assert not [each for each in events if "quarantine" in each["event"]], events
        sent += more
        await client.unassign([SHARD])
        await wait_for_primaries(client, SHARD, timeout_seconds=RECOVERY_SECONDS)
        replicas = (await statuses(client))[SHARD]
        holder = one if replicas[0][0].endswith("one") else two
        counts = await counts_of(holder.resolver, SHARD, "sqlite", read_through={SOURCE: end})
        assert counts == Counter(sent)
    published: Counter[int] = Counter()
    async for batch in read_committed(gazette_journals, OUTPUT, JsonType(), block=False):
        published.update(
            message["n"]
            for flags, message in zip(batch.flags, batch.messages(), strict=True)
            if flags != 2  # An acknowledgement.
        )
    assert published == Counter(range(1, len(sent) + 1))


class _Repeating(JournalClient):
    """Appends again what may not have been appended: messages have ids, so a copy counts once."""

    def __init__(self, journals: JournalClient) -> None:
        self._client = journals

    async def append(self, *arguments: Any, **options: Any) -> AppendResponse:
        """Append as the client does, however often that takes."""
        while True:
            with suppress(AppendOutcomeUnknownError, EndpointError, JournalUnavailableError):
                return await self._client.append(*arguments, **options)


async def _wait_for_standby(client: ShardClient) -> None:
    async def both_serve() -> bool:
        found = [status for _, status in (await statuses(client)).get(SHARD, [])]
        assert found == ["PRIMARY", "STANDBY"], found
        return True

    await eventually(both_serve, timeout_seconds=RECOVERY_SECONDS)


async def _failures_until(client: ShardClient, deadline: float) -> list[str]:
    """Return the errors of replicas that were FAILED at some time before the deadline."""
    failures: list[str] = []

    async def over() -> bool:
        for listed in (await client.list()).shards:
            for status in listed.status:
                if status.code == ReplicaStatus.FAILED:
                    failures.extend(status.errors)
        return time.monotonic() >= deadline

    await eventually(over, timeout_seconds=RECOVERY_SECONDS)
    return failures
