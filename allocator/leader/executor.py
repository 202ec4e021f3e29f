"""Performs the leader's steps: fenced, batched, concurrent where independent, with refused ones isolated.

Source: gazette/core allocator/allocate.go (batched transactions); isolation of culprits and the epoch's fence are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import structlog

from broadsheet.allocator.config import Runtime
from broadsheet.allocator.etcd.api import Etcd
from broadsheet.allocator.etcd.txn_batch import BatchReport, Note, apply_checkpoints
from broadsheet.allocator.key_space import KeySpace
from broadsheet.allocator.leader.leadership import Fence
from broadsheet.allocator.leader.move_log import MoveLog
from broadsheet.allocator.leader.move_records import Cause
from broadsheet.allocator.ops import Put, TxnCheckpoint
from broadsheet.allocator.transition.converge import ConvergeStep, ReplicaCounts
from broadsheet.allocator.transition.quarantine import ItemQuarantine

_log = structlog.get_logger()


class Executor:
    """Performs the steps of a leader, and remembers the refused ones for a term."""

    def __init__(
        self,
        etcd: Etcd,
        key_space: KeySpace,
        *,
        move_log: MoveLog,
        runtime: Runtime,
        on_progress: Callable[[], None],
    ) -> None:
        """Prepare the executor.

        Args:
            etcd: Where the steps are performed.
            key_space: Where they become visible.
            move_log: Where the moves are logged.
            runtime: Times refused steps, and counts all.
            on_progress: Called after every transaction that was answered.
        """
        self._etcd = etcd
        self._key_space = key_space
        self.move_log = move_log
        self._clock = runtime.clock
        self._metrics = runtime.metrics
        self._on_progress = on_progress
        self._quarantine = ItemQuarantine()

    async def perform(
        self, steps: tuple[ConvergeStep, ...], fence: Fence, *, cause: Cause | None = None
    ) -> bool:
        """Perform steps, and wait until they are visible. Return whether the right to write was lost.

        Args:
            steps: All steps wanted now; recently refused ones are left out for a while.
            fence: The comparisons of every transaction.
            cause: The origin of the steps, if they are not the leader's own decision.

        Raises:
            EtcdError: etcd does not answer; some of them may have been performed.
        """
        now = self._clock.monotonic_seconds()
        tried = self._quarantine.admitted(steps, now)
        if not tried:
            # Still needed, because items that have no step any more leave the quarantine.
            self._quarantine = self._quarantine.after(
                steps, tried=(), refused=(), now_monotonic_seconds=now
            )
            return False
        report = await apply_checkpoints(
            self._etcd,
            [step.checkpoint for step in tried],
            fixed=fence.compares,
            on_progress=self._on_progress,
            note=self._noting(tried, fence, cause or Cause()),
        )
        self._note(steps, tried, report)
        # Wait without a bound: a leader that decides before its steps are visible would perform them twice. One that
        # waits too long does not extend its deadline meanwhile, and is superseded.
        await self._key_space.wait_for_revision(report.revision)
        return report.leadership_lost

    async def tidy(self, fence: Fence) -> None:
        """Keep the move log within its bounds, at intervals."""
        await self.move_log.prune_if_due(fence.compares)

    def forget(self) -> None:
        """Forget the refused steps, because the term ended."""
        self._quarantine = ItemQuarantine()

    @property
    def quarantined(self) -> frozenset[str]:
        """Subjects of refused steps that are not tried again yet."""
        return frozenset(self._quarantine.refusals)

    def next_try_seconds(self, now_monotonic_seconds: float) -> float | None:
        """Return how long until a refused step may be tried again; None if there is none."""
        return self._quarantine.next_try_seconds(now_monotonic_seconds)

    def _noting(self, steps: tuple[ConvergeStep, ...], fence: Fence, cause: Cause) -> Note | None:
        move_log = self.move_log
        if not move_log.is_kept:
            return None
        reasons = {step.checkpoint.subject: step.reason for step in steps}

        def note(checkpoints: Sequence[TxnCheckpoint]) -> Put | None:
            return move_log.note(checkpoints, reasons=reasons, cause=cause, epoch=fence.epoch)

        return note

    def _note(
        self, steps: tuple[ConvergeStep, ...], tried: tuple[ConvergeStep, ...], report: BatchReport
    ) -> None:
        applied = frozenset(report.applied)
        done = sum(
            (step.counts for step in tried if step.checkpoint.subject in applied), ReplicaCounts()
        )
        self._quarantine = self._quarantine.after(
            steps,
            tried=tried,
            refused=[culprit.checkpoint for culprit in report.culprits],
            now_monotonic_seconds=self._clock.monotonic_seconds(),
        )
        self._metrics.on_converged(done, refused=len(report.culprits))
        _log.info(
            "allocation.converged",
            revision=report.revision,
            added=done.added,
            removed=done.removed,
            promoted=done.promoted,
            packed=done.packed,
            refused=len(report.culprits),
            leadership_lost=report.leadership_lost,
        )
        for culprit in report.culprits:
            _log.warning(
                "allocation.step_refused",
                item=culprit.checkpoint.subject,
                cause=str(culprit.cause),
            )
