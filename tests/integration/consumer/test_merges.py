"""Merges of keyed shards while they serve, over real members, etcd and broker."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from broadsheet.allocator.errors import EtcdUnavailableError
from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.allocator.model import ItemId
from broadsheet.consumer.client import ElasticClient, StateClient
from broadsheet.consumer.member.service import Service
from broadsheet.consumer.shard.absorbing import Absorbing
from broadsheet.consumer.shard.forking import Forking
from broadsheet.journals.client import JournalClient
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.key_range import ALL_KEYS
from broadsheet.wire.progress_pb2 import ProgressKind
from tests.support.eventually import eventually
from tests.support.family_rounds import (
    FIRST,
    HIGH,
    LOW,
    MERGE_STEPS,
    SECOND,
    FamilyRound,
    asked_of,
    family,
    merged,
)
from tests.support.members import (
    Cluster,
    Producer,
    client_of,
    upserts,
    wait_for_primaries,
)
from tests.support.recorded_tally import create_logs
from tests.support.splitting import (
    CHILD,
    KEYS,
    SOURCE,
    StandStill,
    application,
    check_merged,
    check_split,
    in_journal,
    ranges,
    traffic,
)

pytestmark = pytest.mark.etcd


@pytest.mark.parametrize("survivor", [FIRST, SECOND])
async def test_shards_are_merged_under_traffic_with_each_row_handled_once(
    cluster: Cluster,
    journals: JournalClient,
    etcd: EtcdClient,
    tmp_path: Path,
    survivor: str,
) -> None:
    """The survivor goes on from the states of both at one point of the sources: no row is missed, none counts twice,
    and rows of a key keep their order over the change of their shard.
    """
    await create_logs(journals, FIRST, SECOND)
    producer = Producer(journals)
    async with (
        cluster.member("one", application=application(), state_dir=str(tmp_path / "one")) as one,
        client_of(one) as client,
        ElasticClient(one.address) as elastic,
    ):
        await client.apply(upserts(*family(cluster)))
        await wait_for_primaries(client, FIRST, SECOND)
        async with traffic(producer) as sent:
            await eventually(lambda: sent.total() > 400)
            plan = await elastic.merge(FIRST, SECOND, survivor=survivor, dry_run=True)
            assert (plan.owned_begin, plan.owned_end, plan.revision) == (0, 4096, 0)
            assert await ranges(client) == {FIRST: LOW, SECOND: HIGH}
            await elastic.merge(FIRST, SECOND, survivor=survivor)
            await merged(elastic)
            at_merge = sent.total()
            await eventually(lambda: sent.total() > at_merge + 400)
        end = await producer.publish(SOURCE, KEYS)
        sent.update(KEYS)

        assert await ranges(client) == {survivor: ALL_KEYS}
        await check_merged(one.resolver, in_journal(journals), survivor, sent, end)
        for name in ("merges/", "fork-hold/"):
            prefix = f"/broadsheet.v1{cluster.root}/{name}".encode()
            assert not (await etcd.get_range(prefix, prefix[:-1] + b"0")).kvs, name
        with pytest.raises(ValidationError, match="takes over no other one"):
            await elastic.cancel_merge(survivor)
        # A later life has all of it from the survivor's log alone.
        await client.unassign([survivor])
        await wait_for_primaries(client, survivor)
        await check_merged(one.resolver, in_journal(journals), survivor, sent, end)


_IN_CI = ("survivor-behind-the-flip", "absorbed-before-the-flip")
_ASKED = os.environ.get("MERGE_STEPS", ",".join(_IN_CI)).split(",")


@pytest.mark.parametrize("round_", range(int(os.environ.get("MERGE_ROUNDS", "1"))))
@pytest.mark.parametrize("step", asked_of(MERGE_STEPS, _ASKED))
async def test_merge_whose_member_is_killed_at_a_step_is_done_by_others(
    family_round: FamilyRound, step: str, round_: int
) -> None:
    """Killed at any step, each row is handled once, by the shard that owns its key, and the merge is done in the end:
    what decides is in etcd, and both logs are fenced.
    """
    del round_
    await family_round.merge(MERGE_STEPS[step])


async def test_merge_whose_flips_answer_is_lost_is_seen_in_the_spec(
    cluster: Cluster, journals: JournalClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The survivor does not know that the merge is committed: it looks before it reads on."""
    await create_logs(journals, FIRST, SECOND)
    producer = Producer(journals)
    flip = Absorbing.flip
    lost: list[str] = []

    async def answered(self: Absorbing, *args: Any) -> None:
        await flip(self, *args)
        lost.append("answer")
        raise EtcdUnavailableError(("etcd",), "the answer was lost")

    monkeypatch.setattr(Absorbing, "flip", answered)
    async with (
        cluster.member("one", application=application(), state_dir=str(tmp_path / "one")) as one,
        client_of(one) as client,
        ElasticClient(one.address) as elastic,
    ):
        await client.apply(upserts(*family(cluster)))
        await wait_for_primaries(client, FIRST, SECOND)
        async with traffic(producer) as sent:
            await elastic.merge(FIRST, SECOND)
            await merged(elastic)
            at_merge = sent.total()
            await eventually(lambda: sent.total() > at_merge + 200)
        end = await producer.publish(SOURCE, KEYS)
        sent.update(KEYS)
        assert len(lost) == 1
        await check_merged(one.resolver, in_journal(journals), FIRST, sent, end)


