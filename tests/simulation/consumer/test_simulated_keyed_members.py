"""Keyed shards on members under faults: the real runtime, on virtual time. Rules broken on purpose must be seen.

A few seeds run always; `make test-sim` runs two thousand.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import pytest

from broadsheet.consumer.keyed import committed_index, store, txn_time, variables
from broadsheet.consumer.keyed.committed_index import CommittedIndex
from broadsheet.consumer.keyed.recording import KeyedFiles
from broadsheet.consumer.keyed.registry import Registry
from broadsheet.consumer.keyed.row_cache import RowCache
from broadsheet.consumer.keyed.store import KeyedStore
from broadsheet.consumer.keyed.txn_time import TIMES, TimeState
from broadsheet.consumer.keyed.variables import VariableType
from broadsheet.consumer.stores.commit_thread import CommitSteps
from broadsheet.runtime.op_future import OpFuture, completed
from broadsheet.testing.allocator.kernel.command import run_seed
from broadsheet.testing.keyed.run import KeyedScenario, keyed_shards, simulate
from broadsheet.testing.keyed.stepped_commits import SteppedCommits
from broadsheet.testing.shards.scenario import ShardFault

# Many runs a test: on a busy machine they take their time.
pytestmark = pytest.mark.timeout(900)

Break = Callable[[pytest.MonkeyPatch], None]


@pytest.mark.parametrize("seed", range(3))
def test_keyed_shard_keeps_state_timers_and_times_under_faults(seed: int) -> None:
    """S0, S1, S4 and K1 to K4 hold at every row of the output and in the end, whatever stops and whatever clocks do."""
    outcome = run_seed(seed, keyed_shards())

    assert outcome.ok, outcome.text


def test_keyed_shard_runs_the_same_for_the_same_seed() -> None:
    """A failure can be shown again: no thread, clock or hash of the process has a part in a run."""
    first, second = simulate(5), simulate(5)

    assert first == second
    assert first.timers


def _timer_fires_again(patch: pytest.MonkeyPatch) -> None:
    def keep(self: KeyedStore, key: bytes, expiry_ms: int) -> None:
        """Remove the timer of neither the row nor the index."""

    patch.setattr(KeyedStore, "remove_timer", keep)


def _timers_lost_at_a_promotion(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(committed_index, "entries_of", lambda _: {})


def _expiry_not_recorded(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(variables, "expiry_of", lambda _: None)


def _times_not_restored(patch: pytest.MonkeyPatch) -> None:
    def meta(self: KeyedStore, name: bytes) -> bytes | None:
        return None if name == TIMES else real(self, name)

    real = KeyedStore.meta
    patch.setattr(KeyedStore, "meta", meta)


def _due_timers_read_before_the_rows(patch: pytest.MonkeyPatch) -> None:
    early: dict[KeyedStore, list[tuple[int, bytes]]] = {}

    def count_rows(self: KeyedStore, places: Sequence[bytes], ends: Sequence[int]) -> None:
        """Look before the first row is handled."""
        early[self] = list(chain.from_iterable(known(self, 1 << 62)))
        count(self, places, ends)

    def due_timers(self: KeyedStore, bound_ms: int) -> Iterator[list[tuple[int, bytes]]]:
        if self not in early:
            return known(self, bound_ms)
        return iter([[timer for timer in early.pop(self) if timer[0] <= bound_ms]])

    count, known = KeyedStore.count_rows, KeyedStore.due_timers
    patch.setattr(KeyedStore, "count_rows", count_rows)
    patch.setattr(KeyedStore, "due_timers", due_timers)


def _batch_time_follows_the_clock(patch: pytest.MonkeyPatch) -> None:
    def begun(before: TimeState, rules: Any, journals: Any, now_ms: int) -> TimeState:
        times = real(before, rules, journals, now_ms)
        times.batch_ms = now_ms
        return times

    real = txn_time.begun
    patch.setattr("broadsheet.consumer.keyed.run.begun", begun)


def _standby_goes_on_over_a_gap(patch: pytest.MonkeyPatch) -> None:
    def follow(index: CommittedIndex, frame: Any, rows: Any) -> None:
        if frame.number % 3:
            real(index, frame, rows)
        else:
            index.apply({}, frame.number, frame.checkpoint, frame.segments)

    real = CommittedIndex.follow
    patch.setattr(CommittedIndex, "follow", follow)


def _last_commits_are_not_read(patch: pytest.MonkeyPatch) -> None:
    def load(files: KeyedFiles, *, after: int = 0, **options: Any) -> Any:
        found = real(files, after=after, **options)
        return found if not after else ((frame, {}) for frame, _ in found)

    real = KeyedFiles.load
    patch.setattr(KeyedFiles, "load", load)


def _undone_changes_stay(patch: pytest.MonkeyPatch) -> None:
    shared = RowCache(4000)
    patch.setattr(store, "RowCache", lambda _: shared)


def _storm_bound_is_not_kept(patch: pytest.MonkeyPatch) -> None:
    def due_bound(state: TimeState, mode: Any) -> int | None:
        state.storm_ms = None
        return real(state, mode)

    real = txn_time.due_bound
    patch.setattr("broadsheet.consumer.keyed.run.due_bound", due_bound)


def _late_by_its_own_watermark(patch: pytest.MonkeyPatch) -> None:
    def begun(before: TimeState, *rest: Any) -> TimeState:
        times = real(before, *rest)
        times.late_ms = times.watermark_ms
        return times

    real = txn_time.begun
    patch.setattr("broadsheet.consumer.keyed.run.begun", begun)


def _told_durable_before_it_is(patch: pytest.MonkeyPatch) -> None:
    def start(self: SteppedCommits, steps: CommitSteps, wait_for: Any) -> OpFuture:
        def write() -> OpFuture:
            steps.write()
            return completed()

        return real(self, replace(steps, write=write), wait_for)

    real = SteppedCommits.start
    patch.setattr(SteppedCommits, "start", start)


def _rows_read_by_the_schema_of_today(patch: pytest.MonkeyPatch) -> None:
    def register(self: Registry, *declared: Any) -> VariableType:
        known = real(self, *declared)
        today = known.decoders[known.schema_id]
        return replace(known, decoders=dict.fromkeys(known.decoders, today))

    real = Registry.register
    patch.setattr(Registry, "register", register)


EITHER = KeyedScenario(write_seconds=(0.02, 0.2), settle_seconds_max=60.0)
PROCESSING = replace(EITHER, modes=("processing",))
EVENT = replace(EITHER, modes=("event",))
MOVED = replace(
    EITHER,
    standbys=(1, 2),
    faults={ShardFault.CRASH: 1.0, ShardFault.HAND_OVER: 1.0, ShardFault.LEASE_LOST: 1.0},
)
BEHIND = replace(
    MOVED,
    faults={ShardFault.BROKER_CUT: 1.0, ShardFault.BROKER_LOSSY: 1.0, ShardFault.HAND_OVER: 3.0},
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A rule that does not hold, and the invariants that are broken by it."""

    by: Break
    invariants: str
    scenario: KeyedScenario = EITHER
    seeds: int = 12
    """Within so many it is caught."""
    begin: int = 0
    """The first of them: one that shows it soon. A change of the simulator may move that, and then others are tried."""


