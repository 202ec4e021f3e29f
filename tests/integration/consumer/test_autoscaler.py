"""The autoscaler of real members: what the leader decides of a busy shard, logs, and does."""

from __future__ import annotations

import asyncio
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import pytest
from click.testing import CliRunner

from broadsheet.cli.main import main
from broadsheet.consumer.client import AllocationClient, ElasticClient
from broadsheet.consumer.elastic.scaling_policy import ScalingMode, ScalingPolicy
from broadsheet.consumer.member.service import Service
from broadsheet.journals.client import JournalClient
from broadsheet.wire.allocation_pb2 import DecisionOutcome, MoveKind, ShardMove
from broadsheet.wire.key_range import KeyRange
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
from tests.support.recorded_tally import create_logs
from tests.support.splitting import PARENT, application, ranges, spec, traffic

pytestmark = pytest.mark.etcd


def _policy(mode: ScalingMode) -> ScalingPolicy:
    """One for which a shard with the traffic of a test is busy."""
    return ScalingPolicy(
        mode=mode,
        sample_seconds=0.2,
        busy_cpu_ratio=0.004,
        idle_cpu_ratio=0.0,
        busy_seconds=0.2,
        members_max=1,
        family_shards_max=2,
    )


async def _decisions(member: Service, action: str) -> list[ShardMove]:
    async with AllocationClient(member.address) as client:
        return [
            move
            async for move in client.moves()
            if move.kind == MoveKind.MOVE_KIND_DECISION and move.decision.action == action
        ]


def _wanted(member: Service) -> float | None:
    return member.registry.get_sample_value("broadsheet_wanted_members")


async def test_busy_shard_is_split_as_if_an_operator_had_asked_and_the_log_says_why(
    cluster: Cluster, journals: JournalClient, tmp_path: Path
) -> None:
    """The leader alone decides. The split is logged with its rule and inputs, and is not repeated by the next leader,
    because the family cools down.
    """
    await create_logs(journals, PARENT)
    policy = _policy(ScalingMode.ACT)

    def member(name: str, **overrides: int) -> AbstractAsyncContextManager[Service]:
        directory = str(tmp_path / name)
        return cluster.member(
            name, application=application(), scaling=policy, state_dir=directory, **overrides
        )

    async with (
        member("two", shard_limit=0) as two,
        member("one") as one,
        client_of(two) as client,
    ):
        await client.apply(upserts(spec(cluster)))
        await wait_for_primaries(client, PARENT)
        async with traffic(Producer(journals)):
            await eventually(lambda: _is_split(client), timeout_seconds=60)
        (split,) = await _decisions(one, "split")
        assert (split.shard, split.reason) == (PARENT, "busy-cpu")
        assert split.decision.outcome == DecisionOutcome.DECISION_OUTCOME_ORDERED
        assert split.decision.inputs["cpu"] > policy.busy_cpu_ratio
        (scale,) = await _decisions(one, "scale")
        assert (scale.shard, scale.decision.inputs["members"]) == ("", 1.0)
        leading = [name for name, each in (("one", one), ("two", two)) if _wanted(each) is not None]
        assert [scale.writer] == [f"zone-a#member-{name}" for name in leading]
        shown = await asyncio.to_thread(
            CliRunner().invoke, main, ["shards", "moves", "--address", one.address]
        )
        assert "busy-cpu (" in shown.output, shown.output
        assert "ordered" in shown.output


async def _is_split(client: object) -> bool:
    found = await ranges(client)  # type: ignore[arg-type]
    return len(found) == 2 and KeyRange(0, 4096) not in found.values()


async def test_observing_leader_logs_what_it_would_do_and_does_nothing(
    cluster: Cluster, journals: JournalClient, tmp_path: Path
) -> None:
    """A dry run has the same rules, inputs and cool-downs, but neither a split nor a number that KEDA would follow."""
    await create_logs(journals, PARENT)
    async with (
        cluster.member(
            "one",
            application=application(),
            scaling=_policy(ScalingMode.OBSERVE),
            state_dir=str(tmp_path),
        ) as one,
        client_of(one) as client,
        ElasticClient(one.address) as elastic,
    ):
        await client.apply(upserts(spec(cluster)))
        await wait_for_primaries(client, PARENT)

        async def is_decided() -> bool:
            return bool(await _decisions(one, "split"))

        async with traffic(Producer(journals)):
            await eventually(is_decided, timeout_seconds=60)
        observed = DecisionOutcome.DECISION_OUTCOME_OBSERVED
        decided = [*await _decisions(one, "split"), *await _decisions(one, "scale")]
        assert [each.decision.outcome for each in decided] == [observed, observed]
        assert not await elastic.splits()
        assert list(await ranges(client)) == [PARENT]
        assert _wanted(one) is None


async def test_split_that_is_refused_is_logged_once_with_the_reason(
    cluster: Cluster, journals: JournalClient
) -> None:
    """A shard of an application that divides no keys is as busy as any; the log says why it stays whole."""
    async with (
        cluster.member("one", scaling=_policy(ScalingMode.ACT)) as one,
        client_of(one) as client,
    ):
        await client.apply(upserts(shard("shard-a", "test/source")))
        await wait_for_primaries(client, "shard-a")

        async def is_decided() -> bool:
            return bool(await _decisions(one, "split"))

        async with traffic(Producer(journals)):
            await eventually(is_decided, timeout_seconds=60)
        (split,) = await _decisions(one, "split")
        assert split.decision.outcome == DecisionOutcome.DECISION_OUTCOME_REFUSED
        assert "cannot be split" in split.decision.reason
        assert len(await statuses(client)) == 1
