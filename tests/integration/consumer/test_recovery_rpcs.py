"""Prune, rewind and recover, as `shardctl` does them, on shards that members record: what is done, and refused."""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.allocator.keys import Keys
from broadsheet.allocator.model import ItemId
from broadsheet.allocator.ops import prefix_range_end
from broadsheet.cli.main import main
from broadsheet.consumer.client import RecoveryClient, ShardClient
from broadsheet.consumer.errors import RewindRefusedError, ShardNotFoundError
from broadsheet.consumer.member.service import Service
from broadsheet.consumer.recoverylog.hints import backup_hints_keys, primary_hints_key
from broadsheet.journals.client import JournalClient
from broadsheet.security.auth import BearerAuth, Capability, Claims, KeyedAuth
from broadsheet.security.errors import NotAuthorizedError, UnauthenticatedError
from broadsheet.wire.journal_pb2 import ApplyRequest as JournalApply
from broadsheet.wire.labels import ID, label_set, selector
from broadsheet.wire.shard_pb2 import ShardSpec
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
from tests.support.pruned_logs import create_small_log, fragments_of, span_bytes
from tests.support.recorded_tally import LOGS, TALLIES, counts_of, recorded

pytestmark = pytest.mark.etcd

SOURCE = "test/source"
SHARD = "shard-a"
LOG = f"{LOGS}/{SHARD}"
KEYS = [f"key-{number % 7}" for number in range(40)]
AUTH_KEYS = "c2VjcmV0LWtleS1vZi1zaXh0ZWVuLWJ5dGVzLCAzMiBieXRlcyBvciBtb3Jl"


class Lives:
    """One shard, recorded by one member after the other."""

    def __init__(self, cluster: Cluster, journals: JournalClient, directory: Path) -> None:
        self.cluster = cluster
        self.journals = journals
        self.directory = directory
        self.spec: ShardSpec = recorded(shard(SHARD, SOURCE), cluster.root)
        self.counts: Counter[str] = Counter()
        self._producer = Producer(journals)
        self._hints = b""
        """As the last primary wrote them."""

    def member(self, name: str, **overrides: Any) -> Any:
        """Return a member, to be entered, with files of its own."""
        application = TALLIES["sqlite"][0](self.cluster.directory, output="")
        state = str(self.directory / f"state-{name}")
        return self.cluster.member(name, application=application, state_dir=state, **overrides)

    async def work(self, member: Service, *, rounds: int = 4) -> None:
        """Publish messages, a transaction or so each round, and find all counts right."""
        for _ in range(rounds):
            end = await self._producer.publish(SOURCE, KEYS)
            self.counts.update(KEYS)
            counts = await counts_of(member.resolver, SHARD, "sqlite", read_through={SOURCE: end})
            assert counts == dict(self.counts)

    async def publish(self) -> None:
        """Publish messages, and wait for nothing."""
        await self._producer.publish(SOURCE, KEYS)

    async def live(self, *names: str) -> None:
        """Have members of these names come and go; the first one ever applies the shard."""
        for name in names:
            async with self.member(name) as member, client_of(member) as client:
                if not self.counts:
                    await create_small_log(self.journals, LOG)
                    await client.apply(upserts(self.spec))
                await self.serve(client)
                await self.work(member)

    async def serve(self, client: ShardClient) -> None:
        """Wait until another primary serves, and has written hints of its own."""
        await wait_for_primaries(client, SHARD)

        async def hinted() -> bool:
            found = await client.get_hints(SHARD)
            before, self._hints = self._hints, found.primary_hints.SerializeToString()
            return self._hints != before

        await eventually(hinted)


@pytest.fixture
def lives(cluster: Cluster, journals: JournalClient, tmp_path: Path) -> Lives:
    """A shard that is not applied yet."""
    return Lives(cluster, journals, tmp_path)


async def shardctl(member: Service, broker: str, *arguments: str) -> Result:
    """Run a command against a member."""
    where = ["--address", member.address, "--broker", broker]
    return await asyncio.to_thread(lambda: CliRunner().invoke(main, ["shards", *arguments, *where]))


