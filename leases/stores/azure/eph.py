"""Record store in the blobs of Azure's Event Processor Host, shared with running hosts.

The fence is the native lease of the blob: Azure ends it when it is not renewed, and then refuses its holder's writes.
Every write compares both the lease's id and the ETag. A lease is stolen as hosts do, by changing its id; the record
follows in a second request. In between no worker can write, because the old holder's id is not the lease's any more; if
the thief dies there, its lease ends by itself.

Source: Azure/azure-event-hubs-node processor/lib/azureBlob.ts, blobLeaseManager (operations and their conditions).
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Final, Self
from uuid import uuid4, uuid5

import msgspec
import structlog
from azure.storage.blob.aio import ContainerClient

from broadsheet.leases.codec import decode, encode
from broadsheet.leases.errors import (
    DependencyError,
    InvalidPositionError,
    InvalidStateError,
    LeasingError,
    UnreadableLeaseError,
)
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord, RecordConflictError, Versioned
from broadsheet.leases.store import OnUnreadable, log_unreadable, reading_row
from broadsheet.leases.stores.azure.container import (
    Blob,
    BlobContainer,
    BlobContent,
    BlobRefusedError,
    FencedVersion,
    encoded,
    header_value,
)
from broadsheet.leases.stores.azure.eph_keeper import BlobLeaseKeeper
from broadsheet.leases.stores.azure.native import checked_prefix, listed
from broadsheet.runtime.clock import Clock, SystemClock
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.task_group import TaskGroup

LEASE_SECONDS: Final = 30
"""Default length of a native lease; that of a host."""
LEASE_SECONDS_MIN: Final = 15
LEASE_SECONDS_MAX: Final = 60
"""Lengths that Azure allows."""
READS_AT_ONCE: Final = 16
"""Concurrent requests of a scan."""
DELETE_ATTEMPTS_MAX: Final = 3
"""Attempts to break a lease and delete the blob before another worker takes the lease again."""
_log = structlog.get_logger()

OWNER_METADATA: Final = "owninghost"
SEQUENCE_NUMBER_MAX: Final = 2**53 - 1
"""Largest integer that JavaScript represents exactly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EphLease:
    """Parsed body of one of the Event Processor Host's blobs, which holds a partition's lease and checkpoint.

        body       {"partitionId":"0","owner":"host-1","epoch":4,"token":"<lease id>","sequenceNumber":17,
                    "offset":"4096","record":{…}}
        metadata   owninghost = the owner

    A host's epoch counts from -1, ours from 0: a host that opens a receiver passes ours less one. `offset` is absent
    until the first checkpoint; then the position is that pair. All other fields are in `record`, which only our
    programs write; a host that takes the lease drops it, and with it a checkpoint of another kind.

    Source: Azure/azure-event-hubs-node processor/lib/azureBlob.ts, blobLease (fields and their defaults).
    """

    record: LeaseRecord
    token: str
    """The id of the owner's native lease; empty: none."""


class _HostFields(msgspec.Struct, kw_only=True, rename="camel"):
    """The fields of a body, in their order."""

    partition_id: object = None
    owner: str | None = None
    epoch: int = -1
    token: str | None = None
    sequence_number: int = 0
    offset: str | msgspec.UnsetType | None = msgspec.UNSET
    record: object = None


def body_of(record: LeaseRecord, token: str) -> bytes:
    """Encode a record in the format of a host."""
    fields = _HostFields(
        partition_id=record.key,
        owner=record.owner or "",
        epoch=record.epoch - 1,
        token=token,
        record=json.loads(encode(record)),
    )
    position = record.checkpoint
    if position is not None and _is_plain(position):
        fields.sequence_number, fields.offset = int(position.seq), position.offset
    plain = msgspec.to_builtins(fields)
    return json.dumps(plain, separators=(",", ":"), ensure_ascii=False).encode()


def metadata_of(record: LeaseRecord) -> dict[str, str]:
    """Return the metadata of a record, which listings show; empty if it has no owner."""
    return {} if record.owner is None else {OWNER_METADATA: header_value(record.owner)}


