"""Exceptions of leases and checkpoints."""

from __future__ import annotations

from typing import ClassVar

from broadsheet.runtime.errors import ServiceError, ValidationError


class LeasingError(ServiceError):
    """A lease or a checkpoint could not be read, written or kept."""

    rpc_status: ClassVar[str] = "ABORTED"

    retryable: ClassVar[bool] = False
    """Whether the same call may succeed later, with nothing else done."""


class StoreNotFoundError(ValidationError):
    """There is no store at an address."""


class ThrottlingError(LeasingError):
    """The store has no capacity, or its locks are held: back off and retry. Nothing was written."""

    rpc_status: ClassVar[str] = "RESOURCE_EXHAUSTED"

    retryable = True


class DependencyError(LeasingError):
    """The store did not answer, or gave an unexpected answer."""

    rpc_status: ClassVar[str] = "UNAVAILABLE"

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

    rpc_status: ClassVar[str] = "UNAVAILABLE"

    retryable = True

    def __init__(self, key: str, parents: tuple[str, ...]) -> None:
        super().__init__(f"lease {key} waits for its parents: {', '.join(parents)}")
        self.key = key
        self.parents = parents


class InvalidStateError(LeasingError):
    """The store is missing or unreadable; `detail` says what to do about it."""

    rpc_status: ClassVar[str] = "FAILED_PRECONDITION"


class UnreadableLeaseError(InvalidStateError):
    """A row of the store holds no readable lease. The other leases are not affected.

    Attributes:
        key: Of the lease.
    """

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(problem)
        self.key = key


class ShutdownError(LeasingError):
    """The lease is not held: this processor must stop for good, because another may already run."""


class LeaseNotAcquiredError(LeasingError):
    """Another worker holds the lease."""


class ShardClaimedError(LeaseNotAcquiredError):
    """Another worker has claimed the lease and will get it next."""


class SequenceIdNotFoundError(LeasingError, LookupError):
    """No checkpoint is stored for the shard."""

    rpc_status: ClassVar[str] = "NOT_FOUND"


class ShardNotAssignedError(LeasingError, LookupError):
    """The shard has no owner."""

    rpc_status: ClassVar[str] = "NOT_FOUND"


class InvalidPositionError(LeasingError, ValueError):
    """A position is malformed, or outside what may be checkpointed."""

    rpc_status: ClassVar[str] = "INVALID_ARGUMENT"