async def test_prune_leaves_what_the_next_member_needs(
    lives: Lives, journals: JournalClient
) -> None:
    """Three members record; the fourth's terminal prunes: a dry run says what goes, waiting is the default, and without
    a delay it goes. A fifth member, with an empty disk, has every count.
    """
    await lives.live("a", "b", "c")
    broker = lives.cluster.broker_address
    async with lives.member("d") as member, client_of(member) as client:
        await lives.serve(client)
        before = await fragments_of(journals, LOG)

        waiting = await shardctl(member, broker, "prune")
        assert waiting.exit_code == 0, waiting.output
        assert "the first quarantined may go" in waiting.output
        assert "removed 0 fragments, 0 bytes, of 1 log" in waiting.output
        planned = await shardctl(
            member, broker, "prune", "--dry-run", "--delay", "0s", "-o", "json"
        )
        (plan,) = json.loads(planned.stdout)["logs"]
        assert plan["shards"] == [SHARD]
        assert [each.begin for each in await fragments_of(journals, LOG)][: len(before) - 1] == [
            each.begin for each in before
        ][: len(before) - 1]

        done = await shardctl(member, broker, "prune", "--delay", "0s")
        assert done.exit_code == 0, done.output
        after = await fragments_of(journals, LOG)
        gone = [each for each in before if each.begin not in {left.begin for left in after}]
        assert len(gone) == int(plan["removed"]["fragments"]) > 0
        assert span_bytes(gone) == int(plan["removed"]["bytes"])
        assert f"removed {len(gone)} fragment" in done.output
        assert LOG in done.output
        await lives.work(member)
    await lives.live("e")


async def test_rewind_by_force_takes_the_primary_away_with_its_hints(
    lives: Lives, etcd: EtcdClient
) -> None:
    """Refused without --force, for the primary would overwrite the hints; a dry run changes nothing. By force the shard
    is assigned again, recovers from the backup, and has every count.
    """
    await lives.live("a", "b")
    broker = lives.cluster.broker_address
    async with lives.member("c") as member, client_of(member) as client:
        await lives.serve(client)
        await lives.work(member)
        refused = await shardctl(member, broker, "rewind", SHARD, "--backup", "0")
        assert refused.exit_code == 1
        assert "it has a primary" in refused.output
        assert "--force" in refused.output
        prefix = Keys(lives.cluster.root).assignments_of(ItemId(SHARD))

        async def created() -> list[int]:
            found = await etcd.get_range(prefix, prefix_range_end(prefix))
            return [kv.create_revision for kv in found.kvs]

        before = await created()
        dry = await shardctl(
            member, broker, "rewind", SHARD, "--backup", "1", "--force", "--dry-run"
        )
        assert dry.exit_code == 0, dry.output
        assert "zone-a#member-c would be unassigned" in dry.output
        assert "nothing was changed" in dry.output
        assert await created() == before

        done = await shardctl(member, broker, "rewind", SHARD, "--backup", "1", "--force")
        assert done.exit_code == 0, done.output
        assert "zone-a#member-c were unassigned" in done.output

        async def assigned_anew() -> bool:
            return min(await created(), default=0) > max(before)

        await eventually(assigned_anew)
        await wait_for_primaries(client, SHARD)
        await lives.work(member)

        missing = await shardctl(member, broker, "rewind", SHARD, "--backup", "7")
        assert "it has no backup 7" in missing.output
        unknown = await shardctl(member, broker, "rewind", "no-such-shard", "--backup", "0")
        assert "shard no-such-shard does not exist" in unknown.output


async def test_rewind_heals_a_shard_whose_hints_are_garbage(lives: Lives, etcd: EtcdClient) -> None:
    """No recovery begins, and prunes leave everything alone, until the garbage is set aside. Then, unassigned as it was
    told to be, the shard recovers from the backup.
    """
    await lives.live("a", "b")
    key = primary_hints_key(lives.spec)
    await etcd.put(key, b"{garbage")
    broker = lives.cluster.broker_address
    async with lives.member("c") as member, client_of(member) as client:

        async def failed() -> bool:
            return (await statuses(client))[SHARD] == [("member-c", "FAILED")]

        await eventually(failed)
        pruned = await shardctl(member, broker, "prune", "--delay", "0s")
        assert "cannot be read, and may need any log" in pruned.output
        assert f"rewind {SHARD} sets them aside" in pruned.output

        async def rewound() -> Result | None:
            # The shard goes on trying: a rewind that meets an attempt asks to be tried again.
            done = await shardctl(member, broker, "rewind", SHARD, "--backup", "0")
            assert done.exit_code == 0 or "try again" in done.output, done.output
            return done if done.exit_code == 0 else None

        done = await eventually(rewound)

        assert done is not None
        assert f"kept at {key.decode()}.unreadable" in done.output
        assert f"next: shardctl shards unassign -l id={SHARD} --failed" in done.output
        assert (await etcd.get_range(key + b".unreadable")).kvs[0].value == b"{garbage"
        await client.unassign([SHARD], only_failed=True)
        await wait_for_primaries(client, SHARD)
        await lives.work(member)


