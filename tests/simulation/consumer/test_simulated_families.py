"""Shards that are split and merged under faults: the real runtime, on virtual time. Broken rules are seen.

A few seeds and rules run always; `make test-sim` runs two thousand seeds, and `make nightly-elastic` breaks all rules.
What the transactions compare is broken in tests/unit/elastic, one comparison at a time.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pytest

from broadsheet.allocator.errors import EtcdUnavailableError
from broadsheet.allocator.etcd.api import Etcd
from broadsheet.allocator.keys import Keys
from broadsheet.allocator.model import Assignment
from broadsheet.allocator.ops import TxnCheckpoint
from broadsheet.consumer.elastic.flip import Flip, MergeFlip, flip_txn, merge_flip_txn
from broadsheet.consumer.elastic.fork import hold_key
from broadsheet.consumer.errors import SplitDelayedError
from broadsheet.consumer.recoverylog.hint_store import rotate_backup_hints
from broadsheet.consumer.recoverylog.hints import history_of, recovery_log_of
from broadsheet.consumer.recoverylog.playback import FileChange, Playback
from broadsheet.consumer.recoverylog.player import Player
from broadsheet.consumer.shard import absorbing, forking, hint_keeper, holding, live_shard
from broadsheet.consumer.shard.absorbing import Absorbing, TakenRows
from broadsheet.consumer.shard.environment import ShardEnvironment
from broadsheet.consumer.shard.forking import stored_spec
from broadsheet.consumer.shard.input_queue import InputBound
from broadsheet.consumer.shard.primary import PrimaryAttempt
from broadsheet.consumer.shard.recovery import Recovery
from broadsheet.testing.allocator.kernel.command import run_seed
from broadsheet.testing.families import application
from broadsheet.testing.families.run import FamilyScenario, Strike, families, simulate
from broadsheet.testing.shards.scenario import ShardFault
from broadsheet.wire.recorded_op_pb2 import FSMHints
from broadsheet.wire.shard_pb2 import ShardSpec

# Many runs a test: on a busy machine they take their time.
pytestmark = pytest.mark.timeout(900)

Break = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("seed", range(3))
def test_family_is_exactly_once_while_its_shards_are_split_and_merged(seed: int) -> None:
    """S0 to S9 hold at every revision, every commit and in the end, whatever stops at a step of a split or a merge."""
    outcome = run_seed(seed, families())

    assert outcome.ok, outcome.text


def _child_keeps_intents(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(application, "drop_parents_intents", lambda _: None)


def _fork_does_not_compare_its_parent(patch: pytest.MonkeyPatch) -> None:
    def blind(flip: Flip, keys: Keys) -> TxnCheckpoint:
        prepared, hold = flip.prepared, hold_key(keys.root, flip.parent.id)
        return _without(flip_txn(flip, keys), {prepared.assignment.key, hold})

    patch.setattr(forking, "flip_txn", blind)


def _merge_does_not_compare_the_absorbed(patch: pytest.MonkeyPatch) -> None:
    def blind(flip: MergeFlip, keys: Keys) -> TxnCheckpoint:
        prepared, hold = flip.prepared, hold_key(keys.root, flip.absorbed.id)
        return _without(merge_flip_txn(flip, keys), {prepared.assignment.key, hold})

    patch.setattr(absorbing, "merge_flip_txn", blind)


def _without(checkpoint: TxnCheckpoint, keys: set[bytes]) -> TxnCheckpoint:
    kept = tuple(each for each in checkpoint.compares if each.key not in keys)
    return replace(checkpoint, compares=kept)


def _parent_goes_on_when_its_time_is_over(patch: pytest.MonkeyPatch) -> None:
    async def over(environment: ShardEnvironment, shard_id: str, hold: bytes) -> bool:
        del environment, shard_id, hold
        return True

    patch.setattr(holding, "release_hold", over)


def _survivor_leaves_out_the_last_rows(patch: pytest.MonkeyPatch) -> None:
    async def nothing(*_: object) -> None:
        pass

    patch.setattr(Absorbing, "take_last", nothing)


def _shards_only_say_that_they_stand_at_one_place(patch: pytest.MonkeyPatch) -> None:
    def bound(attempt: PrimaryAttempt, through: Mapping[str, int]) -> InputBound:
        said = InputBound(through or stands(attempt, {}).through)
        said.reached.set()
        return said

    stands = PrimaryAttempt.bound
    patch.setattr(PrimaryAttempt, "bound", bound)


def _player_overruns_the_mark(patch: pytest.MonkeyPatch) -> None:
    """Operations behind the mark are a parent's that rests no more, so its flip fails: no fork is ever committed."""

    def feed(playback: Playback, offset: int, content: bytes) -> list[FileChange]:
        mark, playback.mark = playback.mark, ""
        is_behind = mark in playback.fsm.properties
        changes = fed(playback, offset, content)
        playback.mark, playback.marked = mark, is_behind
        return changes

    fed = Playback.feed
    patch.setattr(Playback, "feed", feed)


def _player_stops_short_of_the_mark(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Player, "stop_at_mark", lambda player, _: player.stop_at_head())


