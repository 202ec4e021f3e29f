"""Which shards of a lineage get a lease when only some have one, and where lineages end.

Origins are in awslabs/amazon-kinesis-client, `leases.HierarchicalShardSyncerTest`, its `checkIfDescendant*` family and
those of `determineNewLeasesToCreate*` without the large diagram; rewritten.
"""

from __future__ import annotations

import pytest

from broadsheet.leases.position import Position
from broadsheet.leases.worker.lineage import missing_leases
from broadsheet.leases.worker.source import SourceShard

STARTS = ("TRIM_HORIZON", "AT_TIMESTAMP", "LATEST")


def _shards(*lineage: str) -> tuple[SourceShard, ...]:
    """Read shards, as in `c < a b`: c is a child of a and b."""
    keys = [each.partition(" < ") for each in lineage]
    return tuple(SourceShard(key=key, parents=tuple(parents.split())) for key, _, parents in keys)


def _created(shards: tuple[SourceShard, ...], leased: str, start: str) -> list[str]:
    missing = missing_leases(shards, set(leased.split()), start=Position(start))
    return [lease.key for lease in missing]


@pytest.mark.parametrize("start", STARTS)
def test_no_shards_no_leases(start: str) -> None:
    """`testDetermineNewLeasesToCreateNoShards`: neither with leases of shards that are gone."""
    assert _created((), "", start) == []
    assert _created((), "gone", start) == []


@pytest.mark.parametrize("start", STARTS)
def test_shards_that_were_never_split(start: str) -> None:
    """`…0Leases0Reshards`, `…1ShardHasALease`: each open shard without a lease gets one, and begins where told."""
    shards = _shards("0", "1", "2")

    assert _created(shards, "", start) == ["0", "1", "2"]
    assert _created(shards, "1", start) == ["0", "2"]
    assert _created(shards, "0 1 2", start) == []


@pytest.mark.parametrize("start", STARTS)
def test_shard_with_a_lease_needs_none(start: str) -> None:
    """`testCheckIfDescendant…ForShardWithCurrentLease`: nor do its ancestors, which were done when it got it."""
    assert _created(_shards("p", "c < p"), "c", start) == []


@pytest.mark.parametrize("start", STARTS)
def test_trimmed_shard_is_no_lineage(start: str) -> None:
    """`testCheckIfDescendant…TrimmedShard`: what the stream lists no more has no records, and gets no lease."""
    assert _created(_shards("c < p"), "", start) == ["c"]
    assert _created(_shards("c < p"), "p", start) == ["c"]


@pytest.mark.parametrize(("start", "created"), [("TRIM_HORIZON", ["p", "q"]), ("LATEST", ["c"])])
def test_merge_of_two_without_leases(start: str, created: list[str]) -> None:
    """`testCheckIfDescendant…2P2ANotDescendant`: both parents from the oldest record, or the child from the latest."""
    assert _created(_shards("p", "q", "c < p q"), "", start) == created


@pytest.mark.parametrize("start", STARTS)
def test_merge_of_one_with_a_lease_and_one_without(start: str) -> None:
    """`testCheckIfDescendant…2P2A1PDescendant`: the child follows the one, so the other is processed before it, too."""
    assert _created(_shards("p", "q", "c < p q"), "p", start) == ["q"]


@pytest.mark.parametrize("start", STARTS)
def test_merge_of_two_with_leases(start: str) -> None:
    """`testCheckIfDescendant…2P2A2PDescendant`: it gets its lease when they end."""
    assert _created(_shards("p", "q", "c < p q"), "p q", start) == []


@pytest.mark.parametrize("start", STARTS)
def test_lease_of_an_ancestor_covers_all_its_descendants(start: str) -> None:
    """`…DescendantOfAnAncestor`: through generations without leases, splits and merges."""
    shards = _shards("g", "p < g", "q < g", "c < p q", "d < c", "e < c")

    assert _created(shards, "g", start) == []


@pytest.mark.parametrize(("start", "created"), [("TRIM_HORIZON", ["q"]), ("LATEST", ["d"])])
def test_sibling_of_a_descendant_has_a_lineage_of_its_own(start: str, created: list[str]) -> None:
    """`…GarbageLeases` with a split beside it: a lease of one branch says nothing of the other."""
    assert _created(_shards("p", "q", "c < p", "d < q"), "p", start) == created


def test_places_to_start_are_those_of_the_application() -> None:
    """`…Latest`, `…TrimHorizon`, `…AtTimestamp` of the child leases: each missing one begins where it is told."""
    for start in STARTS:
        missing = missing_leases(_shards("p", "q", "c < p q"), {"p"}, start=Position(start))
        assert [lease.checkpoint for lease in missing] == [Position(start)]
