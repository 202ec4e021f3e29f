"""Of several standbys the one that has least to play is promoted; one that has much to play is told to be cold."""

from __future__ import annotations

import math

import pytest

from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.policy import LoadPolicy
from broadsheet.allocator.state.load import Lag, MeasuredLoads, MemberReport
from broadsheet.allocator.whatif.dry_run import ReplicaChangeKind
from broadsheet.allocator.whatif.explain import explain
from broadsheet.allocator.whatif.leader_snapshot import Hypothesis
from broadsheet.allocator.whatif.preview import PlanPreview, preview_plan
from tests.support.leader_snapshots import leader_snapshot_of
from tests.support.memory_cluster import CONSISTENT, MemoryCluster

A, B, C = (MemberId(name, name) for name in "abc")
ITEM = ItemId("item")


def _cluster(*, b_value: bytes = CONSISTENT, c_value: bytes = CONSISTENT) -> MemoryCluster:
    """Return a cluster of one item, with its primary on A and standbys on B and C."""
    cluster = MemoryCluster()
    for member_id in (A, B, C):
        cluster.put_member(member_id.zone, member_id.suffix, 10)
    cluster.put_item(ITEM, 3)
    for slot, (member_id, value) in enumerate(((A, CONSISTENT), (B, b_value), (C, c_value))):
        cluster.put_assignment(ITEM, member_id.zone, member_id.suffix, slot, value)
    return cluster


def _promoted(cluster: MemoryCluster) -> MemberId:
    cluster.settle()
    (group,) = cluster.state().assignments.values()
    return next(a.member_id for a in group if a.slot == 0)


@pytest.mark.parametrize(
    ("lags", "expected"),
    [
        ({}, B),
        ({(ITEM, B): Lag(3.0, 1 << 24)}, C),
        ({(ITEM, B): Lag(3.0, 1 << 24), (ITEM, C): Lag(9.0, 1 << 30)}, B),
        ({(ITEM, B): Lag(math.inf, 1 << 24), (ITEM, C): Lag(9.0, 1 << 30)}, C),
    ],
)
def test_standby_with_least_to_play_is_promoted(
    lags: dict[tuple[ItemId, MemberId], Lag], expected: MemberId
) -> None:
    """Time counts before bytes, and one that does not get on comes last; none behind, the lowest slot is taken."""
    cluster = _cluster()
    cluster.lags = lags
    cluster.kill_member("a", "a")

    assert _promoted(cluster) == expected


def test_standby_that_serves_late_is_better_than_one_that_still_backfills() -> None:
    """Consistent replicas come first, however far behind they say they are."""
    cluster = _cluster(c_value=b"backfill")
    cluster.lags = {(ITEM, B): Lag(60.0, 1 << 30)}
    cluster.kill_member("a", "a")

    assert _promoted(cluster) == B


@pytest.mark.parametrize("cold", [True, False])
def test_proposal_tells_a_cold_promotion(cold: bool) -> None:
    """The primary is gone; if whoever comes next has much to play, the plan says so."""
    cluster = _cluster()
    if cold:
        cluster.lags = {(ITEM, B): Lag(5.0, 1 << 26), (ITEM, C): Lag(5.0, 1 << 26)}
    cluster.kill_member("a", "a")

    proposal = preview_plan(leader_snapshot_of(cluster), Hypothesis())

    assert isinstance(proposal, PlanPreview)
    (promotion,) = proposal.dry_run.changes
    assert (promotion.kind, promotion.member_id) == (ReplicaChangeKind.PROMOTE, B)
    assert promotion.cold is cold


def test_explanation_tells_how_far_a_standby_is_behind() -> None:
    """Bytes and seconds, as its member reported them."""
    cluster = _cluster()
    lag = Lag(5.0, 1 << 26)
    loads = MeasuredLoads(LoadPolicy())
    loads.observe({B: MemberReport(lags={ITEM: lag})}, 0.0)
    cluster.lags = loads.lags

    explanation = explain(leader_snapshot_of(cluster), ITEM)

    assert explanation is not None
    assert {each.member_id: each.lag for each in explanation.replicas} == {
        A: Lag(),
        B: lag,
        C: Lag(),
    }
