"""What a new leader takes over of its predecessors' decisions, and how load by group of keys is summed up."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from broadsheet.allocator.leader.move_records import (
    DecisionOutcome,
    DecisionRecord,
    MoveLogEntry,
    encoded,
)
from broadsheet.allocator.ops import KeyValue
from broadsheet.consumer.elastic.group_load import UNKNOWN, GroupLoad, GroupSummary, summary_of
from broadsheet.consumer.elastic.scaling import (
    ClusterSample,
    ScalingAction,
    ScalingRule,
    ScalingState,
    ShardSample,
    decide,
    refused,
)
from broadsheet.consumer.elastic.scaling_policy import ScalingMode, ScalingPolicy
from broadsheet.consumer.member.autoscaler import PastDecision, state_of
from broadsheet.consumer.member.config import MemberConfig
from broadsheet.consumer.registry.move_messages import move_name, move_reason, shard_moves
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.key_range import ALL_KEYS, GROUPS, KeyRange

POLICY = ScalingPolicy(mode=ScalingMode.ACT)
BUSY = ShardSample(shard_id="a", family="a", owned=ALL_KEYS, cpu_ratio=0.9, median_group=100)


def _sample(at: float, *shards: ShardSample, under_way: int = 0) -> ClusterSample:
    cpu = sum(each.cpu_ratio for each in shards)
    return ClusterSample(
        at_seconds=at, shards=shards, cpu_ratio=cpu, members=2, under_way=under_way
    )


def _stored(value: bytes) -> KeyValue:
    return KeyValue(key=b"k", value=value, create_revision=5, mod_revision=5, version=1, lease=0)


def _logged(
    at: float, action: str, item: str = "a", *, rule: str = "busy-cpu", **inputs: float
) -> PastDecision:
    decision = DecisionRecord(
        action=action, item=item, rule=rule, inputs=inputs, outcome=DecisionOutcome.ORDERED
    )
    return PastDecision(at_seconds=at, decision=decision)


def test_new_leader_keeps_the_cool_down_and_the_wanted_members_of_the_log() -> None:
    """The family of a shard that was split two minutes ago rests for three more, whoever leads; members are not lowered
    to those that happen to be there.
    """
    log = [_logged(-500.0, "scale", "", members=5.0), _logged(-120.0, "split", "a-0800")]
    state = state_of(log, {"a": "a", "a-0800": "a"})
    policy = ScalingPolicy(mode=ScalingMode.ACT, members_max=8)
    made = []
    for at in range(0, 300, 5):
        state, decisions = decide(_sample(at, BUSY), state, policy)
        made += [(at, each.action) for each in decisions]
    assert made == [(180, ScalingAction.SPLIT)]
    assert state.wanted_members == 5


def test_family_cools_down_after_a_change_that_an_operator_ordered() -> None:
    """The busy shard is split by hand, and its lower half is merged with another one later: each time the family rests,
    and streaks start over. Else the next sample would undo, or repeat, what was just done.
    """
    state, made = ScalingState(), []
    for at in range(0, 800, 5):
        end = GROUPS if at < 50 else 0x800 if at < 200 else 0x900
        busy = replace(BUSY, owned=KeyRange(0, end))
        others = (
            [] if end == GROUPS else [ShardSample(shard_id="b", family="a", owned=KeyRange(end))]
        )
        state, decisions = decide(_sample(at, busy, *others), state, POLICY)
        made += [(at, each.action) for each in decisions]
    assert made == [(500, ScalingAction.SPLIT)]


def test_shard_that_is_paused_and_resumed_is_no_change_of_its_family() -> None:
    """Its range is the one that it had, so others of its family are split when they are due."""
    state, made = ScalingState(), []
    half, other = KeyRange(0, 0x800), KeyRange(0x800)
    for at in range(0, 100, 5):
        there = [] if 20 <= at < 40 else [ShardSample(shard_id="b", family="a", owned=other)]
        sample = _sample(at, replace(BUSY, owned=half), *there)
        state, decisions = decide(sample, state, POLICY)
        made += [(at, each.action) for each in decisions]
    assert made == [(60, ScalingAction.SPLIT)]


def test_new_leader_repeats_no_refusal_within_the_hour_and_knows_what_fell_behind() -> None:
    """Merges of a family that was split because it fell behind wait until it gets less."""
    log = [
        _logged(-9000.0, "split", rule="behind-and-growing", family_bytes_per_s=1e6),
        PastDecision(
            at_seconds=-1000.0,
            decision=DecisionRecord(
                action="split",
                item="a",
                rule="busy-cpu",
                inputs={},
                outcome=DecisionOutcome.REFUSED,
                reason="no log",
            ),
        ),
    ]
    state = state_of(log, {"a": "a"})
    assert state.behind_rates == {"a": 1e6}
    state, decisions = decide(_sample(0.0, BUSY), state, POLICY)
    state, decisions = decide(_sample(100.0, BUSY), state, POLICY)
    assert not decisions
    _, decisions = decide(_sample(2700.0, BUSY), state, POLICY)
    assert [each.action for each in decisions] == [ScalingAction.SPLIT]


def test_refused_change_starts_no_cool_down_and_is_not_decided_again_within_the_hour() -> None:
    """Nothing was changed, so others of the family may be; the same one would be refused again."""
    state, _ = decide(_sample(0.0, BUSY), ScalingState(), POLICY)
    state, (split,) = decide(_sample(60.0, BUSY), state, POLICY)
    assert (split.rule, split.at_group) == (ScalingRule.BUSY_CPU, 100)
    state = refused(state, split)
    assert (state.changes, state.told) == ((), ((60.0, "a"),))
    for at in (65.0, 130.0, 500.0):
        state, decisions = decide(_sample(at, BUSY), state, POLICY)
        assert not decisions


def test_nothing_is_changed_while_a_split_is_under_way() -> None:
    """One change in the cluster at a time, also one that an operator ordered."""
    state, _ = decide(_sample(0.0, BUSY), ScalingState(), POLICY)
    state, decisions = decide(_sample(60.0, BUSY, under_way=1), state, POLICY)
    assert not decisions
    _, decisions = decide(_sample(65.0, BUSY), state, POLICY)
    assert [each.action for each in decisions] == [ScalingAction.SPLIT]


def test_idle_neighbours_are_named_for_a_merge_lower_one_first() -> None:
    """Of two that touch and have little state; not of others."""
    low = ShardSample(shard_id="b", family="f", owned=KeyRange(0, 1024), cpu_ratio=0.05)
    high = ShardSample(shard_id="a", family="f", owned=KeyRange(1024, 2048), cpu_ratio=0.05)
    large = ShardSample(
        shard_id="c", family="f", owned=KeyRange(2048, GROUPS), state_bytes=65 << 20
    )
    shards = (large, high, low)
    state, _ = decide(_sample(0.0, *shards), ScalingState(), POLICY)
    _, (merge,) = decide(_sample(1800.0, *shards), state, POLICY)
    assert (merge.action, merge.shard_id, merge.absorbed_id) == (ScalingAction.MERGE, "b", "a")


def test_group_load_cuts_where_the_larger_half_is_least_and_names_the_busiest() -> None:
    """Also if the busiest group is at a border of the range; with few rows nothing is known."""
    rows = np.zeros(GROUPS)
    rows[[10, 11, 12]] = 400.0, 400.0, 800.0
    expected = {
        ALL_KEYS: GroupSummary(12, 0.5, (11,) * 4 + (12,) * 4 + (13,) * 7),
        KeyRange(11, 13): GroupSummary(12, 800 / 1200, (12,) * 15),
        KeyRange(12, 13): UNKNOWN,
    }
    assert {owned: summary_of(rows, owned) for owned in expected} == expected
    rows[12] = 8000.0
    assert summary_of(rows, KeyRange(12, 13)) == GroupSummary(0, 1.0)
    assert summary_of(rows, KeyRange(12, GROUPS)) == GroupSummary(13, 1.0, (13,) * 15)


def test_group_load_tells_where_sixteenths_of_it_begin() -> None:
    """Even load has even parts; what is busy has more of them."""
    rows = np.ones(GROUPS)
    assert summary_of(rows, ALL_KEYS).quantile_groups == tuple(range(256, 4096, 256))
    rows[:1024] = 13.0
    quantiles = summary_of(rows, ALL_KEYS).quantile_groups
    assert sum(group <= 1024 for group in quantiles) == 13
    assert list(quantiles) == sorted(quantiles)


def test_group_load_forgets_and_survives_an_attempt_that_begins_at_zero() -> None:
    """Counters only grow within an attempt."""
    load, counts = GroupLoad(), np.zeros(GROUPS, np.int64)
    counts[5] = 4000
    load.observe(counts, 60.0)
    load.observe(counts, 60.0)
    assert load.rows[5] == 2000.0
    again = np.zeros(GROUPS, np.int64)
    again[6] = 10
    load.observe(again, 60.0)
    assert (load.rows[5], load.rows[6]) == (1000.0, 10.0)


def test_decision_is_stored_and_listed_beside_moves_with_what_it_was_made_on() -> None:
    """People read it in one line; an entry of moves alone is as it was, byte for byte."""
    decision = DecisionRecord(
        action="split",
        item="a",
        rule="busy-cpu",
        inputs={"cpu": 0.81234, "behind_s": 3.0},
        outcome=DecisionOutcome.REFUSED,
        reason="shard a has no recovery log",
    )
    entry = MoveLogEntry(at_milliseconds=1000, writer="z#m", epoch=7, moves=(), decision=decision)
    (move,) = shard_moves(_stored(encoded(entry)))

    assert (move.shard, move.member, move.slot, move.from_slot) == ("a", "", -1, -1)
    assert (move.revision, move.epoch, move.writer) == (5, 7, "z#m")
    assert move_name(move) == "split"
    assert move_reason(move) == (
        "busy-cpu (behind_s=3 cpu=0.8123), refused: shard a has no recovery log"
    )
    plain = MoveLogEntry(at_milliseconds=1000, writer="z#m", moves=())
    assert encoded(plain) == b'{"at_milliseconds":1000,"writer":"z#m","moves":[]}'


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"members_min": 0}, "scaling.members_min"),
        ({"members_min": 3, "members_max": 2}, "scaling.members_max"),
        ({"sample_seconds": 0.0}, "scaling.sample_seconds"),
        ({"idle_cpu_ratio": 0.4}, "scaling.idle_cpu_ratio"),
        ({"members_slack_ratio": 1.0}, "scaling.members_slack_ratio"),
    ],
)
def test_policy_out_of_bounds_is_refused_by_name(change: dict[str, float], field: str) -> None:
    """A policy that would flap, or never decide, does not start."""
    policy = ScalingPolicy(**change)  # type: ignore[arg-type]  # Names of numbers.
    with pytest.raises(ValidationError) as error:
        MemberConfig(root="/r", suffix="member", broker_address="http://b:1", scaling=policy)
    assert error.value.field_path == field
