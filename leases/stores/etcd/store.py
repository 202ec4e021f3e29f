"""Record store in etcd, where a dead worker's leases end by themselves.

A record is permanent; in addition the holder has an owner key on the etcd lease of its process. Every write compares
the mod revision of the record and the create revision of the owner key, the fence: a worker that lost its owner key, by
time or to a rival, can write nothing more under it. Renewing is the process's keep-alive; it writes no record.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeVar
from urllib.parse import quote

import structlog

from broadsheet.allocator.errors import (
    EtcdError,
    EtcdLimitError,
    EtcdUnavailableError,
    LeaseLostError,
    LeaseNotFoundError,
    RevisionCompactedError,
)
from broadsheet.allocator.etcd.api import Etcd, TxnResult
from broadsheet.allocator.etcd.lease import LeaseKeeper
from broadsheet.allocator.ops import (
    Compare,
    CompareTarget,
    Delete,
    Get,
    KeyValue,
    LeaseId,
    Operation,
    Put,
    prefix_range_end,
)
from broadsheet.leases.codec import decode, encode
from broadsheet.leases.errors import (
    DependencyError,
    InvalidStateError,
    ThrottlingError,
    UnreadableLeaseError,
)
from broadsheet.leases.record import LeaseRecord, RecordConflictError, Version, Versioned
from broadsheet.leases.store import OnUnreadable, log_unreadable
from broadsheet.runtime.clock import Clock, SystemClock
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.task_group import TaskGroup

LEASE_SECONDS = 10.0
"""Default life of an etcd lease that is not renewed; that of a lease in the Kinesis Client Library."""
_MARK = b'{"layout":"native"}'

# Translation of etcd's errors into leasing errors; nothing else reads them.
T = TypeVar("T")
_BUSY_TEXT = "too many requests"

_log = structlog.get_logger()


class ProcessLease:
    """Keeper of at most one etcd lease, that of a process's owner keys.

    An async context manager; leaving it revokes the lease. It is granted when first needed, and again after a loss. Its
    one keep-alive renews all leases of the process: no record is written while nothing changes.
    """

    def __init__(self, etcd: Etcd, *, ttl_seconds: float, clock: Clock) -> None:
        self._etcd = etcd
        self._ttl_seconds = ttl_seconds
        self._clock = clock
        self._keeper: LeaseKeeper | None = None
        self._granting = asyncio.Lock()
        self._tasks = TaskGroup()
        self._keeping: list[asyncio.Task[None]] = []

    async def current(self) -> LeaseId:
        """Return the lease, and grant one if there is none."""
        async with self._granting:
            if self._keeper is None:
                keeper = await LeaseKeeper.grant(self._etcd, self._ttl_seconds, self._clock)
                self._keeper = keeper
                self._keeping = [task for task in self._keeping if not task.done()]
                self._keeping.append(
                    self._tasks.start_soon(self._keep(keeper), name="leasing.keep_alive")
                )
            return self._keeper.lease

    @property
    def deadline_monotonic_seconds(self) -> float | None:
        """Time until which, by our clock, etcd cannot have expired the lease; None without one."""
        return None if self._keeper is None else self._keeper.deadline_monotonic_seconds

    def forget(self, lease: LeaseId) -> None:
        """Forget a lease that etcd reports as gone."""
        if self._keeper is not None and self._keeper.lease == lease:
            self._keeper = None

    async def _keep(self, keeper: LeaseKeeper) -> None:
        try:
            await keeper.run()
        except (LeaseLostError, EtcdError) as error:
            _log.warning("leasing.process_lease_lost", cause=str(error))
            self.forget(keeper.lease)

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Not `stop()`: this may run in another task than `__aenter__` did.
        for task in self._keeping:
            task.cancel()
        try:
            await self._tasks.__aexit__(kind, error, trace)
        finally:
            keeper, self._keeper = self._keeper, None
            if keeper is not None:
                await keeper.revoke()


async def answer_of(request: Awaitable[T], *, writes: bool = False) -> T:
    """Await etcd's answer, and translate its errors.

    Args:
        request: To etcd.
        writes: It may have been applied if no answer comes.

    Raises:
        DependencyError: no answer came, or the etcd lease that the request names has ended; then nothing was written.
        ThrottlingError: etcd has too much to do.
        InvalidStateError: it refuses the request, and always will.
    """
    try:
        return await request
    except EtcdUnavailableError as error:
        raise DependencyError(str(error), outcome_unknown=writes) from error
    except (LeaseNotFoundError, RevisionCompactedError) as error:
        raise DependencyError(str(error)) from error
    except EtcdLimitError as error:
        if _BUSY_TEXT in error.detail:
            raise ThrottlingError(str(error)) from error
        raise InvalidStateError(str(error)) from error
    except EtcdError as error:
        raise InvalidStateError(str(error)) from error


@dataclass(frozen=True, slots=True)
class LeaseKeys:
    """The keys in etcd below one root.

        {root}/store                      there is a store
        {root}/leases/{key}               the record, which lasts
        {root}/owners/{key}#{epoch}       its holder, alive: on the etcd lease of the holder's process; 16 hex digits
        {root}/workers/{name}             a worker, alive: on the same, so that others can put owner keys there for it

    The epoch is in an owner key's name, so that each acquisition has its own key: an etcd key that is written again
    keeps its create revision, which is the fence. A record has at most one owner key, that of its epoch, because every
    transaction that writes one compares the record and the former owner key. Lease keys are percent-encoded in owner
    keys, so that no other key shares their prefix.
    """

    root: str

    def __post_init__(self) -> None:
        if not self.root.startswith("/") or self.root.endswith("/"):
            raise ValidationError(
                "root", f"expected /a/path without a slash at its end, got {self.root!r}"
            )

    @property
    def prefix(self) -> bytes:
        """Common prefix of all keys."""
        return f"{self.root}/".encode()

    @property
    def store(self) -> bytes:
        """Key of the mark that the store exists."""
        return f"{self.root}/store".encode()

    @property
    def leases(self) -> bytes:
        """Prefix of the keys of records."""
        return f"{self.root}/leases/".encode()

    def lease(self, key: str) -> bytes:
        """Return the key of a record."""
        return self.leases + key.encode()

    def owner(self, key: str, epoch: int) -> bytes:
        """Return the key of a holder."""
        return self.owners_of(key) + f"{epoch:016x}".encode()

    def owners_of(self, key: str) -> bytes:
        """Return the prefix of a record's owner keys, which no other record's share."""
        return f"{self.root}/owners/{quote(key, safe=':')}#".encode()

    def worker(self, name: str) -> bytes:
        """Return the key of a worker."""
        return f"{self.root}/workers/{name}".encode()


class EtcdRecordStore:
    """Implements `broadsheet.leases.store.RecordStore`. An async context manager for the workers of one
    process.

    A record whose owner no process vouches for (`join`) has no fence: it is as free as one whose owner died.
    """

    def __init__(
        self,
        etcd: Etcd,
        root: str,
        *,
        lease_seconds: float = LEASE_SECONDS,
        clock: Clock | None = None,
    ) -> None:
        """Configure the store without a request to etcd.

        Args:
            etcd: The client; stays the caller's.
            root: What its keys begin with, e.g. `/my-application`.
            lease_seconds: How long after a process's death its leases are free.
            clock: Decides when this process counts its own etcd lease as lost.
        """
        self._etcd = etcd
        self._keys = LeaseKeys(root)
        self._process = ProcessLease(etcd, ttl_seconds=lease_seconds, clock=clock or SystemClock())
        self._joined: dict[str, LeaseId] = {}
        """Workers of this process, with the etcd lease that each was announced on."""

    @property
    def tells_who_lives(self) -> bool:
        """True, because owner keys end with the processes that hold them."""
        return True

    @property
    def deadline_monotonic_seconds(self) -> float | None:
        """Time until which, by our clock, no rival can have taken this process's leases; None while it vouches for
        none.
        """
        return self._process.deadline_monotonic_seconds

    async def exists(self) -> bool:
        """Return whether the store was created."""
        return bool((await answer_of(self._etcd.get_range(self._keys.store))).kvs)

    async def create_store(self) -> bool:
        """Write the store's mark; return False if it exists."""
        mark = self._keys.store
        result = await answer_of(
            self._etcd.txn((Compare.absent(mark),), (Put(mark, _MARK),)), writes=True
        )
        return result.succeeded

    async def delete_store(self) -> None:
        """Delete every key below the root."""
        prefix = self._keys.prefix
        self._joined.clear()
        await answer_of(
            self._etcd.txn((), (Delete(prefix, prefix_range_end(prefix)),)), writes=True
        )

    async def get(self, key: str) -> Versioned | None:
        """Return the present record."""
        owner_keys = self._keys.owners_of(key)
        gets = (Get(self._keys.lease(key)), Get(owner_keys, prefix_range_end(owner_keys)))
        leases, owners = (await answer_of(self._etcd.txn((), gets))).gets
        # The store's mark is read in the same request, because it is not worth a separate one.
        if leases:
            return self._versioned(key, leases[0], {kv.key: kv for kv in owners})
        if not await self.exists():
            raise self._missing()
        return None

    async def scan(
        self, owner: str | None = None, *, on_unreadable: OnUnreadable = log_unreadable
    ) -> AsyncIterator[Versioned]:
        """Yield records, all as of one revision."""
        prefix = self._keys.prefix
        result = await answer_of(self._etcd.get_range(prefix, prefix_range_end(prefix)))
        kv_by_key = {kv.key: kv for kv in result.kvs}
        if self._keys.store not in kv_by_key:
            raise self._missing()
        for kv in result.kvs:
            if not kv.key.startswith(self._keys.leases):
                continue
            key = kv.key.removeprefix(self._keys.leases).decode(errors="backslashreplace")
            try:
                found = self._versioned(key, kv, kv_by_key)
            except UnreadableLeaseError as error:
                on_unreadable(error)
                continue
            if owner is None or found.record.owner == owner:
                yield found

    async def create(self, record: LeaseRecord) -> Versioned:
        """Create a record, and its holder's key."""
        mark = await answer_of(self._etcd.get_range(self._keys.store))
        if not mark.kvs:
            raise self._missing()
        since = mark.kvs[0].create_revision
        compares = (
            Compare(self._keys.store, CompareTarget.CREATE_REVISION, since),
            Compare.absent(self._keys.lease(record.key)),
        )
        return await self._write(record, compares, await self._owner_put(record), fence=0)

    async def replace(self, record: LeaseRecord, expected: Versioned) -> Versioned:
        """Write a record in place of `expected`, under its fence."""
        before = expected.record
        lease_key = self._keys.lease(before.key)
        owner_key = self._keys.owner(before.key, before.epoch)
        compares = (
            Compare(lease_key, CompareTarget.MOD_REVISION, int(expected.version)),
            Compare(owner_key, CompareTarget.CREATE_REVISION, expected.fence),
        )
        acquired = record.epoch != before.epoch
        if not acquired and record.holder == before.holder:
            return await self._write(record, compares, (), fence=expected.fence)
        ended = (Delete(owner_key),) if expected.fence else ()
        begun = await self._owner_put(record) if acquired else ()
        return await self._write(record, compares, ended + begun, fence=0)

    async def delete(self, key: str, expected: Versioned | None = None) -> bool:
        """Remove a record and its owner key."""
        lease_key, owners = self._keys.lease(key), self._keys.owners_of(key)
        compares: tuple[Compare, ...] = ()
        if expected is not None:
            version = int(expected.version)
            compares = (Compare(lease_key, CompareTarget.MOD_REVISION, version),)
        look = self._look(key)
        removal = (Delete(lease_key), Delete(owners, prefix_range_end(owners)))
        result = await answer_of(self._etcd.txn(compares, look + removal, look), writes=True)
        mark, leases, _ = result.gets
        if not mark:
            raise self._missing()
        if not leases:
            return False
        if not result.succeeded:
            raise RecordConflictError(key, self._found(key, result))
        return True

    async def join(self, worker: str) -> None:
        """Announce a worker on this process's etcd lease."""
        lease = await answer_of(self._process.current())
        if self._joined.get(worker) == lease:
            return
        announcement = Put(self._keys.worker(worker), b"", lease)
        await self._txn((), (announcement,))
        self._joined[worker] = lease

    async def __aenter__(self) -> Self:
        await self._process.__aenter__()
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._joined.clear()
        await self._process.__aexit__(kind, error, trace)

    async def _write(
        self,
        record: LeaseRecord,
        compares: tuple[Compare, ...],
        owner_changes: tuple[Operation, ...],
        *,
        fence: int,
    ) -> Versioned:
        """Write a record and the changes of its owner key; `fence` is the fence if that key is not written."""
        put = Put(self._keys.lease(record.key), encode(record).encode())
        result = await self._txn(compares, (put, *owner_changes), self._look(record.key))
        if not result.succeeded:
            raise RecordConflictError(record.key, self._found(record.key, result))
        revision = result.header.revision
        acquired = any(isinstance(change, Put) for change in owner_changes)
        return Versioned(
            record=record,
            version=Version(str(revision)),
            fence=revision if acquired else fence,
        )

    async def _txn(
        self,
        compares: tuple[Compare, ...],
        success: tuple[Operation, ...],
        failure: tuple[Operation, ...] = (),
    ) -> TxnResult:
        """Run a transaction; forget an etcd lease that has ended, so that the next attempt gets another."""
        try:
            return await answer_of(self._etcd.txn(compares, success, failure), writes=True)
        except DependencyError as error:
            if isinstance(error.__cause__, LeaseNotFoundError):
                for operation in success:
                    if isinstance(operation, Put):
                        self._process.forget(LeaseId(operation.lease))
            raise

    async def _owner_put(self, record: LeaseRecord) -> tuple[Operation, ...]:
        """Return the write of a new holder's key; empty without a holder, or if no process vouches for it."""
        if record.holder is None:
            return ()
        lease = await self._lease_of(record.holder)
        if not lease:
            return ()
        key = self._keys.owner(record.key, record.epoch)
        return (Put(key, record.holder.encode(), lease),)

    async def _lease_of(self, worker: str) -> int:
        if worker in self._joined:
            await self.join(worker)  # Join again if its etcd lease was lost.
            return self._joined[worker]
        found = await answer_of(self._etcd.get_range(self._keys.worker(worker)))
        return found.kvs[0].lease if found.kvs else 0

    def _look(self, key: str) -> tuple[Operation, ...]:
        """Return the reads that `_found` needs."""
        owners = self._keys.owners_of(key)
        return (
            Get(self._keys.store),
            Get(self._keys.lease(key)),
            Get(owners, prefix_range_end(owners)),
        )

    def _found(self, key: str, result: TxnResult) -> Versioned | None:
        mark, leases, owners = result.gets
        if not mark:
            raise self._missing()
        if not leases:
            return None
        return self._versioned(key, leases[0], {kv.key: kv for kv in owners})

    def _versioned(self, key: str, kv: KeyValue, kv_by_key: dict[bytes, KeyValue]) -> Versioned:
        record = decode(kv.value, key=key)
        owner = kv_by_key.get(self._keys.owner(key, record.epoch))
        return Versioned(
            record=record,
            version=Version(str(kv.mod_revision)),
            fence=0 if owner is None else owner.create_revision,
        )

    def _missing(self) -> InvalidStateError:
        return InvalidStateError(
            f"no lease store below {self._keys.root} in etcd: create it, or correct the root"
        )