def read_body(body: bytes, *, key: str, name: str) -> EphLease:
    """Parse a body.

    Raises:
        InvalidStateError: it is none; the error names the blob and the field.
    """
    try:
        fields = msgspec.convert(json.loads(body), _HostFields)
    except msgspec.ValidationError as error:
        raise InvalidStateError(f"blob {name}: {error}; restore or delete it") from error
    except (ValueError, RecursionError) as error:
        raise InvalidStateError(
            f"blob {name}: expected JSON, got {body!r:.80}; restore or delete it"
        ) from error
    token = fields.token or ""
    if fields.record is None:
        return EphLease(record=_record_of_host(fields, key=key, name=name), token=token)
    return EphLease(record=decode(json.dumps(fields.record), key=key), token=token)


def _record_of_host(fields: _HostFields, *, key: str, name: str) -> LeaseRecord:
    """Return the record that a host's fields describe."""
    offset = fields.offset or None
    try:
        return LeaseRecord(
            key=key,
            epoch=fields.epoch + 1,
            owner=fields.owner or None,
            checkpoint=Position(str(fields.sequence_number), offset=offset) if offset else None,
        )
    except (ValidationError, InvalidPositionError) as error:
        raise InvalidStateError(f"blob {name}: {error}") from error


def _is_plain(position: Position) -> bool:
    """Tell whether a host can read a position."""
    if position.is_name or position.sub or not position.offset:
        return False
    return int(position.seq) <= SEQUENCE_NUMBER_MAX


