"""Refused steps, and the time to retry them.

A refused step is not retried unchanged until its delay is over, which doubles each time, because the same comparisons
would fail the same way. As soon as the key space shows a change of the item, its step differs and is tried at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from broadsheet.allocator.ops import Compare, CompareResult, TxnCheckpoint
from broadsheet.allocator.transition.converge import ConvergeStep

DELAY_SECONDS_FIRST = 0.5
"""Longer than a key space takes to show what another member wrote."""
DELAY_SECONDS_MAX = 30.0


@dataclass(frozen=True, slots=True)
class _Refusal:
    checkpoint: TxnCheckpoint
    times: int
    until_monotonic_seconds: float


@dataclass(frozen=True, slots=True)
class ItemQuarantine:
    """Refused steps by subject.

    The revision that a step was decided on does not distinguish steps, because every write by anyone changes it.
    """

    refusals: Mapping[str, _Refusal] = field(default_factory=dict)

    def admitted(
        self, steps: Iterable[ConvergeStep], now_monotonic_seconds: float
    ) -> tuple[ConvergeStep, ...]:
        """Return the steps that may be tried now."""
        return tuple(step for step in steps if self._may_try(step, now_monotonic_seconds))

    def after(
        self,
        steps: Iterable[ConvergeStep],
        *,
        tried: Iterable[ConvergeStep],
        refused: Iterable[TxnCheckpoint],
        now_monotonic_seconds: float,
    ) -> ItemQuarantine:
        """Return the quarantine after a round.

        Args:
            steps: All wanted steps; items without one are dropped.
            tried: The steps that were tried; those not refused again are released.
            refused: The refused checkpoints.
            now_monotonic_seconds: The time of the refusal.
        """
        waiting = {step.checkpoint.subject for step in steps}
        waiting -= {step.checkpoint.subject for step in tried}
        refusals = {
            subject: refusal for subject, refusal in self.refusals.items() if subject in waiting
        }
        for checkpoint in refused:
            known = self.refusals.get(checkpoint.subject)
            is_same = known is not None and _is_same(known.checkpoint, checkpoint)
            times = known.times + 1 if known is not None and is_same else 1
            # The exponent is bounded, because a float overflows after a thousand refusals.
            delay = min(DELAY_SECONDS_MAX, DELAY_SECONDS_FIRST * 2.0 ** min(times - 1, 16))
            refusals[checkpoint.subject] = _Refusal(
                checkpoint, times, now_monotonic_seconds + delay
            )
        return ItemQuarantine(refusals)

    def next_try_seconds(self, now_monotonic_seconds: float) -> float | None:
        """Return how long until the first refused step may be retried; None if there is none."""
        until = (refusal.until_monotonic_seconds for refusal in self.refusals.values())
        first = min(until, default=None)
        return None if first is None else max(0.0, first - now_monotonic_seconds)

    def _may_try(self, step: ConvergeStep, now_monotonic_seconds: float) -> bool:
        refusal = self.refusals.get(step.checkpoint.subject)
        return (
            refusal is None
            or not _is_same(refusal.checkpoint, step.checkpoint)
            or now_monotonic_seconds >= refusal.until_monotonic_seconds
        )


def _is_same(one: TxnCheckpoint, other: TxnCheckpoint) -> bool:
    return one.operations == other.operations and _lasting(one) == _lasting(other)


def _lasting(checkpoint: TxnCheckpoint) -> list[Compare]:
    """Return the comparisons without those of the snapshot's revision."""
    return [each for each in checkpoint.compares if each.result is CompareResult.EQUAL]
