"""The record-store port: compare-and-swap, one record at a time.

Implementations are in `broadsheet.leases.stores`; `broadsheet.testing.leases` tests any
implementation.

Every method may raise `ThrottlingError` (nothing was done, back off), `DependencyError` (the store did not answer; it
says whether a write may have been applied) and, but for the first three, `InvalidStateError` (there is no store).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol, TypeAlias, runtime_checkable

import structlog

from broadsheet.leases.errors import InvalidStateError, UnreadableLeaseError
from broadsheet.leases.record import LeaseRecord, Versioned

OnUnreadable: TypeAlias = Callable[[UnreadableLeaseError], None]
_log = structlog.get_logger()


def log_unreadable(error: UnreadableLeaseError) -> None:
    """Log an unreadable row that a scan leaves out."""
    _log.warning("leasing.record_unreadable", key=error.key, cause=str(error))


@contextmanager
def reading_row(key: str) -> Iterator[None]:
    """Turn every error of a block into `UnreadableLeaseError`; the block may only read the row of a lease."""
    try:
        yield
    except UnreadableLeaseError:
        raise
    except InvalidStateError as error:
        raise UnreadableLeaseError(key, str(error)) from error
    # Errors of any kind, because other programs write rows by other rules, e.g. with longer owner names.
    except Exception as error:
        raise UnreadableLeaseError(
            key, f"lease {key}: its row cannot be read: {error}; restore or delete it"
        ) from error


@runtime_checkable
class WritesLeaseLength(Protocol):
    """A record store that writes into its rows when leases end, so that other programs read it there."""

    def lease_lasts(self, seconds: float) -> None:
        """Set the length of leases for the worker that writes.

        Raises:
            ValidationError: the store was told another length before.
        """
        ...


class RecordStore(Protocol):
    """Records of one application, in one place."""

    @property
    def tells_who_lives(self) -> bool:
        """True if the store itself ends the fences of dead workers; if not, observers watch the counters."""
        ...

    async def exists(self) -> bool:
        """Return whether the store was created."""
        ...

    async def create_store(self) -> bool:
        """Create the store; return False if it exists."""
        ...

    async def delete_store(self) -> None:
        """Delete the store with all records. No error if there is none."""
        ...

    async def get(self, key: str) -> Versioned | None:
        """Return the present record: every write made before the call is visible.

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
            on_unreadable: Called for each row that is left out, of any owner.
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
        """Delete a record with its holder's fence; return False if it was not there.

        Args:
            key: Of the record.
            expected: Remove only this; None: whatever is there.

        Raises:
            RecordConflictError: there is another than `expected`.
        """
        ...

    async def join(self, worker: str) -> None:
        """Vouch for a worker: its leases live as long as this process."""
        ...


# Leaders of other programs that assign the same leases; ours does not lead while one lives.


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignLeader:
    """The leader's row of another program."""

    name: str
    version: str
    """Changes with each heartbeat."""
    lease_seconds: float
    """Time without a change after which it counts as dead."""


@runtime_checkable
class TellsForeignLeader(Protocol):
    """A store whose leases another program may lead."""

    async def foreign_leaders(self) -> tuple[ForeignLeader, ...]:
        """Return the rows of leaders that did not step down; they may be dead."""
        ...
