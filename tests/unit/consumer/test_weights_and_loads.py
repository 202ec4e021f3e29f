"""Weights that shards declare, and reports of load as they stand in etcd."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from broadsheet.allocator.model import ItemId
from broadsheet.allocator.policy import AllocationPolicy, LoadPolicy
from broadsheet.allocator.state.load import Lag, MemberReport, ReplicaLoad, declared_weight
from broadsheet.consumer.member.config import MemberConfig
from broadsheet.consumer.member.load_report import RoundedReport, decode_report
from broadsheet.consumer.registry.key_space import ShardItem
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.labels import WEIGHT, label_set, weight_thousandths
from broadsheet.wire.load_pb2 import MemberLoad
from broadsheet.wire.shard_pb2 import ShardSpec
from broadsheet.wire.validation_shard import validate_shard_spec
from tests.support.members import shard

I, J = ItemId("shard-i"), ItemId("shard-j")  # noqa: E741 - items


def weighing(text: str) -> ShardSpec:
    """A shard whose label says this."""
    spec = shard("part-1", "test/source")
    spec.labels.CopyFrom(label_set({WEIGHT: text}))
    return spec


@pytest.mark.parametrize(
    ("text", "thousandths"),
    [("1", 1000), ("0.25", 250), ("2.5", 2500), ("0.001", 1), ("1000000", 1_000_000_000)],
)
def test_weight_label_is_a_decimal_in_thousandths(text: str, thousandths: int) -> None:
    """Exact, so that weights add up; the allocator finds it on the shard's item."""
    spec = weighing(text)

    validate_shard_spec(spec)

    assert weight_thousandths(spec.labels) == thousandths
    assert declared_weight(ShardItem.of(spec, hot_standbys_max=1)) == thousandths


@pytest.mark.parametrize(
    "text", ["", "0", "0.000", "-1", "+1", "1e3", "0.0001", "1000000.001", "1.", ".5", "nan", "١"]
)
def test_weight_label_that_is_no_weight_is_refused_by_name(text: str) -> None:
    """The error names the label and says what was expected."""
    spec = weighing(text)

    with pytest.raises(ValidationError, match=r"broadsheet\.dev/weight"):
        validate_shard_spec(spec)


def test_weight_label_is_absent_by_default() -> None:
    """A shard without it declares nothing, and measurements may speak for it."""
    spec = shard("part-1", "test/source")

    assert weight_thousandths(spec.labels) is None
    assert declared_weight(ShardItem.of(spec, hot_standbys_max=1)) is None


def test_report_survives_the_way_through_etcd() -> None:
    """Values arrive within the rounding; replicas with nothing to tell are left out."""
    told = RoundedReport(capacity=8).after(
        {I: ReplicaLoad(bytes_per_second=5e6, cpu_ratio=0.4), J: ReplicaLoad(cpu_ratio=1e-6)}
    )

    report = decode_report(told.encode())

    assert report.capacity == 8
    assert report.replicas.keys() == {I}
    assert report.replicas[I].bytes_per_second == pytest.approx(5e6, rel=0.13)
    assert report.replicas[I].cpu_ratio == pytest.approx(0.4, rel=0.13)


def test_report_tells_how_a_primary_is_behind_and_how_its_keys_share_its_load() -> None:
    """The autoscaler needs them; a median and a share that waver are told as they were."""
    quantiles = tuple(range(200, 3200, 200))
    load = ReplicaLoad(
        behind_seconds=20.0,
        median_group=1000,
        busiest_group_ratio=0.5,
        state_bytes=50 << 20,
        quantile_groups=quantiles,
    )
    told = RoundedReport().after({I: load})

    found = decode_report(told.encode()).replicas[I]

    assert found.behind_seconds == pytest.approx(20.0, rel=0.13)
    assert (found.median_group, found.busiest_group_ratio) == (1000, 0.5)
    assert found.state_bytes == pytest.approx(50 << 20, rel=0.5)
    assert found.quantile_groups == quantiles
    wavering = replace(
        load,
        median_group=1040,
        busiest_group_ratio=0.47,
        quantile_groups=tuple(group + 40 for group in quantiles),
    )
    assert told.after({I: wavering}).encode() == told.encode()
    moved = decode_report(told.after({I: replace(load, median_group=1100)}).encode())
    assert moved.replicas[I].median_group == 1100
    unknown = replace(load, median_group=0, busiest_group_ratio=0.0)
    assert decode_report(told.after({I: unknown}).encode()).replicas[I].median_group == 0


