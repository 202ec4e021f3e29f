"""Resets of sources: asked for on a terminal, applied once by the next primary, refused where they make no sense."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from broadsheet.allocator.keys import AuxiliaryKeys
from broadsheet.cli.main import main
from broadsheet.consumer.client import RecoveryClient, ShardClient
from broadsheet.consumer.errors import ShardNotFoundError, SourceResetRefusedError
from broadsheet.consumer.member.service import Service
from broadsheet.consumer.shard.environment import ShardConfig
from broadsheet.consumer.shard.source_resets import SourceReset, SourceResets
from broadsheet.consumer.shard.source_resetter import WRITE_HEAD
from broadsheet.journals.client import JournalClient
from broadsheet.security.auth import BearerAuth, Capability, Claims, KeyedAuth
from broadsheet.security.errors import NotAuthorizedError, UnauthenticatedError
from broadsheet.wire.journal_pb2 import ApplyRequest
from broadsheet.wire.labels import ID, label_set, selector
from broadsheet.wire.shard_pb2 import ReplicaStatus
from tests.support import live_shards
from tests.support.eventually import eventually
from tests.support.live_shards import Counting, ShardHost, counts, read_through, spec_of
from tests.support.members import (
    Cluster,
    Producer,
    client_of,
    create_journals,
    shard,
    statuses,
    upserts,
    wait_for_primaries,
)

pytestmark = pytest.mark.etcd

SOURCE = "test/source"
SHARD = "shard-a"
BEFORE, AFTER = 100, 50
AUTH_KEYS = "c2VjcmV0LWtleS1vZi1zaXh0ZWVuLWJ5dGVzLCAzMiBieXRlcyBvciBtb3Jl"


async def replace(journals: JournalClient, journal: str) -> None:
    """Delete a journal and apply it again."""
    await journals.apply([ApplyRequest.Change(delete=journal, expect_mod_revision=-1)])
    await create_journals(journals, journal)


async def shardctl(member: Service, broker: str, *arguments: str) -> Result:
    """Run a command against a member."""
    where = ["--address", member.address, "--broker", broker]
    return await asyncio.to_thread(lambda: CliRunner().invoke(main, ["shards", *arguments, *where]))


async def wait_for_failure(client: ShardClient) -> None:
    """Wait until the shard's primary has failed."""

    async def failed() -> bool:
        return (await statuses(client))[SHARD][0][1] == "FAILED"

    await eventually(failed)


async def test_shard_reads_what_is_there_now_after_a_reset(
    cluster: Cluster, journals: JournalClient
) -> None:
    """The journal is deleted and applied again under a shard. It fails rather than skip; the lag shown is no number. A
    dry run changes nothing; with --yes, all 50 messages of the new journal are counted, and no other is lost.
    """
    cluster.json_store = True
    cluster.settings["shards"] = ShardConfig(head_patience_seconds=0.1)
    async with cluster.member("a") as member, client_of(member) as client:
        await client.apply(upserts(shard(SHARD, SOURCE)))
        await wait_for_primaries(client, SHARD)
        end = await Producer(journals).publish(SOURCE, ["before"] * BEFORE)
        await client.stat(SHARD, read_through={SOURCE: end})
        await replace(journals, SOURCE)
        await Producer(journals).publish(SOURCE, ["after"] * AFTER)
        await wait_for_failure(client)
        broker, where = cluster.broker_address, ("--journal", SOURCE, "--to-offset", "0")

        listed = await shardctl(member, broker, "list", "--lag")
        assert "FAILED" in listed.stdout
        assert ":-" not in listed.stdout
        planned = await shardctl(member, broker, "reset-source", SHARD, *where)
        assert planned.exit_code == 0, planned.output
        assert "dry run: 1 source would be reset" in planned.output
        assert (await statuses(client))[SHARD][0][1] == "FAILED"
        done = await shardctl(
            member, broker, "reset-source", "-l", f"id={SHARD}", "--to-offset", "0", "--yes"
        )
        assert done.exit_code == 0, done.output

        await wait_for_primaries(client, SHARD)
        head = await journals.write_head(SOURCE)
        await client.stat(SHARD, read_through={SOURCE: head})
        assert cluster.counts(SHARD) == {"before": BEFORE, "after": AFTER}


