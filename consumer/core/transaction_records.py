"""The two transactions that may exist at a time: one consumes, the one before it commits and acknowledges."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from consumer.core.transaction_events import RecordTxn, TxnLimits, TxnTimings

FIRST_TXN_SECONDS: Final = 0.02
"""How long the first transaction from a restored checkpoint goes on taking input only because some is ready."""


@dataclass(slots=True)
class RunningTxn:
    """The transaction that consumes. Times are monotonic seconds."""

    limits: TxnLimits
    prior_prepared: float
    """When the transaction before it had started its commit."""
    began: float | None = None
    is_first: bool = False
    """The machine's first: the shard had no primary before it, and somebody waits for what comes of its input."""
    accepts_input: bool = True
    """False once its maximum duration is over, the application deferred, or the shard stops."""
    messages: int = 0
    message_bytes: int = 0
    stalled: float | None = None
    finalizing: float = 0.0

    def min_elapsed(self, now: float) -> bool:
        """Return whether it has been open for its minimum duration."""
        return self.began is not None and now >= self.began + self.limits.min_seconds

    def max_elapsed(self, now: float) -> bool:
        """Return whether it has been open for its maximum duration."""
        return self.began is not None and now >= self.began + self.limits.max_seconds

    def leaves_ready_input(self, now: float) -> bool:
        """Return whether it leaves input that is ready to the next one, though it may take more."""
        return self.is_first and self.began is not None and now >= self.began + FIRST_TXN_SECONDS

    def next_decision(self, now: float) -> float | None:
        """Return when time alone will next change what it may do; None if never."""
        if self.began is None:
            return None
        if not self.min_elapsed(now):
            return self.began + self.limits.min_seconds
        return self.began + self.limits.max_seconds if self.accepts_input else None


@dataclass(slots=True)
class PriorTxn:
    """The transaction that commits and acknowledges. Times are monotonic seconds."""

    read_through: dict[str, int]
    """What its completion makes visible, bytes by journal."""
    ack_intents: Mapping[str, bytes]
    closed: RunningTxn | None = None
    """The transaction as it was when it closed; None for the one that a restored checkpoint stands for."""
    prepared: float = 0.0
    committed: float | None = None
    publish_at: dict[str, int] = field(default_factory=dict)
    append_error: BaseException | None = None
    """Held until the commit's own outcome is known: a failed commit fails the appends that wait for it."""
    unacknowledged: set[str] = field(init=False)

    def __post_init__(self) -> None:
        self.unacknowledged = set(self.ack_intents)

    def extend(self, journal: str, through: int) -> None:
        """Let its completion tell that `journal` was read further, though its checkpoint does not say so."""
        self.read_through[journal] = max(self.read_through.get(journal, 0), through)

    def record_or_none(self, now: float) -> RecordTxn | None:
        """Return what to count of it, now that it is complete."""
        closed = self.closed
        if closed is None:
            return None
        assert closed.began is not None, "it consumed something"
        assert self.committed is not None, "it is complete"
        timings = TxnTimings(
            prior_prepared=closed.prior_prepared,
            began=closed.began,
            stalled=closed.finalizing if closed.stalled is None else closed.stalled,
            finalizing=closed.finalizing,
            prepared=self.prepared,
            committed=self.committed,
            acknowledged=now,
        )
        return RecordTxn(closed.messages, closed.message_bytes, timings)
