"""Load curves drive a model of a cluster: what is decided converges, and never flaps."""

from __future__ import annotations

import math
from collections import Counter
from itertools import pairwise
from random import Random

import pytest
from hypothesis import given, settings, strategies as st

from broadsheet.consumer.elastic.scaling import ScalingAction, ScalingRule
from broadsheet.consumer.elastic.scaling_policy import ScalingMode, ScalingPolicy
from tests.support.scaled_cluster import Family, Load, ScaledCluster, even, one_hot

HOUR = 3600.0
POLICY = ScalingPolicy(mode=ScalingMode.ACT, members_max=8, changes_per_hour_max=6)
CHANGES = (ScalingAction.SPLIT, ScalingAction.MERGE)


def _check_bounds(cluster: ScaledCluster) -> None:
    """What holds under any load."""
    policy = cluster.policy
    changes = cluster.decisions(*CHANGES)
    by_family: dict[str, list[float]] = {}
    for each in changes:
        by_family.setdefault(each.decision.family, []).append(each.at_seconds)
    for times in by_family.values():
        assert all(later - at >= policy.cool_down_seconds for at, later in pairwise(times))
    starts = [each.at_seconds for each in changes]
    for at in starts:
        assert sum(at <= each < at + HOUR for each in starts) <= policy.changes_per_hour_max
    sizes = Counter({family.name: len(family.shards) for family in cluster.families})
    assert max(sizes.values()) <= policy.family_shards_max
    for each in cluster.decisions(ScalingAction.SCALE):
        assert policy.members_min <= each.decision.members <= policy.members_max


def _constant(cores: float) -> Load:
    return lambda _: cores


@given(
    loads=st.lists(st.floats(0.0, 4.0), min_size=1, max_size=3),
    hot=st.floats(0.0, 0.9),
    cpu_part=st.sampled_from([1.0, 0.5, 0.1]),
)
@settings(max_examples=12, deadline=None)
def test_constant_load_ends_in_a_state_that_nothing_changes(
    loads: list[float], hot: float, cpu_part: float
) -> None:
    """After some hours nothing is decided any more, no shard that a split would help is busy, and nothing that was
    divided was joined again, whatever part of the work waits.
    """
    spread = one_hot(hot) if hot > 0.1 else even()
    families = [
        Family(f"f{at}", _constant(load), spread, cpu_part=cpu_part)
        for at, load in enumerate(loads)
    ]
    cluster = ScaledCluster(families, POLICY)
    cluster.run(8 * HOUR)
    _check_bounds(cluster)
    assert not cluster.decisions(ScalingAction.MERGE)
    before = len(cluster.decisions(*CHANGES, ScalingAction.SCALE))
    shards = sum(len(family.shards) for family in families)
    cluster.run(2 * HOUR)
    assert len(cluster.decisions(*CHANGES, ScalingAction.SCALE)) == before
    assert sum(len(family.shards) for family in families) == shards
    for family in families:
        for each in family.step(cluster.now, 5.0):
            assert (
                each.cpu_ratio <= POLICY.busy_cpu_ratio
                or each.busiest_group_ratio > POLICY.one_group_ratio_max
                or len(family.shards) == POLICY.family_shards_max
            )


@given(cores=st.floats(0.1, 5.0), noise=st.floats(0.0, 0.04), seed=st.integers(0, 1 << 30))
@settings(max_examples=12, deadline=None)
def test_noise_around_a_constant_load_moves_the_wanted_members_once_up_and_never_back(
    cores: float, noise: float, seed: int
) -> None:
    """The room that is kept before members are taken away is more than the noise: their number is found, and stays."""
    random = Random(seed)
    family = Family("f", lambda _: cores * (1.0 + random.uniform(-noise, noise)), cores_max=9.0)
    cluster = ScaledCluster([family], ScalingPolicy(members_max=16, family_shards_max=1))
    cluster.run(6 * HOUR)
    scales = [each.decision.members for each in cluster.decisions(ScalingAction.SCALE)]
    assert scales == sorted(scales)
    need = math.ceil(cores / 0.7)
    assert cluster.state.wanted_members in (need, math.ceil(cores * (1 + noise) / 0.7))