async def test_whole_log_is_recovered_where_no_hints_can_be_read(
    lives: Lives, journals: JournalClient, etcd: EtcdClient
) -> None:
    """Primary hints and backups are garbage, and the log is whole: all hints are set aside, and the shard has every
    count. Once the log's beginning is pruned, that would be a loss, and is refused.
    """
    await lives.live("a", "b")
    keys = [primary_hints_key(lives.spec), *backup_hints_keys(lives.spec)]
    for key in keys:
        await etcd.put(key, b"{garbage")
    broker = lives.cluster.broker_address
    async with lives.member("idle", shard_limit=0) as member:
        both = ["rewind", SHARD, "--whole-log", "--backup", "0"]
        assert "either --backup or --whole-log" in (await shardctl(member, broker, *both)).output
        planned = await shardctl(member, broker, "rewind", SHARD, "--whole-log", "--dry-run")
        assert planned.exit_code == 0, planned.output
        assert (await etcd.get_range(keys[0])).kvs
        done = await shardctl(member, broker, "rewind", SHARD, "--whole-log")
        assert done.exit_code == 0, done.output
        for key in keys:
            assert not (await etcd.get_range(key)).kvs
            assert (await etcd.get_range(key + b".unreadable")).kvs[0].value == b"{garbage"
    async with lives.member("c") as member, client_of(member) as client:
        await wait_for_primaries(client, SHARD)
        await lives.work(member)
    listed = await fragments_of(journals, LOG)
    await journals.delete_fragments(LOG, listed[:1])
    async with lives.member("idle", shard_limit=0) as member:
        refused = await shardctl(member, broker, "rewind", SHARD, "--whole-log")
        assert "the beginning of its log was pruned" in refused.output


async def test_first_life_of_a_shard_has_a_backup_of_its_hints(lives: Lives) -> None:
    """A log that is damaged in a shard's first life, which may be long, leaves something to rewind to."""
    async with lives.member("a") as member, client_of(member) as client:
        await create_small_log(lives.journals, LOG)
        await client.apply(upserts(lives.spec))
        await lives.serve(client)
        await lives.work(member)

        async def backed_up() -> bool:
            found = await client.get_hints(SHARD)
            return bool(found.backup_hints[0].hints.live_nodes)

        await eventually(backed_up)


async def test_rewind_without_members_changes_places(
    lives: Lives, cluster: Cluster, etcd: EtcdClient
) -> None:
    """A member of another application's shards answers as well; two rewinds make none."""
    await lives.live("a", "b")
    keys = [primary_hints_key(lives.spec), backup_hints_keys(lives.spec)[0]]

    async def held() -> list[bytes]:
        return [(await etcd.get_range(key)).kvs[0].value for key in keys]

    primary, backup = await held()
    async with (
        lives.member("idle", shard_limit=0) as member,
        RecoveryClient(member.address) as client,
    ):
        planned = await client.plan_rewind(SHARD, backup=0)
        assert await held() == [primary, backup]
        done = await client.rewind(SHARD, backup=0)
        assert await held() == [backup, primary]
        assert done.restored == planned.restored
        assert done.kept_at == keys[1].decode()
        await client.rewind(SHARD, backup=0)
        assert await held() == [primary, backup]


async def test_recover_writes_the_files_and_leaves_the_log_alone(
    lives: Lives, journals: JournalClient, tmp_path: Path
) -> None:
    """Beside a primary at work: its database is there with all counts, the log has the bytes and registers it had, and
    the primary goes on. A directory with something in it is refused, and left as it is.
    """
    await lives.live("a")
    broker = lives.cluster.broker_address
    target = tmp_path / "out" / "recovered"
    async with lives.member("b") as member, client_of(member) as client:
        await lives.serve(client)
        await lives.work(member)
        before = await journals.append(LOG, b"")

        done = await shardctl(member, broker, "recover", SHARD, "--dir", str(target))

        assert done.exit_code == 0, done.output
        assert "SQLite database" in done.output
        assert f"{LOG} up to byte {before.commit.end}" in done.output
        after = await journals.append(LOG, b"")
        assert (after.commit.end, after.registers) == (before.commit.end, before.registers)
        with sqlite3.connect(next(target.rglob("state.db"))) as connection:
            assert dict(connection.execute("SELECT key, count FROM counts")) == dict(lives.counts)
        connection.close()
        await lives.work(member)

        files = {path: path.read_bytes() for path in target.rglob("*") if path.is_file()}
        again = await shardctl(member, broker, "recover", SHARD, "--dir", str(target))
        assert again.exit_code == 2
        assert "expected an empty directory" in again.output
        assert {path: path.read_bytes() for path in target.rglob("*") if path.is_file()} == files
        (tmp_path / "empty").mkdir()
        older = ["recover", SHARD, "--dir", str(tmp_path / "empty"), "--backup", "0"]
        result = await shardctl(member, broker, *older)
        assert result.exit_code == 0, result.output
        assert sorted(path.name for path in target.parent.iterdir()) == ["recovered"]
        missing = ["recover", SHARD, "--dir", str(tmp_path / "none"), "--backup", "2"]
        assert "expected one of 0, 1, got 2" in (await shardctl(member, broker, *missing)).output