class EphRecordStore:
    """Implements `broadsheet.leases.store.RecordStore`. An async context manager for the workers of one
    process.
    """

    def __init__(
        self,
        container: ContainerClient,
        *,
        consumer_group: str = "$default",
        prefix: str = "",
        lease_seconds: int = LEASE_SECONDS,
        clock: Clock | None = None,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """Describe the store; Azure is not asked yet.

        Args:
            container: That of the hosts. `delete_store` deletes it. Stays the caller's.
            consumer_group: As the hosts have it; blobs are in a folder of its name.
            prefix: The hosts' blob prefix, which they write before that name.
            lease_seconds: How long after a process's death its leases are free, 15 to 60.
            clock: Decides when this process counts a lease as lost.
            sleep: Waits between renewals, for a number of seconds.

        Raises:
            ValidationError: an argument is out of its range.
        """
        if not LEASE_SECONDS_MIN <= lease_seconds <= LEASE_SECONDS_MAX:
            raise ValidationError("lease_seconds", f"expected 15 to 60, got {lease_seconds}")
        self._container = BlobContainer(container)
        self._folder = checked_prefix(f"{prefix}{consumer_group}/")
        self._lease_seconds = lease_seconds
        self._clock = clock or SystemClock()
        self._keeper = BlobLeaseKeeper(
            self._container, lease_seconds=lease_seconds, clock=self._clock, sleep=sleep
        )
        self._process_id = uuid4()
        self._joined: set[str] = set()
        """Workers of this process."""
        self._tasks = TaskGroup()
        self._keeping: asyncio.Task[None] | None = None

    @property
    def tells_who_lives(self) -> bool:
        """True, because native leases end when they are not renewed."""
        return True

    @property
    def deadline_monotonic_seconds(self) -> float | None:
        """Time until which, by our clock, no rival can have taken a lease of this process; None while it has none."""
        return self._keeper.deadline_monotonic_seconds

    async def exists(self) -> bool:
        """Return whether the container is there."""
        return await self._container.exists()

    async def create_store(self) -> bool:
        """Create the container; return False if it exists."""
        return await self._container.create()

    async def delete_store(self) -> None:
        """Delete the container; for about half a minute it cannot be created again."""
        self._keeper.drop_all()
        await self._container.delete()

    async def get(self, key: str) -> Versioned | None:
        """Return the present record."""
        blob = await self._container.read(self._name(key))
        return None if blob is None else self._versioned(key, blob)

    async def scan(
        self, owner: str | None = None, *, on_unreadable: OnUnreadable = log_unreadable
    ) -> AsyncIterator[Versioned]:
        """Yield records. Listings do not show bodies, so each is read, several at a time."""
        keys = [key for key, _ in await listed(self._container, self._folder)]
        for start in range(0, len(keys), READS_AT_ONCE):
            some = keys[start : start + READS_AT_ONCE]
            for found in await asyncio.gather(
                *(self._readable(key, on_unreadable) for key in some)
            ):
                if found is not None and owner in (None, found.record.owner):
                    yield found

    async def create(self, record: LeaseRecord) -> Versioned:
        """Create a blob; an existing blob is not replaced, even if it is not leased."""
        return await self._put(record, only_if=None)

    async def replace(self, record: LeaseRecord, expected: Versioned) -> Versioned:
        """Write a blob in place of the expected one, under its native lease or under a new one."""
        before = expected.record
        version = FencedVersion.parsed(expected.version)
        if version.fence != expected.fence:
            raise RecordConflictError(record.key, await self.get(record.key))
        if record.holder is not None and record.epoch != before.epoch:
            return await self._acquire(record, version)
        if record.holder == before.holder:
            return await self._put(record, only_if=version.etag, token=version.token)
        ended = await self._put(record, only_if=version.etag, lease_id=version.token)
        await self._release(record.key, version.token)
        return ended

    async def delete(self, key: str, expected: Versioned | None = None) -> bool:
        """Delete a blob; without `expected`, even while another worker has its lease."""
        name = self._name(key)
        if expected is not None:
            version = FencedVersion.parsed(expected.version)
            try:
                return await self._container.remove(
                    name, only_if=version.etag, lease_id=version.token or None
                )
            except BlobRefusedError as error:
                current = await self.get(key)
                if current is None:
                    return False
                raise RecordConflictError(key, current) from error
        for _ in range(DELETE_ATTEMPTS_MAX):
            try:
                return await self._container.remove(name)
            except BlobRefusedError:
                self._keeper.drop(name)
                await self._end_lease(name)
        raise DependencyError(
            f"lease {key} not deleted: other workers acquired it {DELETE_ATTEMPTS_MAX} times meanwhile"
        )

    async def join(self, worker: str) -> None:
        """Start renewing leases that the worker acquires or is assigned, but not those that it has already."""
        assert self._keeping is not None, "the store is used outside its `async with` block"
        if worker in self._joined:
            return
        async for name, token in self._leases_of({header_value(worker)}):
            # Left from another process: no consumer of this one processes it.
            self._keeper.ignore(name, token)
        self._joined.add(worker)

    async def __aenter__(self) -> Self:
        await self._tasks.__aenter__()
        self._keeping = self._tasks.start_soon(
            self._keeper.run(self._adopt), name="leasing.eph.renew"
        )
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Not `stop()`: this may run in another task than `__aenter__` did.
        if self._keeping is not None:
            self._keeping.cancel()
        try:
            await self._tasks.__aexit__(kind, error, trace)
        finally:
            self._joined.clear()
            await self._keeper.release_all()

    async def _acquire(self, record: LeaseRecord, version: FencedVersion) -> Versioned:
        """Acquire the native lease, then write its owner."""
        name = self._name(record.key)
        token = self._token_for(record, version)
        since_seconds = self._clock.monotonic_seconds()
        try:
            if version.fence:
                await self._container.change(name, version.token, token, only_if=version.etag)
            else:
                await self._container.acquire(
                    name, token, seconds=self._lease_seconds, only_if=version.etag
                )
        except BlobRefusedError as error:
            raise RecordConflictError(record.key, await self.get(record.key)) from error
        self._keeper.drop(name)
        try:
            taken = await self._put(record, only_if=version.etag, token=token)
        except RecordConflictError as conflict:
            # Keep the lease if an earlier attempt at the same acquisition has won it.
            if conflict.current is None or _token_of(conflict.current) != token:
                await self._release(record.key, token)
            raise
        if record.holder in self._joined:
            self._keeper.keep(name, token, since_seconds=since_seconds)
        return taken

    def _token_for(self, record: LeaseRecord, version: FencedVersion) -> str:
        """Return a new lease's id; retries of one acquisition get the same, because Azure grants that again."""
        return str(uuid5(self._process_id, f"{record.key} {record.owner} {version.text()}"))

    async def _put(
        self,
        record: LeaseRecord,
        *,
        only_if: str | None,
        token: str = "",
        lease_id: str = "",
    ) -> Versioned:
        """Write a record.

        Args:
            record: What is written.
            only_if: The ETag that the blob must have; None: it must not be there.
            token: The native lease that the blob has, and keeps.
            lease_id: The one that it has, and loses.
        """
        content = BlobContent(body=body_of(record, token), metadata=metadata_of(record))
        try:
            etag = await self._container.put(
                self._name(record.key), content, only_if=only_if, lease_id=token or lease_id or None
            )
        except BlobRefusedError as error:
            raise RecordConflictError(record.key, await self.get(record.key)) from error
        return _fenced(record, etag, token)

    async def _release(self, key: str, token: str) -> None:
        """Release a native lease; if that fails, it ends by itself."""
        name = self._name(key)
        self._keeper.drop(name, token)
        if not token:
            return
        try:
            await self._container.release(name, token)
        except (BlobRefusedError, LeasingError) as error:
            _log.info("leasing.eph.release_failed", blob=name, cause=str(error))

    async def _readable(self, key: str, on_unreadable: OnUnreadable) -> Versioned | None:
        try:
            return await self.get(key)
        except UnreadableLeaseError as error:
            on_unreadable(error)
            return None

    async def _end_lease(self, name: str) -> None:
        try:
            await self._container.end_lease(name)
        except BlobRefusedError as error:
            _log.info("leasing.eph.no_lease_to_break", blob=name, cause=error.code)

    async def _adopt(self) -> None:
        """Start renewing leases that other processes assigned to our workers."""
        if not self._joined:
            return
        workers = {header_value(worker) for worker in self._joined}
        since_seconds = self._clock.monotonic_seconds()
        async for name, token in self._leases_of(workers):
            self._keeper.adopt(name, token, since_seconds=since_seconds)

    async def _leases_of(self, workers: set[str]) -> AsyncIterator[tuple[str, str]]:
        """Yield the blobs leased for workers and not renewed here, with their tokens."""
        for key, shown in await listed(self._container, self._folder):
            owner = shown.metadata.get(OWNER_METADATA, "")
            if not shown.is_leased or owner not in workers or self._keeper.holds(shown.name):
                continue
            blob = await self._container.read(shown.name)
            if blob is None:
                continue
            try:
                lease = _lease_in(blob, key)
            except UnreadableLeaseError as error:
                log_unreadable(error)
                continue
            if blob.is_leased and lease.token and _metadata_owner(lease.record) in workers:
                yield blob.name, lease.token

    def _name(self, key: str) -> str:
        return self._folder + encoded(key)

    def _versioned(self, key: str, blob: Blob) -> Versioned:
        lease = _lease_in(blob, key)
        return _fenced(lease.record, blob.etag, lease.token if blob.is_leased else "")


def _lease_in(blob: Blob, key: str) -> EphLease:
    with reading_row(key):
        return read_body(blob.body or b"", key=key, name=blob.name)


def _fenced(record: LeaseRecord, etag: str, token: str) -> Versioned:
    """Return a record whose fence lasts as long as its owner has the native lease."""
    fence = record.epoch if record.holder is not None and token else 0
    version = FencedVersion(etag=etag, fence=fence, token=token if fence else "")
    return Versioned(record=record, version=version.text(), fence=fence)


def _token_of(found: Versioned) -> str:
    return FencedVersion.parsed(found.version).token


def _metadata_owner(record: LeaseRecord) -> str:
    return metadata_of(record).get(OWNER_METADATA, "")