def _backups_have_hints_of_the_parent_s_log(patch: pytest.MonkeyPatch) -> None:
    async def rotate(
        etcd: Etcd, spec: ShardSpec, assignment: Assignment, recovered: FSMHints
    ) -> None:
        parents = history_of(recovered) - {recovery_log_of(spec)}
        if parents:
            recovered = FSMHints.FromString(recovered.SerializeToString())
            recovered.log = min(parents)
        await rotate_backup_hints(etcd, spec, assignment, recovered)

    patch.setattr(hint_keeper, "rotate_backup_hints", rotate)


def _every_other_flip_of_a_merge_is_late(patch: pytest.MonkeyPatch) -> list[bool]:
    """Fail a flip, and have its request arrive when the survivor reads on; return of each whether it was refused."""
    flips: list[MergeFlip] = []
    late: list[MergeFlip] = []
    refused: list[bool] = []

    async def flip(absorbing: Absorbing, flip: MergeFlip) -> None:
        flips.append(flip)
        if len(flips) % 2:
            late.append(flip)
            raise EtcdUnavailableError(("etcd",), "no answer")
        await flipped(absorbing, flip)

    async def copy(absorbing: Absorbing, rows: TakenRows, recovery: Recovery) -> None:
        while late:
            try:
                await flipped(absorbing, late.pop())
            except SplitDelayedError:
                refused.append(True)
            else:
                refused.append(False)
        await copied(absorbing, rows, recovery)

    flipped, copied = Absorbing.flip, Absorbing.copy
    patch.setattr(Absorbing, "flip", flip)
    patch.setattr(Absorbing, "copy", copy)
    return refused


def _survivor_keeps_the_hold(patch: pytest.MonkeyPatch) -> None:
    async def kept(environment: ShardEnvironment, shard_id: str, hold: bytes) -> bool:
        del environment, shard_id, hold
        return True

    _every_other_flip_of_a_merge_is_late(patch)
    patch.setattr(absorbing, "release_hold", kept)


OFTEN_STRUCK = FamilyScenario(
    struck=0.9,
    split_seconds=(0.2, 1.0),
    write_seconds=(0.02, 0.2),
    steps=(4, 8),
    settle_seconds_max=60.0,
)
OFTEN_MERGED = replace(OFTEN_STRUCK, merged=0.9)
ONLY_MERGED = replace(OFTEN_STRUCK, struck=0.0, merged=0.9, steps=(8, 12))
OFTEN_PAUSED = replace(
    OFTEN_STRUCK,
    strikes=(Strike.PAUSE,),
    merged=0.9,
    faults={ShardFault.SPEC_CHANGED: 1.0, ShardFault.ETCD_LOSSY: 0.5},
    steps=(8, 12),
)
"""Who is paused for longer than another one waits for it goes on with what was decided without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A rule that does not hold, and the invariants of which one is broken by it."""

    by: Break
    invariants: str
    scenario: FamilyScenario = OFTEN_STRUCK
    seeds: int = 40
    """Within so many it is caught."""
    is_quick: bool = False
    """It is caught so soon that each run of the tests can afford it."""


BROKEN = [
    Broken(by=_child_keeps_intents, invariants="S6", is_quick=True),
    Broken(by=_fork_does_not_compare_its_parent, invariants="S1 S6 S3", is_quick=True),
    Broken(by=_parent_goes_on_when_its_time_is_over, invariants="S1 S6"),
    Broken(by=_merge_does_not_compare_the_absorbed, invariants="S1 S6 S3", scenario=OFTEN_PAUSED),
    Broken(by=_player_overruns_the_mark, invariants="S1"),
    Broken(by=_player_stops_short_of_the_mark, invariants="S1 S3 S6", is_quick=True),
    Broken(by=_backups_have_hints_of_the_parent_s_log, invariants="S0", is_quick=True),
    Broken(by=_survivor_keeps_the_hold, invariants="S1 S3 S6", scenario=ONLY_MERGED, is_quick=True),
    Broken(by=_survivor_leaves_out_the_last_rows, invariants="S1 S3"),
    Broken(
        by=_shards_only_say_that_they_stand_at_one_place,
        invariants="S1 S6",
        scenario=OFTEN_MERGED,
    ),
]
_ALL = os.environ.get("BROKEN_RULES", "") == "all"


@pytest.mark.parametrize(
    "broken",
    [each for each in BROKEN if _ALL or each.is_quick],
    ids=lambda broken: broken.by.__name__.strip("_"),
)
def test_rule_of_splits_and_merges_that_is_broken_on_purpose_is_caught(
    broken: Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not seen here would not be seen in the product either."""
    broken.by(monkeypatch)
    reports = (simulate(seed, broken.scenario) for seed in range(broken.seeds))
    failed = next((report for report in reports if not report.ok), None)
    assert failed is not None, "no seed shows it"
    assert failed.violation is not None
    assert failed.violation.invariant in broken.invariants.split(), str(failed)


def test_flip_of_a_merge_that_arrives_when_the_survivor_reads_on_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The survivor has deleted the other shard's hold by then, though that one rests for a while yet."""
    refused = _every_other_flip_of_a_merge_is_late(monkeypatch)

    report = simulate(0, ONLY_MERGED)

    assert report.ok, str(report)
    assert refused
    assert all(refused)


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