def test_report_does_not_change_with_noise() -> None:
    """What is nearly as it was told is told again to the byte; twice as much is not."""
    told = RoundedReport().after({I: ReplicaLoad(bytes_per_second=5e6, cpu_ratio=0.4)})

    for factor in (0.9, 1.1, 0.95, 1.05):
        told_next = told.after(
            {I: ReplicaLoad(bytes_per_second=5e6 * factor, cpu_ratio=0.4 * factor)}
        )
        assert told_next.encode() == told.encode()
    doubled = told.after({I: ReplicaLoad(bytes_per_second=1e7, cpu_ratio=0.4)})
    assert doubled.encode() != told.encode()
    assert told.after({}).encode() == RoundedReport().encode() == b""


def test_report_that_is_none_is_refused_by_field() -> None:
    """A member's mistake must not stop the leader; the error says where it is."""
    with pytest.raises(ValidationError, match=r"load: expected a broadsheet\.v1\.MemberLoad"):
        decode_report(b"\xff\xff")
    bad = MemberLoad(
        shards=[MemberLoad.ShardLoad(shard_id="s", cpu_seconds_per_second=float("nan"))]
    )
    with pytest.raises(ValidationError, match=r"shards\[0\]\.cpu_seconds_per_second"):
        decode_report(bad.SerializeToString())
    strange = MemberLoad(shards=[MemberLoad.ShardLoad(shard_id="s", median_group=4096)])
    with pytest.raises(ValidationError, match=r"shards\[0\]\.median_group"):
        decode_report(strange.SerializeToString())
    for quantiles in ([5], [*range(2, 16), 1], [0] * 15, [4096] * 15):
        strange = MemberLoad(shards=[MemberLoad.ShardLoad(shard_id="s", quantile_groups=quantiles)])
        with pytest.raises(ValidationError, match=r"shards\[0\]\.quantile_groups: expected"):
            decode_report(strange.SerializeToString())
    with pytest.raises(ValidationError, match="capacity: expected at most"):
        decode_report(MemberLoad(capacity=1 << 63).SerializeToString())
    assert decode_report(b"") == MemberReport()


@pytest.mark.parametrize(
    ("loads", "name"),
    [
        (LoadPolicy(bucket_ratio=1.0), "bucket_ratio"),
        (LoadPolicy(half_life_seconds=-1.0), "half_life_seconds"),
    ],
)
def test_member_config_checks_load_settings(loads: LoadPolicy, name: str) -> None:
    """Buckets of ratio 1 would never end; the error names the setting."""
    with pytest.raises(ValidationError, match=rf"allocation\.loads\.{name}"):
        MemberConfig(
            root="/test/root",
            suffix="member-one",
            broker_address="http://broker:8080",
            allocation=AllocationPolicy(loads=loads),
        )


def test_lags_are_told_where_anybody_would_act_upon_them() -> None:
    """A standby that is nearly there is not told; one that gets on is told again when it has half as much to play."""
    told = RoundedReport().after_lags({I: Lag(0.1, 1000), J: Lag(8.0, 64 << 20)})
    again = told.after_lags({J: Lag(7.0, 60 << 20)})
    later = again.after_lags({J: Lag(math.inf, 20 << 20)})

    assert decode_report(told.encode()).lags == {J: Lag(8.0, 64 << 20)}
    assert again.encode() == told.encode()
    assert decode_report(later.encode()).lags == {J: Lag(math.inf, 20 << 20)}
    assert later.after_lags({J: Lag(0.0, 0)}).encode() == RoundedReport().encode()
