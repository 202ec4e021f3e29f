"""The port to etcd: the operations that the rest of the program needs.

`broadsheet.allocator.etcd.client.EtcdClient` implements it over gRPC. Every method raises `EtcdUnavailableError` when
no endpoint answers in time and `EtcdLimitError` when the server refuses a request for its size.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol

from broadsheet.allocator.ops import Compare, KeyValue, LeaseId, Operation


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The cluster that answered, and the revision of its answer."""

    cluster_id: int
    member_id: int
    revision: int
    raft_term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeResult:
    """Keys in ascending order, as of one revision."""

    header: Header
    kvs: tuple[KeyValue, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class TxnResult:
    """Outcome of a transaction."""

    header: Header
    """`header.revision` is the transaction's own revision if it wrote."""
    succeeded: bool
    gets: tuple[tuple[KeyValue, ...], ...] = ()
    """The keys that each `Get` among the performed operations read, in their order."""


@dataclass(frozen=True, slots=True)
class KeyPut:
    """A key was written."""

    kv: KeyValue


@dataclass(frozen=True, slots=True)
class KeyDeleted:
    """A key was deleted, or its lease ended."""

    key: bytes
    mod_revision: int


WatchEvent = KeyPut | KeyDeleted


def mod_revision_of(event: WatchEvent) -> int:
    """Return the revision that an event belongs to."""
    return event.kv.mod_revision if isinstance(event, KeyPut) else event.mod_revision


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchBatch:
    """Every event of one or more whole revisions, in order; or, without events, a note of progress."""

    header: Header
    """`header.revision` is that of the last event; in a progress notification, nothing is missing up to it."""
    events: tuple[WatchEvent, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseLife:
    """The state of a lease, as etcd reports it."""

    granted_seconds: int
    left_seconds: int
    """Rounded down."""

    @property
    def age_seconds_min(self) -> int:
        """Seconds since the last renewal, at least."""
        return max(0, self.granted_seconds - self.left_seconds - 1)


class Etcd(Protocol):
    """Etcd's v3 API, as far as it is used here."""

    async def get_range(
        self, key: bytes, range_end: bytes = b"", *, revision: int = 0
    ) -> RangeResult:
        """Read keys in [key, range_end) (only `key` if no end), all pages pinned to one revision (0: the newest).

        Raises:
            RevisionCompactedError: etcd no longer has that revision.
        """
        ...

    async def newest_revision(self, prefix: bytes) -> int:
        """Return the newest revision among the existing keys with `prefix`; 0 if there are none.

        A mirror at that revision has every write until now, except of keys deleted since.
        """
        ...

    async def txn(
        self,
        compares: tuple[Compare, ...],
        success: tuple[Operation, ...],
        failure: tuple[Operation, ...] = (),
    ) -> TxnResult:
        """Perform `success` if every comparison holds, else `failure`; at most 128 comparisons and 128 operations.

        A read-only transaction sees all keys as of one revision, which its header names.
        """
        ...

    async def lease_grant(self, ttl_seconds: int) -> LeaseId:
        """Create a lease."""
        ...

    async def lease_revoke(self, lease: LeaseId) -> bool:
        """End a lease and delete its keys. False if there was no such lease."""
        ...

    async def lease_keep_alive_once(self, lease: LeaseId) -> int:
        """Renew a lease. Return the seconds it has now; 0 if it is gone."""
        ...

    async def lease_life(self, lease: LeaseId) -> LeaseLife | None:
        """Return how much time a lease has left, without renewing it; None if it is gone."""
        ...

    def watch(self, prefix: bytes, *, start_revision: int) -> AsyncGenerator[WatchBatch, None]:
        """Yield every change of keys with `prefix` from `start_revision` on, for ever, resuming lost streams.

        Raises:
            RevisionCompactedError: etcd no longer has the revision to (re)start at; reload and compare.
        """
        ...