async def test_cancelled_merge_leaves_both_with_their_keys(
    cluster: Cluster,
    journals: JournalClient,
    etcd: EtcdClient,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Cancelled while both rest: both go on with their keys, the rows that were taken in go, and a later merge is
    done.
    """
    await create_logs(journals, FIRST, SECOND)
    producer = Producer(journals)
    still = StandStill(Absorbing, "flip", behind=False)

    async def called(*args: Any) -> Any:
        return await still(*args)

    monkeypatch.setattr(Absorbing, "flip", called)
    async with (
        cluster.member("one", application=application(), state_dir=str(tmp_path / "one")) as one,
        client_of(one) as client,
        ElasticClient(one.address) as elastic,
    ):
        await client.apply(upserts(*family(cluster)))
        await wait_for_primaries(client, FIRST, SECOND)
        async with traffic(producer) as sent:
            await elastic.merge(FIRST, SECOND)
            await eventually(still.reached.is_set)
            await _tells_how_far_it_is(one, f"{cluster.root}/items/{FIRST}")
            with pytest.raises(ValidationError, match="being merged with"):
                await elastic.merge(SECOND, FIRST, dry_run=True)
            with pytest.raises(ValidationError, match="being merged with"):
                await elastic.plan_split(SECOND)
            await elastic.cancel_merge(FIRST)
            assert await ranges(client) == {FIRST: LOW, SECOND: HIGH}
            prefix = f"/broadsheet.v1{cluster.root}/merges/".encode()
            assert not (await etcd.get_range(prefix, prefix + b"~")).kvs
            still.released.set()
            at_cancel = sent.total()
            await eventually(lambda: sent.total() > at_cancel + 200)
            store: Any = one.shards[ItemId(FIRST)].store
            await eventually(lambda: store.purged_groups(LOW)[1] == 0)
            await elastic.merge(FIRST, SECOND)
            await merged(elastic)
            assert await ranges(client) == {FIRST: ALL_KEYS}
        end = await producer.publish(SOURCE, KEYS)
        sent.update(KEYS)
        await check_merged(one.resolver, in_journal(journals), FIRST, sent, end)


async def _tells_how_far_it_is(member: Service, fqn: str) -> None:
    """A merge is told by the survivor's replica and by the metrics: with one number, of rows."""
    async with StateClient(member.address) as states:
        replicas = (await states.list_replicas()).replicas
    (told,) = [each for each in replicas if each.shard == FIRST]
    (merge,) = [each for each in told.operations if each.kind == ProgressKind.PROGRESS_KIND_MERGE]
    assert (merge.subject, merge.phase, merge.to_do) == (FIRST, "holding", 0)
    assert merge.done >= len(KEYS) // 4
    labels = {"shard": fqn, "operation": "merge", "phase": "holding", "unit": "rows"}
    assert member.registry.get_sample_value("broadsheet_shard_operation_left", labels) == 0


async def test_split_that_begins_while_a_merge_ends_has_its_parent_rest_until_it_is_decided(
    cluster: Cluster, journals: JournalClient, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The survivor has committed the merge, and has not gone on yet, when a child asks it to rest: the end of the one
    rest must not end the other, behind whose mark the child owns half of the keys.
    """
    await create_logs(journals, FIRST, SECOND)
    producer = Producer(journals)
    merges = StandStill(Absorbing, "flip", behind=True)
    splits = StandStill(Forking, "flip", behind=False)

    async def merging(*args: Any) -> Any:
        return await merges(*args)

    async def splitting(*args: Any) -> Any:
        return await splits(*args)

    monkeypatch.setattr(Absorbing, "flip", merging)
    monkeypatch.setattr(Forking, "flip", splitting)
    async with (
        cluster.member("one", application=application(), state_dir=str(tmp_path / "one")) as one,
        client_of(one) as client,
        ElasticClient(one.address) as elastic,
    ):
        await client.apply(upserts(*family(cluster)))
        await wait_for_primaries(client, FIRST, SECOND)
        async with traffic(producer) as sent:
            await eventually(lambda: sent.total() > 200)
            await elastic.merge(FIRST, SECOND)
            await eventually(merges.reached.is_set)
            await elastic.split(FIRST, journals, at_group=2048)

            async def asked() -> bool:
                (split,) = await elastic.splits()
                return splits.reached.is_set() or "rests for another attempt" in split.reason

            await eventually(asked)
            merges.released.set()
            await eventually(splits.reached.is_set)
            at_split = sent.total()
            await eventually(lambda: sent.total() > at_split + 200)
            splits.released.set()
            await wait_for_primaries(client, CHILD)
        end = await producer.publish(SOURCE, KEYS)
        sent.update(KEYS)
        await check_split([one.resolver], in_journal(journals), sent, end)


async def test_shards_that_never_had_a_row_are_merged(
    cluster: Cluster, journals: JournalClient, tmp_path: Path
) -> None:
    """Nothing was ever committed, so that there is no index to take rows from: there are none."""
    await create_logs(journals, FIRST, SECOND)
    producer = Producer(journals)
    async with (
        cluster.member("one", application=application(), state_dir=str(tmp_path / "one")) as one,
        client_of(one) as client,
        ElasticClient(one.address) as elastic,
    ):
        await client.apply(upserts(*family(cluster)))
        await wait_for_primaries(client, FIRST, SECOND)
        await elastic.merge(FIRST, SECOND)
        await merged(elastic)
        assert await ranges(client) == {FIRST: ALL_KEYS}
        end = await producer.publish(SOURCE, KEYS)
        await check_merged(one.resolver, in_journal(journals), FIRST, Counter(KEYS), end)
