"""The five Shard RPCs, over real members, etcd and broker."""

from __future__ import annotations

import pytest

from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.allocator.ops import Put
from broadsheet.consumer.errors import NoShardPrimaryError, ShardNotFoundError
from broadsheet.consumer.recoverylog.hints import encode_hints
from broadsheet.journals.client import JournalClient
from broadsheet.runtime.errors import BoundExceededError, RpcFailedError, ValidationError
from broadsheet.wire.errors import ApplyConflictError
from broadsheet.wire.labels import parse_selector
from broadsheet.wire.recorded_op_pb2 import FSMHints
from broadsheet.wire.shard_pb2 import ApplyRequest, ShardSpec
from tests.support.members import (
    Cluster,
    Producer,
    client_of,
    shard,
    statuses,
    upserts,
    wait_for_primaries,
)

pytestmark = pytest.mark.etcd


SOURCE = "test/source"


async def test_apply_list_update_delete(cluster: Cluster) -> None:
    """A shard's whole declared life: made, seen with its replica, changed, gone."""
    async with cluster.member("a") as service, client_of(service) as client:
        created = await client.apply(upserts(shard("shard-1", SOURCE, env="test")))
        await wait_for_primaries(client, "shard-1")

        (listed,) = (await client.list(parse_selector("env=test"))).shards
        assert listed.mod_revision == listed.create_revision == created.header.etcd.revision
        assert list(listed.route.endpoints) == [service.address]
        assert not (await client.list(parse_selector("env!=test"))).shards

        changed = shard("shard-1", SOURCE, env="other")
        await client.apply(upserts(changed, expect=listed.mod_revision))
        (listed,) = (await client.list(parse_selector("env=other"))).shards
        assert listed.mod_revision > listed.create_revision

        await client.apply([ApplyRequest.Change(delete="shard-1", expect_mod_revision=-1)])
        assert not (await client.list()).shards


async def test_apply_of_nothing_and_delete_of_the_absent_return(cluster: Cluster) -> None:
    """A transaction that writes nothing has no revision to wait for: it must answer all the same."""
    async with cluster.member("a") as service, client_of(service) as client:
        await client.apply([ApplyRequest.Change(delete="no-such-shard", expect_mod_revision=-1)])
        assert not (await client.apply([])).HasField("header")


async def test_apply_conflicts_change_nothing(cluster: Cluster) -> None:
    """One stale revision refuses the whole request, the good change beside it included."""
    async with cluster.member("a") as service, client_of(service) as client:
        await client.apply(upserts(shard("shard-1")))

        with pytest.raises(ApplyConflictError):
            await client.apply(upserts(shard("shard-2"), shard("shard-1")))
        with pytest.raises(ApplyConflictError):
            await client.apply(upserts(shard("shard-1"), expect=1))

        assert list(await statuses(client)) == ["shard-1"]


async def test_apply_beyond_a_transaction_is_batched_or_refused(cluster: Cluster) -> None:
    """The client cuts to what etcd takes; a request that is too large is told how to be smaller."""
    specs = [shard(f"shard-{index:03}") for index in range(130)]
    for spec in specs:
        spec.disable = True
    async with cluster.member("a") as service, client_of(service) as client:
        with pytest.raises(BoundExceededError, match=r"changes: expected at most 128.*got 130"):
            await client.apply(upserts(*specs), batch_size=0)
        assert not await statuses(client)

        await client.apply(upserts(*specs))
        assert len(await statuses(client)) == 130


@pytest.mark.parametrize(
    ("change", "field_path"),
    [
        (ApplyRequest.Change(upsert=ShardSpec(id="x")), "changes[0].upsert.id"),
        (ApplyRequest.Change(upsert=ShardSpec(id="shard-1")), "changes[0].upsert.max_txn_duration"),
        (
            ApplyRequest.Change(upsert=shard("shard-1", "bad journal")),
            "changes[0].upsert.sources[0].journal",
        ),
        (ApplyRequest.Change(delete="shard-1"), "changes[0].expect_mod_revision"),
        (ApplyRequest.Change(), "changes[0]"),
    ],
)
async def test_apply_bad_spec_names_the_field(
    cluster: Cluster, change: ApplyRequest.Change, field_path: str
) -> None:
    """Whoever wrote the spec is told where it is wrong, through gRPC and back."""
    async with cluster.member("a") as service, client_of(service) as client:
        with pytest.raises(ValidationError, match="expected") as raised:
            await client.apply([change])

        assert raised.value.field_path == field_path


async def test_bad_requests_name_the_field(cluster: Cluster) -> None:
    """Every RPC validates, also those whose model does not."""
    async with cluster.member("a") as service, client_of(service) as client:
        with pytest.raises(ValidationError, match="shard: "):
            await client.stat("!")
        with pytest.raises(ValidationError, match=r"read_through"):
            await client.stat("shard-1", read_through={"a/journal": -1})
        with pytest.raises(ValidationError, match="shard: "):
            await client.get_hints("!")
        with pytest.raises(ValidationError, match=r"shards\[0\]"):
            await client.unassign(["!"])


