"""Splits of keyed shards while they serve, over real members, etcd and broker."""

from __future__ import annotations

import asyncio
import json
import os
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from broadsheet.allocator.errors import EtcdUnavailableError
from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.allocator.keys import AuxiliaryKeys
from broadsheet.allocator.model import MemberId
from broadsheet.allocator.ops import prefix_range_end
from broadsheet.consumer.client import ElasticClient, StateClient
from broadsheet.consumer.elastic.fork import (
    ForkHold,
    encode_hold,
    fork_key,
    forks_prefix,
    hold_key,
)
from broadsheet.consumer.errors import StoreError
from broadsheet.consumer.keyed.follower import INDEX_DIRECTORY, KeyedFollower
from broadsheet.consumer.member.service import Service
from broadsheet.consumer.rpc.elastic_api import PeerParentCaller
from broadsheet.consumer.shard.forking import Forking
from broadsheet.journals.client import JournalClient
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.key_range import KeyRange
from broadsheet.wire.load_pb2 import MemberLoad
from broadsheet.wire.progress_pb2 import ProgressKind
from broadsheet.wire.shard_pb2 import ApplyRequest
from tests.support.eventually import eventually
from tests.support.family_rounds import (
    MERGE_STEPS,
    SPLIT_STEPS,
    FamilyRound,
    asked_of,
    standing_still,
)
from tests.support.members import (
    Cluster,
    Producer,
    client_of,
    upserts,
    wait_for_primaries,
)
from tests.support.recorded_tally import create_logs
from tests.support.shardctl_runs import shardctl
from tests.support.splitting import (
    CHILD,
    KEYS,
    PARENT,
    SOURCE,
    StandStill,
    application,
    check_split,
    in_journal,
    ranges,
    spec,
    traffic,
)

pytestmark = pytest.mark.etcd


async def test_shard_is_split_under_traffic_with_each_row_handled_once(
    cluster: Cluster, journals: JournalClient, etcd: EtcdClient, tmp_path: Path
) -> None:
    """The child goes on from the parent's state at one point of the sources: no row is missed, none counts twice, and
    rows of a key keep their order over the change of their shard.
    """
    await create_logs(journals, PARENT)
    producer = Producer(journals)
    async with (
        cluster.member("one", application=application(), state_dir=str(tmp_path / "one")) as one,
        client_of(one) as client,
        ElasticClient(one.address) as elastic,
    ):
        await client.apply(upserts(spec(cluster)))
        await wait_for_primaries(client, PARENT)
        await _command_shows_its_plan(one)
        async with traffic(producer) as sent:
            await eventually(lambda: sent.total() > 400)
            plan = await elastic.split(PARENT, journals, at_group=2048)
            assert (plan.child.id, plan.kept_end, plan.given_begin) == (CHILD, 2048, 2048)
            await wait_for_primaries(client, CHILD)
            at_split = sent.total()
            await eventually(lambda: sent.total() > at_split + 400)
        end = await producer.publish(SOURCE, KEYS)
        sent.update(KEYS)

        assert await ranges(client) == {
            PARENT: KeyRange(0, 2048),
            CHILD: KeyRange(2048, 4096),
        }
        await check_split([one.resolver], in_journal(journals), sent, end)

        async def over() -> bool:
            return not await elastic.splits()

        await eventually(over)
        left = await etcd.get_range(
            f"/broadsheet.v1{cluster.root}/fork".encode(),
            f"/broadsheet.v1{cluster.root}/forl".encode(),
        )
        assert not left.kvs, "nothing of a finished split remains"
        with pytest.raises(ValidationError, match="serves already"):
            await elastic.cancel_split(CHILD)


async def _command_shows_its_plan(member: Service) -> None:
    """As a table, and for programs."""
    line = f"shardctl shards split {PARENT} --into 4 --dry-run --address {member.address}"
    table = await asyncio.to_thread(shardctl, line)
    document = await asyncio.to_thread(shardctl, f"{line} -o json")

    assert (table.status, document.status) == (0, 0), (table, document)
    assert f"{PARENT}-0c00" in table.stdout
    planned = json.loads(document.stdout)["shards"]
    assert [(each["begin"], each["end"]) for each in planned] == [
        (begin, begin + 1024) for begin in (0, 1024, 2048, 3072)
    ]


