"""Leases and checkpoints: what failed, and whether the same call may be tried again.

A lost race is no error of a lease manager: it answers None, or False. What the record stores below it raise is
`consumer.leasing.core.conflict.RecordConflictError`.
"""

from __future__ import annotations

from typing import ClassVar

from consumer.errors.root import ConsumerError


class LeasingError(ConsumerError):
    """A lease or a checkpoint could not be read, written or kept."""

    retryable: ClassVar[bool] = False
    """Whether the same call may succeed later, with nothing else done."""


class ThrottlingError(LeasingError):
    """The store has no capacity, or its locks are held: back off and try again. Nothing was written."""

    retryable = True


class DependencyError(LeasingError):
    """The store did not answer, or answered with what nobody expects."""

    retryable = True

    def __init__(self, detail: str, *, outcome_unknown: bool = False) -> None:
        """Say what failed.

        Args:
            detail: What the store, or its client, said.
            outcome_unknown: A write may have been applied: read before writing again.
        """
        doubt = " (a write may have been applied: read it again)" if outcome_unknown else ""
        super().__init__(f"{detail}{doubt}")
        self.detail = detail
        self.outcome_unknown = outcome_unknown


class BlockedOnParentError(LeasingError):
    """A shard must wait until its parents are finished."""

    retryable = True

    def __init__(self, key: str, parents: tuple[str, ...]) -> None:
        super().__init__(f"lease {key} waits for its parents: {', '.join(parents)}")
        self.key = key
        self.parents = parents


class InvalidStateError(LeasingError):
    """The store is missing, or holds what cannot be read; `detail` says what to do about it."""


class UnreadableLeaseError(InvalidStateError):
    """One row of the store holds no lease that can be read. The other leases are not affected.

    Attributes:
        key: Of the lease.
    """

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(problem)
        self.key = key


class ShutdownError(LeasingError):
    """The lease is not held: this processor must stop for good, another may already run."""


class LeaseNotAcquiredError(LeasingError):
    """Another worker holds the lease."""


class ShardClaimedError(LeaseNotAcquiredError):
    """Another worker has claimed the lease and will get it next."""


class SequenceIdNotFoundError(LeasingError, LookupError):
    """No checkpoint is stored for the shard."""


class ShardNotAssignedError(LeasingError, LookupError):
    """The shard has no owner."""


class InvalidPositionError(LeasingError, ValueError):
    """A position is malformed, or outside what may be checkpointed."""
