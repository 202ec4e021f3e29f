"""Shards that are split under faults: the real runtime, on virtual time. Rules broken on purpose must be seen.

A few seeds run always; `make test-sim` runs two thousand.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from broadsheet.allocator.errors import EtcdUnavailableError
from broadsheet.consumer.shard import live_shard
from broadsheet.consumer.shard.environment import ShardEnvironment
from broadsheet.consumer.shard.forking import stored_spec
from broadsheet.testing.allocator.kernel.command import run_seed
from broadsheet.testing.families import application
from broadsheet.testing.families.run import FamilyScenario, families, simulate
from broadsheet.testing.shards.scenario import ShardFault
from broadsheet.wire.shard_pb2 import ShardSpec

# Many runs a test: on a busy machine they take their time.
pytestmark = pytest.mark.timeout(900)

Break = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("seed", range(3))
def test_family_is_exactly_once_while_its_shards_are_split(seed: int) -> None:
    """S0 to S9 hold at every revision, every commit and in the end, whatever stops at a step of a split."""
    outcome = run_seed(seed, families())

    assert outcome.ok, outcome.text


def _child_keeps_intents(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(application, "drop_parents_intents", lambda _: None)


OFTEN_STRUCK = FamilyScenario(
    struck=0.9,
    split_seconds=(0.2, 1.0),
    write_seconds=(0.02, 0.2),
    steps=(2, 6),
    settle_seconds_max=60.0,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A rule that does not hold, and the invariant that is broken by it."""

    by: Break
    invariant: str
    seeds: int = 10
    """Within so many it is caught."""


BROKEN = [
    Broken(by=_child_keeps_intents, invariant="S6"),
]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.by.__name__.strip("_"))
def test_rule_of_splits_that_is_broken_on_purpose_is_caught(
    broken: Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not seen here would not be seen in the product either."""
    broken.by(monkeypatch)
    reports = (simulate(seed, OFTEN_STRUCK) for seed in range(broken.seeds))
    failed = next((report for report in reports if not report.ok), None)
    assert failed is not None, "no seed shows it"
    assert failed.violation is not None
    assert failed.violation.invariant == broken.invariant, str(failed)


def test_fork_whose_first_look_at_its_parent_fails_costs_an_attempt_not_the_member(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An etcd that does not answer when a replica begins to follow fails that attempt alone: it ended the member
    with all its shards before.
    """
    failed: list[str] = []

    async def first_fails(environment: ShardEnvironment, shard_id: str) -> tuple[ShardSpec, int]:
        if not failed:
            failed.append(shard_id)
            raise EtcdUnavailableError(("etcd",), "no answer")
        return await stored_spec(environment, shard_id)

    monkeypatch.setattr(live_shard, "stored_spec", first_fails)
    report = simulate(0, FamilyScenario(faults={ShardFault.SPEC_CHANGED: 1.0}, struck=0.0))

    assert report.ok, str(report)
    assert failed
    assert report.forks