async def test_recover_that_fails_leaves_nothing(
    lives: Lives, journals: JournalClient, tmp_path: Path
) -> None:
    """The log's middle is gone: the message says that live bytes are; no directory is there, not even a half of it."""
    await lives.live("a", "b")
    listed = await fragments_of(journals, LOG)
    await journals.delete_fragments(LOG, listed[1:-1])
    target = tmp_path / "out"
    async with lives.member("idle", shard_limit=0) as member:
        broker = lives.cluster.broker_address
        result = await shardctl(member, broker, "recover", SHARD, "--dir", str(target))
    assert result.exit_code == 1
    assert f"recovery log {LOG}" in result.output
    assert not [name for name in os.listdir(tmp_path) if "out" in name]  # noqa: PTH208 - and hidden ones


async def test_what_each_request_needs(lives: Lives) -> None:
    """Plans need READ, changes need APPLY; prunes concern all shards, rewinds those that the token covers."""
    all_may = KeyedAuth(AUTH_KEYS)
    async with lives.member("a", auth_keys=AUTH_KEYS) as member:
        async with ShardClient(member.address, auth=all_may) as shards:
            await shards.apply(upserts(lives.spec))

        def limited(capability: Capability, shard_id: str = "") -> RecoveryClient:
            selected = selector(label_set((ID, shard_id))) if shard_id else None
            claims = (
                Claims(capability=capability)
                if selected is None
                else Claims(capability=capability, selector=selected)
            )
            ((_, token),) = all_may.metadata(claims)
            return RecoveryClient(member.address, auth=BearerAuth(token.removeprefix("Bearer ")))

        async with limited(Capability.READ) as client:
            assert [log.log async for log in client.plan_prune()] == [LOG]
            with pytest.raises(NotAuthorizedError):
                _ = [log async for log in client.prune()]
            with pytest.raises(RewindRefusedError):
                await client.plan_rewind(SHARD, backup=1)
            with pytest.raises(NotAuthorizedError):
                await client.rewind(SHARD, backup=0)
        async with limited(Capability.READ | Capability.APPLY, SHARD) as client:
            with pytest.raises(NotAuthorizedError, match="concerns every shard"):
                _ = [log async for log in client.plan_prune()]
            with pytest.raises(NotAuthorizedError, match="concerns every shard"):
                _ = [log async for log in client.prune()]
            with pytest.raises(RewindRefusedError, match="has no backup 1"):
                await client.rewind(SHARD, backup=1)
        async with limited(Capability.READ | Capability.APPLY, "other") as client:
            with pytest.raises(ShardNotFoundError):
                await client.rewind(SHARD, backup=0)
        async with RecoveryClient(member.address) as client:
            with pytest.raises(UnauthenticatedError):
                _ = [log async for log in client.plan_prune()]


async def test_recovery_log_that_was_deleted_and_applied_again_is_named(
    lives: Lives, journals: JournalClient
) -> None:
    """A shard's state is gone with its log. A primary that runs learns so at its next commit, and the next one when it
    has played what there is: neither begins from nothing, and counts from zero in silence.
    """
    async with lives.member("a") as member, client_of(member) as client:
        await create_small_log(journals, LOG)
        await client.apply(upserts(lives.spec))
        await lives.serve(client)
        await lives.work(member)
        await journals.apply([JournalApply.Change(delete=LOG, expect_mod_revision=-1)])
        await create_small_log(journals, LOG)
        await lives.publish()

        async def named() -> bool:
            (listed,) = (await client.list()).shards
            errors = "\n".join(error for status in listed.status for error in status.errors)
            return (
                LOG in errors and "it was deleted and applied again, or has lost its end" in errors
            )

        await eventually(named)
