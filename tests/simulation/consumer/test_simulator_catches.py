"""Rules of exactly-once are broken on purpose, one at a time: the simulator must see it, within a few seeds.

What is not caught here would not be caught in the product either. Rules of the hand-over alone are broken in
tests/model, where every course is looked at; that a successor acknowledges again shows where the intents carry
messages alone, for it also rolls back to the same clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

import pytest

from broadsheet.allocator.ops import Put
from broadsheet.broker.append_order import AppendTurn
from broadsheet.consumer.recoverylog import log_writer
from broadsheet.consumer.recoverylog.foreign_bytes import Examined
from broadsheet.consumer.recoverylog.recorder import Recorder
from broadsheet.consumer.shard import (
    callbacks,
    primary,
    replica_status,
    transaction_machine,
)
from broadsheet.consumer.shard.rollback.keeper import Rollbacks
from broadsheet.consumer.shard.transaction_machine import TransactionMachine
from broadsheet.journals.append_fence import WriterEpochRegister
from broadsheet.journals.append_service import AppendService
from broadsheet.journals.message.checkpoint import EncodedCheckpoint, build_checkpoint
from broadsheet.journals.message.sequencer import Sequencer
from broadsheet.runtime.op_future import completed
from broadsheet.testing.shards import broker
from broadsheet.testing.shards.history_checker import OUTPUTS
from broadsheet.testing.shards.run import simulate
from broadsheet.testing.shards.scenario import ShardFault, ShardReport, ShardScenario
from broadsheet.testing.shards.stores import FencedTable, Row, State
from broadsheet.wire.journal_pb2 import LabelSelector, Status
from broadsheet.wire.shard_pb2 import Checkpoint

# Many runs a test: on a busy machine they take their time.
pytestmark = pytest.mark.timeout(900)

Break = Callable[[pytest.MonkeyPatch], None]

EITHER = ShardScenario(settle_seconds_max=60.0)
RECORDED = replace(EITHER, recorded=1.0)
IN_A_TABLE = replace(EITHER, recorded=0.0)


def _no_fence(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(log_writer, "fence_check", lambda _: LabelSelector())
    _fence_not_seen(patch)


def _fence_not_seen(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(log_writer, "holds_fence", lambda _, __: True)
    # What a successor recorded between our appends would be seen, too.
    patch.setattr(log_writer, "examined", lambda *_: Examined(True, 0, foreign=False))


def _fence_never_raised(patch: pytest.MonkeyPatch) -> None:
    def restore(table: FencedTable, fqn: str) -> Row:
        row = table.rows.setdefault(fqn, Row())
        return Row(row.fence, dict(row.state), row.checkpoint, dict(row.segments))

    patch.setattr(FencedTable, "restore", restore)


def _fence_not_compared(patch: pytest.MonkeyPatch) -> None:
    def commit(
        table: FencedTable, fqn: str, fence: int, state: State, checkpoint: EncodedCheckpoint
    ) -> None:
        real(table, fqn, table.rows[fqn].fence, state, checkpoint)

    real = FencedTable.commit
    patch.setattr(FencedTable, "commit", commit)


def _sequencer_forgets(patch: pytest.MonkeyPatch) -> None:
    def forgetful(_: object, **bounds: Any) -> Sequencer:
        return Sequencer({}, **bounds)

    patch.setattr(primary, "Sequencer", forgetful)


def _no_intents(patch: pytest.MonkeyPatch) -> None:
    def without(sources: Mapping[str, Checkpoint.Source], *_: Mapping[str, bytes]) -> Checkpoint:
        return build_checkpoint(sources, {})

    patch.setattr(transaction_machine, "build_checkpoint", without)
    patch.setattr(callbacks, "build_checkpoint", without)


def _acknowledges_at_once(patch: pytest.MonkeyPatch) -> None:
    def early(service: AppendService, journal: str, *content: Any, **options: Any) -> Any:
        if journal in OUTPUTS:
            options.pop("after", None)
        return real(service, journal, *content, **options)

    real = AppendService.append
    patch.setattr(AppendService, "append", early)


def _commits_before_it_published(patch: pytest.MonkeyPatch) -> None:
    nothing: frozenset[Future[Any]] = frozenset()
    patch.setattr(AppendService, "pending", lambda _: nothing)


def _logs_before_it_published(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Recorder, "after", lambda _, __: None)


def _turns_not_kept(patch: pytest.MonkeyPatch) -> None:
    async def at_once(_: AppendTurn) -> None:
        return

    patch.setattr(AppendTurn, "wait", at_once)


def _any_success_is_proof(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(broker, "is_proven", lambda _, status, __: status == Status.OK)


def _one_producer(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(primary, "new_producer_id", lambda _: 0x0100_0000_0001)


def _late_copies(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(WriterEpochRegister, "of", lambda _, __: None)


def _undoes_nothing(patch: pytest.MonkeyPatch) -> None:
    async def nothing(_: Rollbacks, __: Future[None]) -> None:
        return

    patch.setattr(Rollbacks, "undo", nothing)


def _carried_are_lost(patch: pytest.MonkeyPatch) -> None:
    def forgotten(
        machine: TransactionMachine, sequencer: Sequencer, recovered: Checkpoint, **options: Any
    ) -> None:
        recovered.ack_intents.clear()
        real(machine, sequencer, recovered, **options)

    real = TransactionMachine.__init__
    patch.setattr(TransactionMachine, "__init__", forgotten)


def _hints_before_the_log(patch: pytest.MonkeyPatch) -> None:
    def hasty(self: Recorder) -> tuple[object, object]:
        hints, _ = real(self)
        return hints, completed()

    real = Recorder.snapshot_hints
    patch.setattr(Recorder, "snapshot_hints", hasty)


def _status_without_lease(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(replica_status, "Put", lambda key, value, **_: Put(key, value))


@dataclass(frozen=True, slots=True, kw_only=True)
class Broken:
    """A rule that does not hold, and what of it shows."""

    by: Break
    invariants: str
    """Any of these is broken by it."""
    scenario: ShardScenario = EITHER
    seeds: int = 40
    """Within so many it is caught."""
    begin: int = 0
    """The first of them: one that shows it soon. A change of the simulator may move that, and then others are tried."""


def _only(scenario: ShardScenario, **weights: float) -> ShardScenario:
    """Return a scenario of these faults, in which transactions are short and inputs many."""
    return replace(
        scenario,
        faults={ShardFault[name.upper()]: weight for name, weight in weights.items()},
        write_seconds=(0.02, 0.2),
        max_txn_milliseconds=(50, 300),
    )


MOVED = _only(EITHER, broker_lossy=1.0, crash=1.0, pause=1.0, hand_over=1.0)

CARRIED = replace(MOVED, carried_bytes=(16 << 10,))

BROKEN = [
    Broken(by=_no_fence, invariants="S1 S2 S3", scenario=RECORDED),
    Broken(
        by=_fence_not_seen,
        invariants="S1 S2 S3",
        scenario=_only(RECORDED, registers_lost=4.0, pause=3.0, etcd_cut=3.0, hand_over=3.0),
    ),
    Broken(by=_fence_never_raised, invariants="S2 S3", scenario=IN_A_TABLE),
    Broken(by=_fence_not_compared, invariants="S2 S3", scenario=IN_A_TABLE),
    Broken(by=_sequencer_forgets, invariants="S1"),
    Broken(by=_no_intents, invariants="S1", begin=11),
    Broken(by=_acknowledges_at_once, invariants="S2"),
    Broken(by=_commits_before_it_published, invariants="S1", scenario=MOVED),
    Broken(by=_carried_are_lost, invariants="S1", scenario=CARRIED),
    Broken(by=_logs_before_it_published, invariants="S1", scenario=MOVED, seeds=400),
    Broken(by=_turns_not_kept, invariants="S2"),
    Broken(
        by=_any_success_is_proof,
        invariants="S1 S2",
        scenario=_only(RECORDED, registers_lost=4.0, pause=3.0, etcd_cut=3.0, hand_over=3.0),
        seeds=180,
        begin=41,
    ),
    Broken(by=_one_producer, invariants="S1 S2", scenario=MOVED, begin=7),
    Broken(
        by=_late_copies,
        invariants="S1",
        scenario=replace(_only(EITHER, broker_lossy=1.0), steps=(15, 15)),
        seeds=120,
        begin=23,
    ),
    Broken(by=_undoes_nothing, invariants="S1"),
    Broken(
        by=_hints_before_the_log,
        invariants="S0",
        scenario=replace(
            RECORDED,
            faults={
                ShardFault.CRASH: 3.0,
                ShardFault.BROKER_LOSSY: 3.0,
                ShardFault.BROKER_CUT: 2.0,
            },
            write_seconds=(0.02, 0.2),
        ),
    ),
    Broken(by=_status_without_lease, invariants="S4"),
]


def _first_failure(scenario: ShardScenario, seeds: Sequence[int]) -> ShardReport | None:
    reports = (simulate(seed, scenario) for seed in seeds)
    return next((report for report in reports if not report.ok), None)


@pytest.mark.parametrize("broken", BROKEN, ids=lambda broken: broken.by.__name__.strip("_"))
def test_rule_that_is_broken_on_purpose_is_caught(
    broken: Broken, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The judges see what the rule is for: what was broken is named by the invariant that depends on it, and the
    report tells what the machines of the shard went through.
    """
    broken.by(monkeypatch)

    seeds = range(broken.begin, broken.begin + broken.seeds)
    report = _first_failure(broken.scenario, seeds)

    assert report is not None, f"not seen in {broken.seeds} seeds"
    assert report.violation is not None
    assert report.violation.invariant in broken.invariants.split(), str(report)
    assert "events of the transaction machine" in "".join(report.stories)
    assert str(report).endswith(report.stories[-1])