@pytest.mark.parametrize("period_seconds", [20.0, 120.0, 900.0, 6 * HOUR])
def test_waves_never_split_and_merge_the_same_keys_in_turn(period_seconds: float) -> None:
    """A wave that is shorter than the patience of a merge leaves what its crest made; a day's wave follows, but each
    merge comes only after half an hour of rest, so there is at most one direction change a wave.
    """
    family = Family("f", lambda now: 1.0 + math.sin(2 * math.pi * now / period_seconds))
    cluster = ScaledCluster([family], POLICY)
    cluster.run(12 * HOUR)
    _check_bounds(cluster)
    changes = [each.decision.action for each in cluster.decisions(*CHANGES)]
    turns = sum(before is not after for before, after in pairwise(changes))
    assert turns <= 2 * 12 * HOUR / max(period_seconds, 2 * POLICY.idle_seconds)
    if period_seconds < POLICY.idle_seconds:
        assert ScalingAction.MERGE not in changes


def test_burst_shorter_than_the_patience_changes_nothing() -> None:
    """A start, or a catch-up, is no load."""
    family = Family("f", lambda now: 0.95 if now % 600.0 < 25.0 else 0.3)
    cluster = ScaledCluster([family], POLICY, members=1)
    cluster.run(2 * HOUR)
    assert not cluster.decisions(*CHANGES)
    assert cluster.state.wanted_members == 1


def test_one_hot_key_is_told_once_an_hour_and_never_split() -> None:
    """Its shard would stay as busy as it is."""
    cluster = ScaledCluster([Family("f", _constant(0.95), one_hot(0.8))], POLICY)
    cluster.run(3 * HOUR)
    warnings = cluster.decisions(ScalingAction.WARN)
    assert {each.decision.rule for each in warnings} == {ScalingRule.ONE_HOT_KEY}
    assert 2 <= len(warnings) <= 3
    assert not cluster.decisions(*CHANGES)


def test_skewed_load_is_cut_at_its_median() -> None:
    """A cut at the middle of the groups would leave nearly all of it on one side."""
    spread = even() * 0.2
    spread[:64] += 0.8 / 64
    family = Family("f", _constant(0.9), spread)
    cluster = ScaledCluster([family], POLICY)
    cluster.run(600.0)
    (split,) = cluster.decisions(ScalingAction.SPLIT)
    assert split.decision.at_group < 64
    assert max(each.cpu_ratio for each in family.step(cluster.now, 5.0)) < 0.5


def test_shard_that_waits_is_split_when_it_falls_behind_and_merged_only_when_input_falls() -> None:
    """Its CPU is idle all the time: by CPU alone the halves would be merged, fall behind, and be split for ever."""
    hours = 4
    family = Family("f", lambda now: 1.2 if now < hours * HOUR else 0.3, cpu_part=0.05)
    cluster = ScaledCluster([family], POLICY)
    cluster.run(hours * HOUR)
    assert [each.decision.rule for each in cluster.decisions(*CHANGES)] == [
        ScalingRule.BEHIND_AND_GROWING
    ]
    cluster.run(hours * HOUR)
    assert [each.decision.action for each in cluster.decisions(*CHANGES)] == [
        ScalingAction.SPLIT,
        ScalingAction.MERGE,
    ]


def test_members_follow_a_day_up_at_once_and_down_after_ten_minutes() -> None:
    """Up within a minute of the load, so that work does not wait; down late, because a drain costs more than idling."""
    family = Family("f", lambda now: 3.0 if HOUR <= now < 2 * HOUR else 0.5, cores_max=9.0)
    cluster = ScaledCluster([family], ScalingPolicy(members_max=8, family_shards_max=1))
    cluster.run(3 * HOUR)
    scales = cluster.decisions(ScalingAction.SCALE)
    assert [each.decision.members for each in scales] == [1, 5, 1]
    _, up, down = (each.at_seconds for each in scales)
    assert HOUR + 30 <= up <= HOUR + 40
    assert 2 * HOUR + 600 <= down <= 2 * HOUR + 610