async def test_reset_survives_primaries_that_die_before_they_commit_it(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """A reset stands in memory until the first transaction: a primary that ends before leaves it on file for the next.
    Once committed it is off file, and is not applied again.
    """
    source, shard_id = live_shards.SOURCE, live_shards.SHARD
    records = SourceResets(host.etcd, AuxiliaryKeys(host.key_space.keys.root))
    spec, config = spec_of(shard_id, source), ShardConfig(head_patience_seconds=0.1)
    await host.assign(spec)
    first = host.start(spec, Counting(tmp_path), config=config)
    producer = Producer(journals)
    await read_through(first, source=await producer.publish(source, ["before", "old"]))
    await first.stop()
    await replace(journals, source)
    present = await journals.present(source)
    reset = SourceReset(id=b"one", journal=source, offset=0, epoch=present.epoch)
    await host.etcd.txn((), (records.put(shard_id, reset),))

    second = host.start(spec, Counting(tmp_path), config=config)
    await eventually(lambda: second.is_ready)
    await second.stop()
    assert await records.find(shard_id, source) == reset
    third = host.start(spec, Counting(tmp_path), config=config)
    end = await producer.publish(source, ["after"])
    await read_through(third, source=end)
    assert await counts(third) == {"before": 1, "old": 1, "after": 1}

    async def off_file() -> bool:
        return await records.find(shard_id, source) is None

    await eventually(off_file)
    await third.stop()
    # As if the last primary had died before it could take the reset off file.
    await host.etcd.txn((), (records.put(shard_id, reset),))
    fourth = host.start(spec, Counting(tmp_path), config=config)
    await read_through(fourth, source=await producer.publish(source, ["more"]))
    assert await counts(fourth) == {"before": 1, "old": 1, "after": 1, "more": 1}


async def test_reset_that_was_asked_for_another_incarnation_is_dropped(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """An operator agreed to the loss of one journal; that another one was lost since then is not agreed to."""
    source, shard_id = live_shards.SOURCE, live_shards.SHARD
    records = SourceResets(host.etcd, AuxiliaryKeys(host.key_space.keys.root))
    spec, config = spec_of(shard_id, source), ShardConfig(head_patience_seconds=0.1)
    await host.assign(spec)
    shard = host.start(spec, Counting(tmp_path), config=config)
    await read_through(shard, source=await Producer(journals).publish(source, ["before"]))
    await shard.stop()
    await replace(journals, source)
    present = await journals.present(source)
    reset = SourceReset(id=b"one", journal=source, offset=0, epoch=present.epoch)
    await host.etcd.txn((), (records.put(shard_id, reset),))
    await replace(journals, source)

    host.start(spec, Counting(tmp_path), config=config)

    await eventually(
        lambda: host.says(shard_id, ReplicaStatus.FAILED, "does not hold what was read")
    )
    assert await records.find(shard_id, source) is None


async def test_resets_that_make_no_sense_are_refused(
    cluster: Cluster, journals: JournalClient
) -> None:
    """Each refusal says why, and nothing is put on file."""
    del journals
    async with (
        cluster.member("a") as member,
        client_of(member) as client,
        RecoveryClient(member.address) as recovery,
    ):
        await client.apply(upserts(shard(SHARD, SOURCE)))
        await wait_for_primaries(client, SHARD)

        with pytest.raises(ShardNotFoundError):
            await recovery.reset_source("shard-none", journal=SOURCE, offset=0)
        with pytest.raises(SourceResetRefusedError, match="names no such source"):
            await recovery.reset_source(SHARD, journal="test/other", offset=0)
        with pytest.raises(SourceResetRefusedError, match="the shard serves"):
            await recovery.reset_source(SHARD, journal=SOURCE, offset=0)
        disabled = shard(SHARD, SOURCE)
        disabled.disable = True
        await client.apply(upserts(disabled, expect=-1))

        async def is_disabled() -> bool:
            return not (await statuses(client))[SHARD][0][0]

        await eventually(is_disabled)
        with pytest.raises(SourceResetRefusedError, match="above the journal's write head, 0"):
            await recovery.reset_source(SHARD, journal=SOURCE, offset=5)


async def test_reset_below_the_min_offset_of_the_old_journal_is_refused(
    cluster: Cluster, journals: JournalClient
) -> None:
    """A source's `min_offset` once skipped damage in a journal that was then replaced. Reading would begin there,
    beyond the new journal's end, and skip in silence what is written below: the operator must lower it first.
    """
    async with (
        cluster.member("a") as member,
        client_of(member) as client,
        RecoveryClient(member.address) as recovery,
    ):
        disabled = shard(SHARD, SOURCE)
        disabled.sources[0].min_offset, disabled.disable = 1_000_000, True
        await client.apply(upserts(disabled))
        head = await Producer(journals).publish(SOURCE, ["after"] * AFTER)

        for ask in (recovery.plan_reset_source, recovery.reset_source):
            for offset in (0, head, WRITE_HEAD):
                with pytest.raises(SourceResetRefusedError, match=r"min_offset.* is 1000000"):
                    await ask(SHARD, journal=SOURCE, offset=offset)
        disabled.sources[0].min_offset = 0
        await client.apply(upserts(disabled, expect=-1))

        assert (await recovery.reset_source(SHARD, journal=SOURCE, offset=0)).write_head == head


async def limited(member: Service, claims: Claims) -> None:
    """Ask for a reset with a token of such claims."""
    ((_, token),) = KeyedAuth(AUTH_KEYS).metadata(claims)
    auth = BearerAuth(token.removeprefix("Bearer "))
    async with RecoveryClient(member.address, auth=auth) as client:
        await client.reset_source(SHARD, journal=SOURCE, offset=0)


async def test_reset_needs_apply_on_that_shard(cluster: Cluster, journals: JournalClient) -> None:
    """A reset gives up messages: who may only read, or may touch other shards, must not cause that."""
    del journals
    async with cluster.member("a", auth_keys=AUTH_KEYS) as member:
        async with client_of(member, KeyedAuth(AUTH_KEYS)) as client:
            await client.apply(upserts(shard(SHARD, SOURCE)))
        others = selector(label_set((ID, "other")))
        with pytest.raises(NotAuthorizedError):
            await limited(member, Claims(capability=Capability.READ))
        with pytest.raises(ShardNotFoundError):
            await limited(
                member, Claims(capability=Capability.READ | Capability.APPLY, selector=others)
            )
        async with RecoveryClient(member.address) as stranger:
            with pytest.raises(UnauthenticatedError):
                await stranger.reset_source(SHARD, journal=SOURCE, offset=0)
