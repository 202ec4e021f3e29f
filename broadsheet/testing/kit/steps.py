"""Steps of a shard at which a test may kill its primary. Pure.

restored ─► consumed … ─► finalized ─► commit sent ─► appended ─► committed ─► acknowledged
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum


class Step(Enum):
    """A step of a shard's primary. Its value completes the sentence "killed after …"."""

    RESTORED = "the store was restored"
    CONSUMED = "a message was consumed"
    """For an application with `consume_batch`: a run of messages."""
    FINALIZED = "finalize_txn returned"
    COMMIT_SENT = "the commit was sent"
    """`start_commit` returned; the store may not have written anything yet."""
    APPENDED = "messages were appended"
    """To the journal in `StepTaken.detail`, not acknowledged yet: no reader sees them."""
    COMMITTED = "the store confirmed the commit"
    """It is durable; the primary does not know yet."""
    ACKNOWLEDGED = "an acknowledgement was appended"
    """To the journal in `StepTaken.detail`: its readers see the transaction's messages now."""


@dataclass(frozen=True, slots=True)
class StepTaken:
    """A step that a shard's primary took."""

    step: Step
    shard: str
    detail: str = ""
    """The journal of an append; empty for the other steps."""

    def __str__(self) -> str:
        where = f" to {self.detail!r}" if self.detail else ""
        return f"{self.step.value}{where}"


@dataclass(frozen=True, slots=True)
class KillPoint:
    """A place between two steps: after a step was taken for the n-th time."""

    taken: StepTaken
    times: int
    """How often by then, from 1."""
    following: StepTaken | None = None
    """The step that came next, in the run without faults."""

    def __str__(self) -> str:
        before = "" if self.following is None else f", before {_expected(self.following)}"
        ordinal = "" if self.times == 1 else f" (time {self.times})"
        return f"shard {self.taken.shard!r} killed after {self.taken}{ordinal}{before}"


_EXPECTED = {
    Step.RESTORED: "the store was restored again",
    Step.CONSUMED: "the next message",
    Step.FINALIZED: "finalize_txn",
    Step.COMMIT_SENT: "the commit was sent",
    Step.APPENDED: "messages were appended",
    Step.COMMITTED: "the store confirmed the commit",
    Step.ACKNOWLEDGED: "acknowledgements",
}


def _expected(following: StepTaken) -> str:
    where = f" to {following.detail!r}" if following.detail else ""
    return f"{_EXPECTED[following.step]}{where}"


def kill_points(taken: Sequence[StepTaken]) -> list[KillPoint]:
    """Return a point after each step of a run, in order."""
    counts: dict[StepTaken, int] = {}
    points = []
    for index, each in enumerate(taken):
        counts[each] = counts.get(each, 0) + 1
        # Shards run side by side: what follows is what the same shard did next.
        following = next((later for later in taken[index + 1 :] if later.shard == each.shard), None)
        points.append(KillPoint(each, counts[each], following))
    return points
