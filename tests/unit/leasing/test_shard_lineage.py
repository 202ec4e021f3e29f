"""Which shards get leases, and which leases are done with: the tables of the Kinesis Client Library."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord
from broadsheet.leases.rules import blocking_parents
from broadsheet.leases.worker.lineage import children_of, deletable, lone_parents, missing_leases
from broadsheet.leases.worker.source import SourceShard

# 0 1 2 3   4   5
#  6   7    4 9  10
#    8
SHARDS = tuple(
    SourceShard(key=key, parents=tuple(parents.split()))
    for key, parents in [
        *((str(number), "") for number in range(6)),
        ("6", "0 1"),
        ("7", "2 3"),
        ("8", "6 7"),
        ("9", "5"),
        ("10", "5"),
    ]
)


@pytest.mark.parametrize(
    ("start", "leased", "created"),
    [
        ("TRIM_HORIZON", "", "0 1 2 3 4 5"),
        ("AT_TIMESTAMP", "", "0 1 2 3 4 5"),
        ("LATEST", "", "4 8 9 10"),
        ("LATEST", "3 4 5", "2 6"),
        ("TRIM_HORIZON", "3 4 5", "0 1 2"),
        ("LATEST", "4 5 7", "6"),
        ("TRIM_HORIZON", "4 5 7", "0 1"),
        ("AT_TIMESTAMP", "4 5 7", "0 1"),
        ("LATEST", "2 6", "3 4 9 10"),
        ("TRIM_HORIZON", "2 6", "3 4 5"),
        ("LATEST", "1 6", "7 4 9 10"),
        ("TRIM_HORIZON", "1 6", "2 3 4 5"),
        ("LATEST", "0 1 2 3 4 5", ""),
        ("TRIM_HORIZON", "8 4 9 10", ""),
        ("LATEST", "8 4 9", "10"),
    ],
)
def test_each_lineage_is_covered_once(start: str, leased: str, created: str) -> None:
    """KCL HierarchicalShardSyncerTest.determineNewLeasesToCreateSplitMerge*: all begin where an application does."""
    missing = missing_leases(SHARDS, set(leased.split()), start=Position(start))

    assert {lease.key for lease in missing} == set(created.split())
    assert all(lease.checkpoint == Position(start) for lease in missing)
    assert [lease.key for lease in missing] == sorted((lease.key for lease in missing), key=int)


def test_shard_whose_parents_are_too_old_is_a_root() -> None:
    """KCL …NoShardsOpen / missing parents: what is not listed has no records, and is no lineage to walk."""
    shards = [SourceShard(key="9", parents=("5",)), SourceShard(key="10", parents=("5",))]

    for start in ("TRIM_HORIZON", "LATEST"):
        missing = missing_leases(shards, set(), start=Position(start))
        assert [lease.key for lease in missing] == ["9", "10"]
        assert missing[0].parents == {"5"}


def test_children_and_the_parents_of_a_merge() -> None:
    """KCL ShutdownTaskTest: a merge's child waits until both parents have leases, or both are gone."""
    merged = children_of(SHARDS, "6")

    assert [shard.key for shard in children_of(SHARDS, "5")] == ["9", "10"]
    assert [shard.key for shard in merged] == ["8"]
    assert lone_parents(merged[0], {"6", "7"}) == ()
    assert lone_parents(merged[0], set()) == ()
    assert lone_parents(merged[0], {"6"}) == ("7",)


def lease(
    key: str, checkpoint: str | None, *, parents: str = "", children: str = "", owner: str = ""
) -> LeaseRecord:
    """A lease somewhere in its life."""
    return LeaseRecord(
        key=key,
        owner=owner or None,
        checkpoint=None if checkpoint is None else Position(checkpoint),
        parents=frozenset(parents.split()),
        children=frozenset(children.split()),
    )


def _deletable(*leases: LeaseRecord, listed: Iterable[str] | None = None) -> tuple[str, ...]:
    records = {each.key: each for each in leases}
    there = records.keys() if listed is None else set(listed)
    return deletable(records, there, now_missing=records.keys() - there)


def test_finished_parent_is_deleted_once_all_children_have_begun() -> None:
    """KCL LeaseCleanupManagerTest.testParentShardLeaseDeletedSplitCase, …MergeCase."""
    parent = lease("p", "SHARD_END", children="a b")

    assert _deletable(parent, lease("a", "5"), lease("b", "SHARD_END")) == ("p",)


@pytest.mark.parametrize("position", ["TRIM_HORIZON", "AT_TIMESTAMP", None])
def test_finished_parent_is_kept_while_a_child_has_not_begun(position: str | None) -> None:
    """KCL testLeaseNotDeletedWhenChildNotStarted: at a place to start, or without any checkpoint."""
    parent = lease("p", "SHARD_END", children="a b")

    assert _deletable(parent, lease("a", "5"), lease("b", position)) == ()


def test_finished_parent_is_kept_while_it_may_be_needed() -> None:
    """KCL …WhenParentsStillPresent, …WhenAnyChildLeaseNotPresent; and a last shard has no children to begin."""
    begun = lease("a", "5", parents="p")

    assert _deletable(lease("p", "7", children="a"), begun) == ()
    assert _deletable(lease("p", "SHARD_END", children="a b"), begun) == ()
    assert (
        _deletable(lease("p", "SHARD_END", children="a", parents="g"), lease("g", "3"), begun) == ()
    )
    assert _deletable(lease("p", "SHARD_END")) == ()


def test_lease_of_a_shard_that_is_not_listed_any_more_is_deleted() -> None:
    """KCL testGarbageCollection: twice asked for, and nobody's; a listing may come late."""
    assert _deletable(lease("a", "5"), lease("b", "5"), listed=["b"]) == ("a",)
    assert _deletable(lease("a", "5", owner="w1"), listed=[]) == ()
    records = {"a": lease("a", "5")}
    assert deletable(records, set(), now_missing=set()) == ()


def test_child_waits_for_parents_that_are_there() -> None:
    """KCL BlockOnParentShardTaskTest; one without a checkpoint has not begun, and vmware-go-kcl takes it for done."""
    child = lease("c", "TRIM_HORIZON", parents="p q")

    assert blocking_parents(child, {}) == ()
    assert blocking_parents(child, {"p": lease("p", "SHARD_END")}) == ()
    assert blocking_parents(child, {"p": lease("p", "9"), "q": lease("q", None)}) == ("p", "q")