async def test_stat_waits_until_read_through(cluster: Cluster, journals: JournalClient) -> None:
    """Stat with the offset of one's own write answers after it was consumed, and knows its echo's offset."""
    async with cluster.member("a") as service, client_of(service) as client:
        await client.apply(upserts(shard("shard-1", SOURCE)))
        await wait_for_primaries(client, "shard-1")
        producer = Producer(journals)
        for _ in range(5):
            end = await producer.publish(SOURCE, ["k"])

            answer = await client.stat("shard-1", read_through={SOURCE: end, "not/its": 9})

            assert answer.read_through[SOURCE] >= end
        assert cluster.counts("shard-1") == {"k": 5}
        assert answer.header.process_id.suffix == "member-a"


async def test_stat_of_unread_offset_ends_at_the_deadline(cluster: Cluster) -> None:
    """An offset that nobody wrote is waited for as long as the caller wishes, and no longer."""
    async with cluster.member("a") as service, client_of(service) as client:
        await client.apply(upserts(shard("shard-1", SOURCE)))
        await wait_for_primaries(client, "shard-1")

        with pytest.raises(TimeoutError, match=service.address):
            await client.stat("shard-1", read_through={SOURCE: 1 << 40}, timeout_seconds=0.3)


async def test_stat_unknown_and_unassigned_shards(cluster: Cluster) -> None:
    """Unknown is told from not served."""
    disabled = shard("shard-1", SOURCE)
    disabled.disable = True
    async with cluster.member("a") as service, client_of(service) as client:
        await client.apply(upserts(disabled))

        with pytest.raises(ShardNotFoundError, match="shard-2 does not exist"):
            await client.stat("shard-2")
        with pytest.raises(NoShardPrimaryError, match="shard-1 has no primary") as raised:
            await client.stat("shard-1")
        assert raised.value.header is not None
        assert raised.value.header.etcd.revision > 0


async def test_stat_through_any_member_reaches_the_primary(
    cluster: Cluster, journals: JournalClient
) -> None:
    """Two members, one shard: the one that is not the primary forwards, and the answer names the one that is."""
    async with (
        cluster.member("a") as a,
        cluster.member("b") as b,
        client_of(a) as client_a,
        client_of(b) as client_b,
    ):
        await client_a.apply(upserts(shard("shard-1", SOURCE)))
        primary = (await wait_for_primaries(client_a, "shard-1"))["shard-1"]
        end = await Producer(journals).publish(SOURCE, ["k"])

        answers = [
            await client.stat("shard-1", read_through={SOURCE: end})
            for client in (client_a, client_b)
        ]

    assert {answer.header.process_id.suffix for answer in answers} == {primary}
    assert all(answer.read_through[SOURCE] == end for answer in answers)


async def test_get_hints_reads_what_etcd_holds(cluster: Cluster, etcd: EtcdClient) -> None:
    """Primary and backups, JSON or protobuf, empty where never written; damage is told from absence."""
    prefix = f"{cluster.root}-hints"
    spec = shard("shard-1", SOURCE)
    spec.recovery_log_prefix, spec.hint_prefix, spec.hint_backups = "logs", prefix, 2
    spec.disable = True
    hints = FSMHints(log="logs/shard-1")
    async with cluster.member("a") as service, client_of(service) as client:
        await client.apply([ApplyRequest.Change(upsert=spec, primary_hints=hints)])
        backup = f"{prefix}/shard-1.backup.1".encode()
        await etcd.txn((), (Put(backup, hints.SerializeToString()),))

        answer = await client.get_hints("shard-1")
        assert answer.primary_hints.hints == hints
        assert [one.HasField("hints") for one in answer.backup_hints] == [False, True]

        await etcd.txn((), (Put(backup, encode_hints(FSMHints(log="logs/else"))),))
        with pytest.raises(RpcFailedError, match="log: expected 'logs/shard-1'"):
            await client.get_hints("shard-1")


async def test_get_hints_without_recovery_log_has_none(cluster: Cluster) -> None:
    """A shard with a remote store has no hints, which is an answer and no error."""
    async with cluster.member("a") as service, client_of(service) as client:
        await client.apply(upserts(shard("shard-1")))

        answer = await client.get_hints("shard-1")

        assert not answer.primary_hints.HasField("hints")
        assert not answer.backup_hints
        with pytest.raises(ShardNotFoundError):
            await client.get_hints("shard-2")


async def test_unassign_restarts_the_primary(cluster: Cluster, journals: JournalClient) -> None:
    """Unassigned, the shard comes back under a new assignment and goes on from its checkpoint."""
    async with cluster.member("a") as service, client_of(service) as client:
        await client.apply(upserts(shard("shard-1", SOURCE)))
        await wait_for_primaries(client, "shard-1")
        producer = Producer(journals)
        end = await producer.publish(SOURCE, ["k"] * 3)
        await client.stat("shard-1", read_through={SOURCE: end})

        assert await client.unassign(["shard-1"], dry_run=True) == ("shard-1",)
        assert await client.unassign(["shard-1"], only_failed=True) == ()
        assert await client.unassign(["shard-1", "unknown-shard"]) == ("shard-1",)

        end = await producer.publish(SOURCE, ["k"] * 2)
        await wait_for_primaries(client, "shard-1")
        await client.stat("shard-1", read_through={SOURCE: end})
        assert cluster.counts("shard-1") == {"k": 5}
