"""What a lease manager asks of the place that holds the records: compare-and-swap, one record at a time.

Implementations are in `broadsheet.consumer.leasing.stores`; `broadsheet.consumer.leasing.conformance` holds any
implementation to it.

Every method may raise `ThrottlingError` (nothing was done, back off), `DependencyError` (the store did not answer; it
says whether a write may have been applied) and, but for the first three, `InvalidStateError` (there is no store).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import structlog

from broadsheet.consumer.errors import InvalidStateError, UnreadableLeaseError
from broadsheet.consumer.leasing.record import LeaseRecord, Versioned

OnUnreadable: TypeAlias = Callable[[UnreadableLeaseError], None]
_log = structlog.get_logger()


def log_unreadable(error: UnreadableLeaseError) -> None:
    """Log a row that a scan leaves out."""
    _log.warning("leasing.record_skipped", key=error.key, cause=str(error))


@contextmanager
def reading_row(key: str) -> Iterator[None]:
    """Turn a failure to read the row of a lease into `UnreadableLeaseError`. The block does nothing but that."""
    try:
        yield
    except UnreadableLeaseError:
        raise
    except InvalidStateError as error:
        raise UnreadableLeaseError(key, str(error)) from error
    # Of any kind: other programs write rows, too, by rules of their own, such as owners with longer names than ours.
    except Exception as error:
        raise UnreadableLeaseError(
            key, f"lease {key}: its row cannot be read: {error}; restore or delete it"
        ) from error


@runtime_checkable
class WritesLeaseLength(Protocol):
    """A record store that writes into its rows when leases end, so that other programs read it there."""

    def lease_lasts(self, seconds: float) -> None:
        """Learn how long leases last for the worker that writes.

        Raises:
            ValidationError: the store was told another length before.
        """
        ...


class RecordStore(Protocol):
    """Records of one application, in one place."""

    @property
    def tells_who_lives(self) -> bool:
        """Whether the store itself ends the fences of workers that died; if not, observers watch the counters."""
        ...

    async def exists(self) -> bool:
        """Return whether the store was created."""
        ...

    async def create_store(self) -> bool:
        """Make room for records. False if that was done before."""
        ...

    async def delete_store(self) -> None:
        """Remove everything. No error if there is nothing."""
        ...

    async def get(self, key: str) -> Versioned | None:
        """Return a record as it is now: whatever was written before the call is seen.

        Raises:
            UnreadableLeaseError: the row holds no record that can be read.
        """
        ...

    def scan(
        self, owner: str | None = None, *, on_unreadable: OnUnreadable = log_unreadable
    ) -> AsyncIterator[Versioned]:
        """Yield all records, or those of one owner, in the order of their keys. Those that cannot be read are left out.

        Each is as it was at some moment since the call.

        Args:
            owner: Only its records; None: all.
            on_unreadable: Called for each row that is left out, whoever owns it.
        """
        ...

    async def create(self, record: LeaseRecord) -> Versioned:
        """Write a record that is not there yet.

        Raises:
            RecordConflictError: there is one with its key.
            UnreadableLeaseError: there is one with its key, and it cannot be read.
        """
        ...

    async def replace(self, record: LeaseRecord, expected: Versioned) -> Versioned:
        """Write a record in place of `expected`.

        If its epoch differs its holder acquires it, which begins a new fence; if only the holder differs, the fence
        ends; else the fence of `expected` must still be there.

        Raises:
            RecordConflictError: it was changed, or is gone; or its fence is another.
        """
        ...

    async def delete(self, key: str, expected: Versioned | None = None) -> bool:
        """Remove a record, and its holder's fence with it. False if it was not there.

        Args:
            key: Of the record.
            expected: Remove only this; None: whatever is there.

        Raises:
            RecordConflictError: there is another than `expected`.
        """
        ...

    async def join(self, worker: str) -> None:
        """Vouch for a worker: as long as this process lives, so do the leases that it acquires."""
        ...


# A leader of another program that assigns the same leases: ours does not lead beside it.


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignLeader:
    """What its row says."""

    name: str
    version: str
    """Changes with each of its signs of life."""
    lease_seconds: float
    """How long it may not change."""


@runtime_checkable
class TellsForeignLeader(Protocol):
    """A store whose leases another program may lead."""

    async def foreign_leaders(self) -> tuple[ForeignLeader, ...]:
        """Return the rows of leaders that did not step down; they may be dead."""
        ...