BROKEN = [
    Broken(by=_timer_fires_again, invariants="K1 K2"),
    Broken(by=_timers_lost_at_a_promotion, invariants="S1 K2", scenario=MOVED),
    Broken(by=_expiry_not_recorded, invariants="K3"),
    Broken(by=_times_not_restored, invariants="K4"),
    Broken(by=_due_timers_read_before_the_rows, invariants="K1 K2"),
    Broken(by=_batch_time_follows_the_clock, invariants="K4"),
    Broken(by=_standby_goes_on_over_a_gap, invariants="K1 K2 K3", scenario=MOVED),
    Broken(
        by=_last_commits_are_not_read,
        invariants="S1 K1 K2 K3 K4",
        scenario=BEHIND,
        begin=11,
        seeds=60,
    ),
    Broken(by=_undone_changes_stay, invariants="K1 K2 K3"),
    Broken(by=_storm_bound_is_not_kept, invariants="K2", scenario=PROCESSING),
    Broken(by=_late_by_its_own_watermark, invariants="K4", scenario=EVENT),
    Broken(by=_rows_read_by_the_schema_of_today, invariants="S0 K1", scenario=MOVED),
    Broken(by=_told_durable_before_it_is, invariants="S1 K1 K2 K3 K4", scenario=MOVED),
]


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.by.__name__.strip("_"))
def test_rule_of_keyed_shards_that_is_broken_on_purpose_is_caught(
    broken: Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is not seen here would not be seen in the product either."""
    broken.by(monkeypatch)
    reports = (
        simulate(seed, broken.scenario) for seed in range(broken.begin, broken.begin + broken.seeds)
    )
    failed = next((report for report in reports if not report.ok), None)
    assert failed is not None, "no seed shows it"
    assert failed.violation is not None
    assert failed.violation.invariant in broken.invariants.split(), str(failed)
