"""The moves that a leader's plan still asks for, phase by phase."""

from __future__ import annotations

from dataclasses import replace

from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.placement.plan import Plan
from broadsheet.allocator.state.load import Lag
from broadsheet.allocator.whatif.leader_snapshot import LeaderSnapshot
from broadsheet.allocator.whatif.moves import moves_of
from broadsheet.consumer.rpc.operations import (
    MOVES_LISTED_MAX,
    move_progress,
    operations_response,
)
from broadsheet.wire.progress_pb2 import Progress, ProgressKind, ProgressUnit
from tests.support.leader_snapshots import leader_snapshot_of
from tests.support.memory_cluster import MemoryCluster

A, B = MemberId("a", "one"), MemberId("b", "two")
ITEM = ItemId("i")


def _cluster() -> MemoryCluster:
    """One item, at home on A, and a second member."""
    cluster = MemoryCluster()
    for member_id in (A, B):
        cluster.put_member(member_id.zone, member_id.suffix, 10)
    cluster.put_item(ITEM, 1)
    cluster.put_assignment(ITEM, A.zone, A.suffix, 0)
    return cluster


def _planned(cluster: MemoryCluster, member_id: MemberId) -> LeaderSnapshot:
    leader = leader_snapshot_of(cluster)
    return replace(leader, plan=Plan(leader.state().demand(), {ITEM: (member_id,)}))


def _told(leader: LeaderSnapshot) -> list[Progress]:
    moves = moves_of(leader)
    assert moves is not None
    return list(map(move_progress, moves))


def test_move_is_told_from_the_plan_to_the_last_removal() -> None:
    """Waiting, catching up with bytes and seconds of the replica's own report, leaving; then it is no move any more."""
    cluster = _cluster()
    waiting = _told(_planned(cluster, B))
    cluster.put_assignment(ITEM, B.zone, B.suffix, 1, b"")
    cluster.lags = {(ITEM, B): Lag(4.0, 1_000)}
    catching_up = _told(_planned(cluster, B))
    cluster.lags = {}
    unreported = _told(_planned(cluster, B))
    cluster.put_assignment(ITEM, B.zone, B.suffix, 1)
    leaving = _told(_planned(cluster, B))
    at_rest = _told(_planned(_cluster(), A))

    assert [(m.phase, m.member) for m in waiting] == [("waiting", str(B))]
    (first,) = catching_up
    assert (first.kind, first.unit, first.subject, first.phase) == (
        ProgressKind.PROGRESS_KIND_MOVE,
        ProgressUnit.PROGRESS_UNIT_BYTES,
        ITEM,
        "catching up",
    )
    assert (first.to_do, first.rate, first.eta_s) == (1_000, 250.0, 4.0)
    assert [(m.phase, m.to_do, m.eta_s) for m in unreported] == [("catching up", -1, -1.0)]
    assert [(m.phase, m.member) for m in leaving] == [("leaving", str(A))]
    assert at_rest == []


def test_replica_that_makes_no_progress_has_no_time() -> None:
    """An infinite time is not a number that a client could add up: what is left is told, and the time is unknown."""
    cluster = _cluster()
    cluster.put_assignment(ITEM, B.zone, B.suffix, 1, b"")
    cluster.lags = {(ITEM, B): Lag(float("inf"), 1_000)}

    (told,) = _told(_planned(cluster, B))

    assert (told.to_do, told.rate, told.eta_s) == (1_000, 0.0, -1.0)


def test_moves_without_a_plan_are_unknown_and_many_are_bounded() -> None:
    """A new leader does not claim that nothing moves; an answer of a huge cluster stays small, and tells how many."""
    unknown = operations_response(moves_of(leader_snapshot_of(_cluster())), {}, revision=1)
    moves = moves_of(_planned(_cluster(), B))
    assert moves is not None
    many = operations_response(moves * 2 * MOVES_LISTED_MAX, {}, revision=1)

    assert (unknown.moves_unknown, unknown.moves) == (True, 0)
    assert (len(many.operations), many.moves) == (MOVES_LISTED_MAX, 2 * MOVES_LISTED_MAX)
