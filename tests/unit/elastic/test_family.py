"""Families of shards: ranges that divide all groups of keys, and what an Apply may not do to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import pairwise

import pytest
from hypothesis import given, strategies as st

from broadsheet.consumer.elastic.family import (
    Ownership,
    check_change,
    check_family,
    is_fork,
    members_of,
)
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.key_range import (
    ALL_KEYS,
    GROUPS,
    KeyRange,
    group_of,
    key_range_of,
    range_labels,
    uncovered,
)
from broadsheet.wire.labels import FAMILY, FORK_OF, KEY_BEGIN, KEY_END, label_set
from broadsheet.wire.shard_pb2 import ApplyRequest, ShardSpec
from broadsheet.wire.validation_shard import validate_shard_spec


def _spec(
    shard_id: str, begin: int = 0, end: int = GROUPS, *, fork_of: str = "", family: str = "fam-1"
) -> ShardSpec:
    labels = dict(range_labels(KeyRange(begin, end))) | {FAMILY: family}
    if fork_of:
        labels[FORK_OF] = fork_of
    spec = ShardSpec(
        id=shard_id,
        labels=label_set(labels),
        recovery_log_prefix="logs",
        hint_prefix="/hints",
        sources=[ShardSpec.Source(journal="in/a")],
    )
    spec.max_txn_duration.FromSeconds(1)
    return spec


def _plain(shard_id: str) -> ShardSpec:
    spec = ShardSpec(id=shard_id, sources=[ShardSpec.Source(journal="in/a")])
    spec.max_txn_duration.FromSeconds(1)
    return spec


def _check(
    changes: Iterable[ApplyRequest.Change], now: Iterable[ShardSpec], family: str = "fam-1"
) -> None:
    specs: Mapping[str, ShardSpec] = {spec.id: spec for spec in now}
    check_change(tuple(changes), specs, {family: members_of(family, specs.values())})


def _upsert(spec: ShardSpec) -> ApplyRequest.Change:
    return ApplyRequest.Change(upsert=spec)


def test_group_of_a_key_is_the_documented_hash_for_ever() -> None:
    """Other languages compute it, and state is stored by it: the first bytes of XXH3-64 may never change."""
    assert group_of(b"") == 0x2D06800538D394C2 % 4096
    assert [group_of(key) for key in (b"\x01alice\x00\x00", b"\x01bob\x00\x00")] == [234, 2377]


@given(st.sets(st.integers(1, GROUPS - 1), max_size=20))
def test_ranges_that_are_cut_at_any_places_divide_all_groups(cuts: set[int]) -> None:
    """Each group is in exactly one range, and labels bring each range back."""
    bounds = [0, *sorted(cuts), GROUPS]
    ranges = [KeyRange(*pair) for pair in pairwise(bounds)]

    assert uncovered(reversed(ranges)) == ""
    assert all(sum(group in owned for owned in ranges) == 1 for group in range(GROUPS))
    assert [key_range_of(label_set(*range_labels(owned))) for owned in ranges] == ranges
    if cuts:
        assert "owned by no shard" in uncovered(ranges[1:])
        assert "owned by no shard" in uncovered(ranges[:-1])
        assert "owned twice" in uncovered([*ranges, ranges[0]])


@pytest.mark.parametrize(
    ("labels", "field"),
    [
        pytest.param({FAMILY: "fam-1", KEY_BEGIN: "800"}, KEY_BEGIN, id="three-digits"),
        pytest.param({FAMILY: "fam-1", KEY_BEGIN: "08AA"}, KEY_BEGIN, id="capitals"),
        pytest.param({FAMILY: "fam-1", KEY_END: "1001"}, KEY_END, id="beyond-the-last"),
        pytest.param({FAMILY: "fam-1", KEY_BEGIN: "0800", KEY_END: "0800"}, KEY_END, id="empty"),
        pytest.param({FAMILY: "fam-1", KEY_BEGIN: "1000"}, KEY_END, id="behind-the-last"),
        pytest.param({KEY_BEGIN: "0800"}, FAMILY, id="a-part-without-a-family"),
        pytest.param({FAMILY: "x"}, FAMILY, id="no-shard-id"),
        pytest.param({FAMILY: "fam-1", FORK_OF: "shard-1"}, FORK_OF, id="fork-of-itself"),
        pytest.param({FORK_OF: "shard-2"}, FORK_OF, id="fork-without-a-family"),
        pytest.param({FAMILY: "fam-1", FORK_OF: "shard-2"}, "recovery_log_prefix", id="no-log"),
    ],
)
def test_spec_with_a_malformed_label_of_keys_is_refused_by_its_name(
    labels: dict[str, str], field: str
) -> None:
    """A range that is read wrongly would hand rows to two shards, or to none."""
    spec = _plain("shard-1")
    spec.labels.CopyFrom(label_set(labels))

    with pytest.raises(ValidationError) as caught:
        validate_shard_spec(spec)
    assert field in str(caught.value)


def test_spec_without_labels_is_a_family_by_itself_with_all_keys() -> None:
    """Shards that were never split need no label."""
    validate_shard_spec(_plain("shard-1"))
    assert Ownership.of(_plain("shard-1")) == Ownership("shard-1", ALL_KEYS)


@pytest.mark.parametrize(
    "members",
    [
        pytest.param([_spec("shard-1", 0, 8)], id="gap-at-the-end"),
        pytest.param([_spec("shard-1", 0, 8), _spec("shard-2", 7)], id="overlap"),
        pytest.param([_spec("shard-1", 0, 8), _spec("shard-2", 9)], id="gap"),
        pytest.param([_spec("shard-1"), _spec("shard-2", fork_of="shard-3")], id="no-parent"),
        pytest.param(
            [
                _spec("shard-1", 0, 8),
                _spec("shard-2", 8),
                _spec("shard-3", 4, 9, fork_of="shard-1"),
            ],
            id="fork-of-more-than-the-parent-owns",
        ),
    ],
)
def test_family_whose_ranges_do_not_divide_the_keys_is_refused(members: list[ShardSpec]) -> None:
    """Each key has one owner, and a fork may only get what its parent has."""
    with pytest.raises(ValidationError):
        check_family(members)


def test_family_with_other_sources_in_one_shard_is_refused() -> None:
    """A source that only one shard reads would lose the keys of the others."""
    other = _spec("shard-2", 8)
    other.sources[0].journal = "in/b"
    with pytest.raises(ValidationError, match="sources"):
        check_family([_spec("shard-1", 0, 8), other])


def test_apply_that_makes_a_whole_family_at_once_is_accepted() -> None:
    """A user may begin with several ranges, before there is any state."""
    _check([_upsert(_spec("shard-1", 0, 8)), _upsert(_spec("shard-2", 8))], [])


@pytest.mark.parametrize(
    ("changes", "now"),
    [
        pytest.param([_upsert(_spec("shard-1", 0, 8))], [], id="half-a-family"),
        pytest.param(
            [_upsert(_spec("shard-1", 0, 9)), _upsert(_spec("shard-2", 9))],
            [_spec("shard-1", 0, 8), _spec("shard-2", 8)],
            id="ranges-moved-without-their-state",
        ),
        pytest.param([_upsert(_plain("shard-1"))], [_spec("shard-1", 0, 8)], id="labels-dropped"),
        pytest.param(
            [_upsert(_spec("shard-1", 0, 8)), _upsert(_spec("shard-2", 8))],
            [_plain("shard-1")],
            id="narrowed-by-hand",
        ),
        pytest.param(
            [ApplyRequest.Change(delete="shard-2")],
            [_spec("shard-1", 0, 8), _spec("shard-2", 8)],
            id="one-of-two-deleted",
        ),
        pytest.param(
            [ApplyRequest.Change(delete="shard-1")],
            [_spec("shard-1"), _spec("shard-2", 8, fork_of="shard-1")],
            id="parent-deleted-under-its-fork",
        ),
        pytest.param(
            [_upsert(_plain("fam-1"))],
            [_spec("fam-1"), _spec("shard-2", 8, fork_of="fam-1")],
            id="labels-dropped-while-a-fork-follows",
        ),
        pytest.param(
            [_upsert(_spec("shard-2", 8, fork_of="shard-1"))], [_spec("shard-1")], id="fork-by-hand"
        ),
        pytest.param(
            [_upsert(_spec("shard-2"))], [_spec("shard-1", 0, 8), _spec("shard-3", 8)], id="joins"
        ),
    ],
)
def test_apply_that_breaks_a_family_is_refused(
    changes: list[ApplyRequest.Change], now: list[ShardSpec]
) -> None:
    """Keys would be handled twice, or by nobody, or away from their state."""
    with pytest.raises(ValidationError):
        _check(changes, now)


@pytest.mark.parametrize(
    ("changes", "now"),
    [
        pytest.param(
            [ApplyRequest.Change(delete="shard-1"), ApplyRequest.Change(delete="shard-2")],
            [_spec("shard-1", 0, 8), _spec("shard-2", 8)],
            id="all-deleted",
        ),
        pytest.param(
            [_upsert(_spec("shard-1", 0, 8))], [_spec("shard-1", 0, 8), _spec("shard-2", 8)]
        ),
        pytest.param([_upsert(_spec("fam-1"))], [_plain("fam-1")], id="said-what-is-so"),
        pytest.param([_upsert(_plain("fam-1"))], [_spec("fam-1")], id="not-said-what-is-so"),
    ],
)
def test_apply_that_keeps_a_family_is_accepted(
    changes: list[ApplyRequest.Change], now: list[ShardSpec]
) -> None:
    """Other fields may change, and a family goes as a whole."""
    _check(changes, now)


def test_members_of_a_family_come_by_range_with_forks_last() -> None:
    """The table of keys is read in this order."""
    fork = _spec("shard-0", 9, fork_of="shard-2")
    found = members_of(
        "fam-1", [fork, _spec("shard-2", 8), _plain("else-1"), _spec("shard-1", 0, 8)]
    )
    assert [spec.id for spec in found] == ["shard-1", "shard-2", "shard-0"]
    assert [is_fork(spec) for spec in found] == [False, False, True]