async def _tells_how_far_it_is(member: Service, elastic: ElasticClient, fqn: str) -> None:
    """A split that follows is told by the service, by its replica and by the metrics: with one number."""

    async def listed() -> bool:
        (split,) = await elastic.splits()
        return bool(split.progress.done)

    await eventually(listed)
    async with StateClient(member.address) as states:
        listed_replicas = (await states.list_replicas()).replicas
    (child,) = [each for each in listed_replicas if each.shard == CHILD]
    of_kind = {each.kind: each for each in child.operations}
    split = of_kind[ProgressKind.PROGRESS_KIND_SPLIT]
    assert (split.subject, split.phase) == (CHILD, "following")
    assert split.done > 0
    labels = {
        "shard": fqn,
        "operation": "split",
        "phase": "following",
        "unit": "bytes",
    }
    left = member.registry.get_sample_value("broadsheet_shard_operation_left", labels)
    assert left is not None


async def test_split_of_large_state_rests_its_parent_only_when_the_index_is_there(
    cluster: Cluster, journals: JournalClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index of all rows takes as long as the state is large: it is made while the parent serves, and the child's
    store takes it as it is.
    """
    await create_logs(journals, PARENT)
    producer, follow = Producer(journals), KeyedFollower.follow
    reached, released = threading.Event(), threading.Event()

    def slowly(self: KeyedFollower, files: Path) -> None:
        reached.set()
        released.wait()
        follow(self, files)

    monkeypatch.setattr(KeyedFollower, "follow", slowly)
    with capture_logs() as events:
        async with (
            cluster.member("one", application=application(), state_dir=str(tmp_path)) as one,
            client_of(one) as client,
            ElasticClient(one.address) as elastic,
        ):
            await client.apply(upserts(spec(cluster)))
            await wait_for_primaries(client, PARENT)
            end = await producer.publish(SOURCE, KEYS)
            await client.wait_read_through(PARENT, {SOURCE: end}, timeout_seconds=60)
            await elastic.split(PARENT, journals, at_group=2048)
            try:
                await eventually(reached.is_set)
                await _tells_how_far_it_is(one, elastic, f"{cluster.root}/items/{CHILD}")
                for _ in range(5):
                    end = await producer.publish(SOURCE, KEYS)
                    await client.wait_read_through(PARENT, {SOURCE: end}, timeout_seconds=60)
                rested = [each for each in events if each["event"] == "split.parent_rests"]
            finally:
                released.set()
            await wait_for_primaries(client, CHILD)

    assert not rested
    (opened,) = [
        each
        for each in events
        if each["event"] == "keyed.index_opened" and each["shard"].endswith(CHILD)
    ]
    assert opened["from_standby"], opened


async def test_split_whose_index_cannot_be_made_meanwhile_is_done_without(
    cluster: Cluster, journals: JournalClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A follower that fails is not waited for: the child's store makes the index itself."""
    await create_logs(journals, PARENT)

    def fails(self: KeyedFollower, files: Path) -> None:
        raise StoreError(str(files), "no space left")

    monkeypatch.setattr(KeyedFollower, "follow", fails)
    async with (
        cluster.member("one", application=application(), state_dir=str(tmp_path)) as one,
        client_of(one) as client,
        ElasticClient(one.address) as elastic,
    ):
        await client.apply(upserts(spec(cluster)))
        await wait_for_primaries(client, PARENT)
        await elastic.split(PARENT, journals, at_group=2048)
        await wait_for_primaries(client, CHILD)


async def test_split_after_a_hold_that_came_late_is_done(
    cluster: Cluster, journals: JournalClient, etcd: EtcdClient, tmp_path: Path
) -> None:
    """A hold whose answer was lost may come behind its release: it must not refuse every later attempt."""
    await create_logs(journals, PARENT)
    late = encode_hold(ForkHold(child=CHILD, attempt="late"))
    async with (
        cluster.member("one", application=application(), state_dir=str(tmp_path)) as one,
        client_of(one) as client,
        ElasticClient(one.address) as elastic,
    ):
        await client.apply(upserts(spec(cluster)))
        await wait_for_primaries(client, PARENT)
        await etcd.put(hold_key(cluster.root, PARENT), late)
        await elastic.split(PARENT, journals, at_group=2048)
        await wait_for_primaries(client, CHILD)


_IN_CI = ("child-behind-the-flip", "parent-before-the-flip")
_ASKED = os.environ.get("SPLIT_STEPS", ",".join(_IN_CI)).split(",")


@pytest.mark.parametrize("round_", range(int(os.environ.get("SPLIT_ROUNDS", "1"))))
@pytest.mark.parametrize("step", asked_of(SPLIT_STEPS, _ASKED))
async def test_split_whose_member_is_killed_at_a_step_is_done_by_others(
    family_round: FamilyRound, step: str, round_: int
) -> None:
    """Killed at any step, each row is handled once, by the shard that owns its key, and the split is done in the end:
    what decides is in etcd, and both logs are fenced.
    """
    del round_
    await family_round.split(SPLIT_STEPS[step])


async def test_flip_whose_answer_is_lost_is_recovered_from_its_hints(
    cluster: Cluster, journals: JournalClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child does not know that the fork is committed: its next life finds the spec changed, and plays both logs."""
    await create_logs(journals, PARENT)
    producer = Producer(journals)
    flip = Forking.flip
    lost: list[str] = []

    async def answered(self: Forking, *args: Any) -> None:
        await flip(self, *args)
        if not lost:
            lost.append("answer")
            raise EtcdUnavailableError(("etcd",), "the answer was lost")

    monkeypatch.setattr(Forking, "flip", answered)
    async with (
        cluster.member("one", application=application(), state_dir=str(tmp_path / "one")) as one,
        client_of(one) as client,
        ElasticClient(one.address) as elastic,
    ):
        await client.apply(upserts(spec(cluster)))
        await wait_for_primaries(client, PARENT)
        async with traffic(producer) as sent:
            await elastic.split(PARENT, journals, at_group=2048)
            await wait_for_primaries(client, CHILD)
            at_split = sent.total()
            await eventually(lambda: sent.total() > at_split + 200)
        end = await producer.publish(SOURCE, KEYS)
        sent.update(KEYS)
        assert lost
        await check_split([one.resolver], in_journal(journals), sent, end)
        # Its backups are of its own log, so that a later recovery begins, too.
        await client.unassign([CHILD])
        await wait_for_primaries(client, CHILD)
        await check_split([one.resolver], in_journal(journals), sent, end)


async def test_cancelled_split_closes_the_index_of_its_child_before_the_files_are_removed(
    cluster: Cluster, journals: JournalClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A RocksDB that finds its files gone sleeps for a second before it closes, and every shard of the member rests."""
    await create_logs(journals, PARENT)
    still = StandStill(PeerParentCaller, "prepare", behind=False)

    async def asked(self: PeerParentCaller, request: Any, *, timeout_seconds: float) -> Any:
        del timeout_seconds
        return await still(self, request)

    monkeypatch.setattr(PeerParentCaller, "prepare", asked)
    indexes: list[int] = []
    discard = KeyedFollower.discard

    def noted(self: KeyedFollower) -> None:
        with suppress(StoreError):
            self.lend().release()
            indexes.append(len([*tmp_path.rglob(INDEX_DIRECTORY)]))
        discard(self)

    monkeypatch.setattr(KeyedFollower, "discard", noted)
    async with (
        cluster.member("one", application=application(), state_dir=str(tmp_path)) as one,
        client_of(one) as client,
        ElasticClient(one.address) as elastic,
    ):
        await client.apply(upserts(spec(cluster)))
        await wait_for_primaries(client, PARENT)
        end = await Producer(journals).publish(SOURCE, KEYS)
        await client.wait_read_through(PARENT, {SOURCE: end}, timeout_seconds=60)
        await elastic.split(PARENT, journals, at_group=2048)
        await eventually(still.reached.is_set)
        await elastic.cancel_split(CHILD)
        await eventually(lambda: indexes)

    assert indexes == [2], "the parent's, and the child's"


async def test_cancelled_split_leaves_the_parent_with_all_keys(
    cluster: Cluster,
    journals: JournalClient,
    etcd: EtcdClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Cancelled while the parent rests: it goes on with the whole range, nothing is left, and it can be split again."""
    await create_logs(journals, PARENT)
    producer = Producer(journals)
    still = StandStill(Forking, "flip", behind=False)

    async def called(*args: Any) -> Any:
        return await still(*args)

    monkeypatch.setattr(Forking, "flip", called)
    async with (
        cluster.member("one", application=application(), state_dir=str(tmp_path / "one")) as one,
        client_of(one) as client,
        ElasticClient(one.address) as elastic,
    ):
        await client.apply(upserts(spec(cluster)))
        await wait_for_primaries(client, PARENT)
        async with traffic(producer) as sent:
            await elastic.split(PARENT, journals, at_group=2048)
            await eventually(still.reached.is_set)
            with pytest.raises(ValidationError, match="being split already"):
                await elastic.plan_split(PARENT, at_group=5)
            await elastic.cancel_split(CHILD)
            assert await ranges(client) == {PARENT: KeyRange(0, 4096)}
            prefix = f"/broadsheet.v1{cluster.root}/fork"
            assert not (await etcd.get_range(prefix.encode(), f"{prefix}~".encode())).kvs
            still.released.set()
            at_cancel = sent.total()
            await eventually(lambda: sent.total() > at_cancel + 200)
            await elastic.split(PARENT, journals, at_group=2048)
            await wait_for_primaries(client, CHILD)
        end = await producer.publish(SOURCE, KEYS)
        sent.update(KEYS)
        await check_split([one.resolver], in_journal(journals), sent, end)


async def test_split_into_parts_ends_with_a_reason_once_one_is_cancelled(
    cluster: Cluster, journals: JournalClient, tmp_path: Path
) -> None:
    """The command waits for each part before it asks for the next: one that never comes must not be waited for."""
    await create_logs(journals, PARENT)
    async with (
        cluster.member("one", application=application(), state_dir=str(tmp_path / "one")) as one,
        client_of(one) as client,
        ElasticClient(one.address) as elastic,
        TaskGroup() as group,
    ):
        await client.apply(upserts(spec(cluster)))
        await wait_for_primaries(client, PARENT)
        line = f"shardctl shards split {PARENT} --address {one.address} --broker {cluster.broker_address}"
        with standing_still(SPLIT_STEPS["child-follows"]) as still:
            splitting = group.start_soon(
                asyncio.to_thread(shardctl, f"{line} --into 4"), name="split"
            )
            await eventually(still.reached.is_set)
            await elastic.cancel_split(f"{PARENT}-0c00")
            ended = await splitting
            still.released.set()
        assert (ended.status, await ranges(client)) == (1, {PARENT: KeyRange(0, 4096)})
        assert f"shard {PARENT}-0c00 was deleted, or its split cancelled" in ended.stderr
        strange = await asyncio.to_thread(shardctl, f"{line} --at k\udcff")
        assert strange.status != 0
        assert "--at" in strange.stderr
        assert "expected UTF-8" in strange.stderr


async def test_deleted_shards_leave_nothing_of_their_splits_and_merges(
    cluster: Cluster, journals: JournalClient, etcd: EtcdClient, tmp_path: Path
) -> None:
    """A later shard of the same id is split, merged and listed as any other: the deletion of a fork cancels its split,
    and that of a family ends whatever was under way in it.
    """
    await create_logs(journals, PARENT)
    auxiliary = AuxiliaryKeys(cluster.root).prefix
    async with (
        cluster.member("one", application=application(), state_dir=str(tmp_path / "one")) as one,
        client_of(one) as client,
        ElasticClient(one.address) as elastic,
    ):

        async def delete(*shard_ids: str) -> None:
            changes = [
                ApplyRequest.Change(delete=each, expect_mod_revision=-1) for each in shard_ids
            ]
            await client.apply(changes)
            for kind in (b"forks/", b"fork-hold/", b"merges/"):
                left = await etcd.get_range(auxiliary + kind, prefix_range_end(auxiliary + kind))
                assert not left.kvs, (shard_ids, left.kvs)

        async def over() -> bool:
            return not await elastic.splits()

        await client.apply(upserts(spec(cluster)))
        await wait_for_primaries(client, PARENT)
        with standing_still(SPLIT_STEPS["child-follows"]) as still:
            await elastic.split(PARENT, journals, at_group=2048)
            await eventually(still.reached.is_set)
            await delete(CHILD)
            still.released.set()
        with standing_still(SPLIT_STEPS["child-before-the-flip"]) as still:
            await elastic.split(PARENT, journals, at_group=2048)
            await eventually(still.reached.is_set)
            await delete(PARENT, CHILD)
            still.released.set()
        await client.apply(upserts(spec(cluster)))
        await wait_for_primaries(client, PARENT)
        await elastic.split(PARENT, journals, at_group=2048)
        await wait_for_primaries(client, CHILD)
        await eventually(over)
        with standing_still(MERGE_STEPS["survivor-copies"]) as still:
            await elastic.merge(PARENT, CHILD)
            await eventually(still.reached.is_set)
            await delete(PARENT, CHILD)
            still.released.set()


async def test_record_that_cannot_be_read_holds_up_its_own_split_alone(
    cluster: Cluster, journals: JournalClient, etcd: EtcdClient, tmp_path: Path
) -> None:
    """Whatever writes into etcd: other splits end, and shards of the family are not merged before it is gone."""
    await create_logs(journals, PARENT)
    forks = forks_prefix(cluster.root)
    async with (
        cluster.member("one", application=application(), state_dir=str(tmp_path / "one")) as one,
        client_of(one) as client,
        ElasticClient(one.address) as elastic,
    ):
        await client.apply(upserts(spec(cluster)))
        await wait_for_primaries(client, PARENT)
        await etcd.put(forks + b"\xff", b"\x00")
        await etcd.put(forks + b"another", b'{"parent":1}')
        await elastic.split(PARENT, journals, at_group=2048)
        await wait_for_primaries(client, CHILD)

        async def is_over() -> bool:
            return not await elastic.splits()

        await eventually(is_over)
        await etcd.put(fork_key(cluster.root, CHILD), b"{}")
        (told,) = await elastic.splits()
        with pytest.raises(ValidationError, match="split"):
            await elastic.merge(PARENT, CHILD, dry_run=True)
        await etcd.delete(fork_key(cluster.root, CHILD))
        planned = await elastic.merge(PARENT, CHILD, dry_run=True)

    assert told.child == CHILD
    assert "parent" in told.reason
    assert {planned.survivor, planned.absorbed} == {PARENT, CHILD}


@pytest.mark.parametrize(
    ("wish", "problem"),
    [
        ({"at_group": 4095, "child": PARENT}, "expected the id of a new shard"),
        ({"child": "x"}, "child"),
    ],
)
async def test_split_that_cannot_be_is_refused_with_the_field(
    cluster: Cluster, wish: dict[str, Any], problem: str
) -> None:
    """Nothing is written by what is refused, and the error says what would be accepted."""
    async with (
        cluster.member("one", application=application()) as one,
        client_of(one) as client,
        ElasticClient(one.address) as elastic,
    ):
        paused = spec(cluster)
        await client.apply(upserts(paused))
        with pytest.raises(ValidationError, match=problem):
            await elastic.plan_split(PARENT, **wish)
        assert await ranges(client) == {PARENT: KeyRange(0, 4096)}


async def test_split_of_a_shard_whose_application_is_not_keyed_is_refused_by_its_name(
    cluster: Cluster,
) -> None:
    """A store that cannot give keys away would have both shards count all rows."""
    async with (
        cluster.member("one") as one,
        client_of(one) as client,
        ElasticClient(one.address) as elastic,
    ):
        await client.apply(upserts(spec(cluster)))
        with pytest.raises(ValidationError, match="Tally is not divided by key"):
            await elastic.plan_split(PARENT)


async def test_split_without_a_place_is_where_the_primary_has_measured_half_of_the_load(
    cluster: Cluster, etcd: EtcdClient, journals: JournalClient
) -> None:
    """What the primary's member reports counts, whichever member is asked; a place that is asked for comes first."""
    await create_logs(journals, PARENT)
    quantiles = range(100, 1600, 100)
    report = MemberLoad(
        shards=[MemberLoad.ShardLoad(shard_id=PARENT, median_group=700, quantile_groups=quantiles)]
    )
    async with (
        cluster.member("one", application=application()) as one,
        client_of(one) as client,
        ElasticClient(one.address) as elastic,
    ):
        await client.apply(upserts(spec(cluster)))
        await wait_for_primaries(client, PARENT)
        suffix = (await wait_for_primaries(client, PARENT))[PARENT]
        key = AuxiliaryKeys(cluster.root).load(MemberId("zone-a", suffix))

        async def cut() -> bool:
            # The member writes its own report now and then.
            await etcd.put(key, report.SerializeToString())
            plan = await elastic.plan_split(PARENT)
            return plan.given_begin == 700 and list(plan.quantile_groups) == [*quantiles]

        await eventually(cut)
        assert (await elastic.plan_split(PARENT, at_group=5)).given_begin == 5
