"""Recovery logs that are created with the shards that name them."""

from __future__ import annotations

import asyncio

import pytest
from google.protobuf.duration_pb2 import Duration

from broadsheet.consumer.client import ShardClient, SyncShardClient
from broadsheet.consumer.client.log_journals import (
    create_log_journals,
    log_spec,
    missing_log_journals,
)
from broadsheet.embedded.broker import EmbeddedBroker
from broadsheet.journals.client import JournalClient
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.journal_pb2 import ApplyRequest as JournalApply, CompressionCodec
from broadsheet.wire.labels import (
    CONTENT_TYPE,
    CONTENT_TYPE_RECOVERY_LOG,
    label_set,
    value_of,
)
from broadsheet.wire.shard_pb2 import ShardSpec
from tests.support.broker import journal_spec
from tests.support.members import create_journals, shard, upserts

SOURCE = "test/source"


def _logged(shard_id: str, *sources: str) -> ShardSpec:
    spec = shard(shard_id, *sources)
    spec.recovery_log_prefix = "test/logs"
    spec.hint_prefix = "/test/hints"
    return spec


def test_log_keeps_what_protects_its_source_and_no_retention() -> None:
    """A log in one copy beside sources in three would lose the state; one with a retention loses it with time."""
    source = journal_spec(SOURCE)
    source.replication = 3
    source.fragment.stores.append("s3://bucket/")
    source.fragment.retention.CopyFrom(Duration(seconds=60))
    source.fragment.compression_codec = CompressionCodec.ZSTANDARD

    spec = log_spec("test/logs/a", None, source)
    alone = log_spec("test/logs/a", None, None)

    assert (spec.replication, list(spec.fragment.stores)) == (3, ["s3://bucket/"])
    assert not spec.fragment.HasField("retention")
    assert value_of(spec.labels, CONTENT_TYPE) == CONTENT_TYPE_RECOVERY_LOG
    assert alone.replication == 1


async def test_missing_logs_are_created_like_their_siblings(journals: JournalClient) -> None:
    """The operator declared the first log with care: the others must not differ from it."""
    await create_journals(journals, SOURCE)
    labels = label_set({CONTENT_TYPE: CONTENT_TYPE_RECOVERY_LOG, "team": "flights"})
    first = journal_spec("test/logs/a", labels=labels, length=1 << 20)
    await journals.apply([JournalApply.Change(upsert=first)])
    changes = upserts(_logged("a", SOURCE), _logged("b", SOURCE), shard("plain", SOURCE))

    missing = await missing_log_journals(changes, journals)
    await create_log_journals(missing, journals)
    # Somebody else was faster: theirs stays.
    await create_log_journals(missing, journals)

    assert [spec.name for spec in missing] == ["test/logs/b"]
    created = (await journals.get("test/logs/b")).spec
    assert created.labels == first.labels
    assert created.fragment.length == 1 << 20
    assert await missing_log_journals(changes, journals) == ()


async def test_clients_create_logs_from_a_loop_and_without_one(
    journals: JournalClient, broker: EmbeddedBroker
) -> None:
    """A driver and a program do as `shardctl shards apply --yes` does, and learn the names."""
    await create_journals(journals, SOURCE)
    # No member is asked: the logs are the broker's.
    address = "http://127.0.0.1:1"
    async with ShardClient(address) as client:
        named = await client.create_log_journals(upserts(_logged("a", SOURCE)), journals)

    def work() -> tuple[str, ...]:
        with SyncShardClient(address) as client:
            return client.create_log_journals(
                upserts(_logged("a"), _logged("b")), broker_address=broker.address
            )

    assert named == ("test/logs/a",)
    assert await asyncio.to_thread(work) == ("test/logs/b",)


async def test_planned_logs_count_when_specs_are_verified(journals: JournalClient) -> None:
    """A dry run judges the rest of the spec, too, although nothing is created."""
    await create_journals(journals, SOURCE)
    changes = upserts(_logged("a", SOURCE))
    async with ShardClient("http://127.0.0.1:1") as client:
        with pytest.raises(ValidationError, match="test/logs/a does not exist"):
            await client.verify_referenced_journals(changes, journals)
        planned = await missing_log_journals(changes, journals)
        await client.verify_referenced_journals(changes, journals, planned=planned)
        wrong = upserts(_logged("a", "test/none"))
        with pytest.raises(ValidationError, match="test/none does not exist"):
            await client.verify_referenced_journals(wrong, journals, planned=planned)
