"""Shards that catch up read stored fragments without the broker, and each message once."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from broadsheet.broker.config import BrokerConfig
from broadsheet.consumer.client import ShardClient
from broadsheet.consumer.member.service import Service
from broadsheet.embedded.broker import EmbeddedBroker
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.journals.client import JournalClient
from broadsheet.journals.content.json import NDJSON
from broadsheet.journals.direct_fragments import DirectFragments
from broadsheet.wire.journal_pb2 import ApplyRequest, CompressionCodec
from broadsheet.wire.labels import CONTENT_TYPE, label_set
from tests.support.broker import journal_spec
from tests.support.eventually import eventually
from tests.support.members import (
    Cluster,
    Producer,
    committed,
    create_journals,
    shard,
    upserts,
    wait_for_primaries,
)

pytestmark = pytest.mark.etcd

SOURCE, OUTPUT = "test/source", "test/output"
SHARD = "shard-1"
KEYS = ["a", "b", "c"] * 7


def _received(service: Service, path: str) -> float:
    name = "broadsheet_journal_read_bytes_total"
    return service.registry.get_sample_value(name, {"path": path}) or 0.0


async def _fill(journals: JournalClient, producer: Producer, appends: int) -> tuple[int, int]:
    """Publish; return the end of what is stored then, and the write head, bytes."""
    end = 0
    for _ in range(appends):
        end = await producer.publish(SOURCE, KEYS)

    async def stored() -> int:
        sealed = [each.spec for each in await journals.list_fragments(SOURCE)][:-1]
        return sealed[-1].end if all(each.backing_store for each in sealed) else 0

    return await eventually(stored), end


@pytest.mark.parametrize("codec", [CompressionCodec.NONE, CompressionCodec.ZSTANDARD])
async def test_shards_catch_up_from_a_store_and_count_each_message_once(
    codec: CompressionCodec.ValueType,
    etcd_server: EmbeddedEtcdProcess,
    etcd_root: str,
    tmp_path: Path,
) -> None:
    """Plan: a shard with a backlog in a store; when it has caught up, its member ends, the backlog grows, and another
    member continues from the checkpoint.

    Why: offsets and sequencing must be those of the journal, whoever delivers its bytes.
    """
    root = tmp_path / "fragments"
    root.mkdir()
    config = BrokerConfig(data_dir=tmp_path / "broker", file_root=root)
    async with (
        EmbeddedBroker(tmp_path, config=config) as broker,
        JournalClient(broker.address) as journals,
    ):
        spec = journal_spec(SOURCE, length=1024, labels=label_set((CONTENT_TYPE, NDJSON)))
        spec.fragment.compression_codec = codec
        spec.fragment.stores.append("file:///store/")
        await journals.apply([ApplyRequest.Change(upsert=spec)])
        await create_journals(journals, OUTPUT)
        cluster = Cluster(
            etcd_endpoint=etcd_server.endpoint,
            broker_address=broker.address,
            root=etcd_root,
            directory=tmp_path,
            output=OUTPUT,
            settings={"fragments": DirectFragments(roots=(root,))},
        )
        producer = Producer(journals)
        first_stored, first_end = await _fill(journals, producer, 5)

        async with cluster.member("a") as member, ShardClient(member.address) as client:
            await client.apply(upserts(shard(SHARD, SOURCE)))
            await wait_for_primaries(client, SHARD)
            await client.stat(SHARD, read_through={SOURCE: first_end})
            assert _received(member, "direct") == first_stored
            assert _received(member, "broker") >= first_end - first_stored

        second_stored, second_end = await _fill(journals, producer, 5)
        async with cluster.member("b") as member, ShardClient(member.address) as client:
            await wait_for_primaries(client, SHARD)
            await client.stat(SHARD, read_through={SOURCE: second_end})
            assert _received(member, "direct") == second_stored - first_end
            assert _received(member, "broker") >= second_end - second_stored

        counts = cluster.counts(SHARD)
        echoes = [message["n"] for message in await committed(journals, OUTPUT)]

    assert counts == {key: 10 * KEYS.count(key) for key in "abc"}
    assert Counter(echoes) == Counter(range(1, 10 * len(KEYS) + 1))
