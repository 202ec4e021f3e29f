"""Measured loads: rounded, smoothed, and changed only by what persists."""

from __future__ import annotations

import pytest

from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.policy import LoadPolicy
from broadsheet.allocator.state.load import (
    IDLE,
    ItemWeights,
    MeasuredLoads,
    MemberReport,
    ReplicaLoad,
    Smoothed,
    bucket_of,
    declared_weight,
    held_bucket,
    value_of,
)
from tests.support.plain_values import PlainItem

A, B = MemberId("a", "a"), MemberId("b", "b")
I, J = ItemId("i"), ItemId("j")  # noqa: E741 - items
POLICY = LoadPolicy(
    measure=True, cpu_weight=1000, half_life_seconds=10, persist_seconds=100, bucket_ratio=2.0
)


def busy(cpu_ratio: float, *item_ids: ItemId, capacity: int = 0) -> MemberReport:
    """A report of items that each take so much CPU."""
    return MemberReport(
        capacity=capacity,
        replicas={item_id: ReplicaLoad(cpu_ratio=cpu_ratio) for item_id in item_ids},
    )


def test_quantise_noise_about_a_border_stays_where_it_was() -> None:
    """Values a little to either side of a border keep the bucket they had; a clear difference does not."""
    assert [bucket_of(value, 2.0, least=1.0) for value in (0.9, 1, 2, 2.9, 8)] == [IDLE, 0, 1, 2, 3]
    assert held_bucket(2, 2.7, 2.0, least=1.0) == 2
    assert held_bucket(1, 2.9, 2.0, least=1.0) == 1
    assert held_bucket(1, 4.0, 2.0, least=1.0) == 2
    assert held_bucket(IDLE, 1.2, 2.0, least=1.0) is IDLE
    assert held_bucket(0, 0.8, 2.0, least=1.0) == 0
    assert held_bucket(0, 0.5, 2.0, least=1.0) is IDLE
    assert (value_of(3, 2.0), value_of(IDLE, 2.0)) == (8.0, 0.0)


def test_smoothed_counts_half_after_a_half_life() -> None:
    """Twice the time, a quarter is left; no time, no change."""
    start = Smoothed(8.0, 100.0)

    assert start.after(0.0, 110.0, half_life_seconds=10).value == pytest.approx(4.0)
    assert start.after(0.0, 120.0, half_life_seconds=10).value == pytest.approx(2.0)
    assert start.after(0.0, 100.0, half_life_seconds=10).value == 8.0


def test_measured_loads_first_reports_are_taken_at_their_word() -> None:
    """A new leader goes on with what its predecessor used; the busiest replica counts, idle ones weigh 1."""
    loads = MeasuredLoads(POLICY)

    assert loads.observe({A: busy(0.5, I), B: busy(0.1, I)}, 0.0)

    assert loads.loads == {I: 512}
    assert loads.observe({A: busy(0.5, I), B: busy(0.0, J)}, 1.0) is False


def test_measured_loads_only_a_drift_that_persists_counts() -> None:
    """A burst of a minute changes nothing, its fading included; what lasts 100 s does."""
    loads = MeasuredLoads(POLICY)
    loads.observe({A: busy(0.5, I)}, 0.0)

    def report(cpu_ratio: float, begin: int, end: int) -> list[int]:
        """Report every 10 s; return when the load in force changed."""
        return [now for now in range(begin, end, 10) if loads.observe({A: busy(cpu_ratio, I)}, now)]

    assert report(4.0, 10, 70) == []
    assert report(0.5, 70, 200) == []
    assert loads.loads == {I: 512}
    changed = report(4.0, 200, 400)
    assert len(changed) == 1
    assert 300 <= changed[0] <= 330
    assert loads.loads == {I: 4096}


def test_measured_loads_new_item_waits_and_a_silent_one_keeps_its_load() -> None:
    """What is just starting says little; what moves is reported by nobody for a while; what is gone is forgotten."""
    loads = MeasuredLoads(POLICY)
    loads.observe({A: busy(0.5, I)}, 0.0)

    assert not loads.observe({A: busy(1.0, J)}, 10.0)
    assert loads.loads == {I: 512}
    assert loads.observe({A: busy(1.0, J)}, 110.0)
    assert loads.loads == {I: 512, J: 1024}
    loads.forget_all_but([J])
    assert loads.loads == {J: 1024}


def test_measured_loads_capacities_count_whether_or_not_loads_are_measured() -> None:
    """A declared capacity is an operator's word; with measuring off, loads are not even kept."""
    loads = MeasuredLoads(LoadPolicy())

    assert loads.observe({A: busy(9.0, I, capacity=7), B: busy(1.0, J)}, 0.0)

    assert loads.capacities == {A: 7}
    assert loads.loads is None
    assert loads.observe({B: busy(1.0, J)}, 1.0)
    assert loads.capacities == {}


def test_measured_loads_bytes_and_cpu_add_up() -> None:
    """Two megabytes a second at 100 a megabyte, and a tenth of a CPU at 1,000."""
    loads = MeasuredLoads(
        LoadPolicy(measure=True, cpu_weight=1000, megabyte_weight=100, bucket_ratio=1.0001)
    )
    loads.observe(
        {A: MemberReport(replicas={I: ReplicaLoad(bytes_per_second=2e6, cpu_ratio=0.1)})}, 0.0
    )

    assert loads.loads == {I: 300}


def test_weights_declared_ones_become_whole_numbers_as_small_as_can_be() -> None:
    """Whole weights are taken as they are, and nobody else is listed; a fraction makes every item's load larger."""
    assert ItemWeights(declared={I: 3000}).loads([I, J]) == {I: 3}
    assert ItemWeights(declared={I: 1500}).loads([I, J]) == {I: 3, J: 2}
    assert ItemWeights(declared={I: 125}).loads([I, J]) == {I: 1, J: 8}
    assert ItemWeights().loads([I, J]) == {}


def test_weights_declared_ones_come_before_measurements() -> None:
    """A declared weight of 2 is 200 beside measured loads; what is not measured yet weighs as a weight of 1."""
    weights = ItemWeights(
        declared={I: 2000}, measured={I: 5, J: 700}, policy=LoadPolicy(measure=True)
    )

    assert weights.loads([I, J, ItemId("k")]) == {I: 200, J: 700, "k": 100}


def test_declared_weight_of_a_value_that_knows_none_is_none() -> None:
    """Items need not know of weights."""
    assert declared_weight(PlainItem(1)) is None
