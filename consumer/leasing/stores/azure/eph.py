"""Records in the blobs of Azure's Event Processor Host, beside hosts that still run.

The fence is the native lease of the blob: Azure ends it when nobody renews it, and then refuses what its holder writes.
Both conditions are compared in every write, the lease's id and the ETag. A lease is stolen as hosts do, by changing its
id; the record follows in a second request, and until then nobody can write: the old holder's id is no longer the
lease's, and the thief's lease ends by itself if it dies in between.

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

import structlog
from azure.storage.blob.aio import ContainerClient

from broadsheet.allocator.errors import ValidationError
from broadsheet.allocator.runtime.clock import Clock, SystemClock
from broadsheet.allocator.runtime.task_group import TaskGroup
from broadsheet.consumer.errors import (
    DependencyError,
    InvalidPositionError,
    InvalidStateError,
    LeasingError,
    UnreadableLeaseError,
)
from broadsheet.consumer.leasing.codec import decode, encode
from broadsheet.consumer.leasing.position import Position
from broadsheet.consumer.leasing.record import LeaseRecord, RecordConflictError, Versioned
from broadsheet.consumer.leasing.store import OnUnreadable, log_unreadable, reading_row
from broadsheet.consumer.leasing.stores.azure.container import (
    Blob,
    BlobContainer,
    BlobContent,
    BlobRefusedError,
    FencedVersion,
    encoded,
    header_value,
)
from broadsheet.consumer.leasing.stores.azure.eph_keeper import BlobLeaseKeeper
from broadsheet.consumer.leasing.stores.azure.native import checked_prefix, listed

LEASE_SECONDS: Final = 30
"""Default length of a native lease; that of a host."""
LEASE_SECONDS_MIN: Final = 15
LEASE_SECONDS_MAX: Final = 60
"""What Azure allows."""
READS_AT_ONCE: Final = 16
"""Requests at a time of a scan."""
DELETE_ATTEMPTS_MAX: Final = 3
"""How often a lease is ended that others take before its blob can be deleted."""
_log = structlog.get_logger()

# The blobs of Azure's Event Processor Host: lease and checkpoint of a partition in one.
#
#     body       {"partitionId":"0","owner":"host-1","epoch":4,"token":"<lease
#       id>","sequenceNumber":17,"offset":"4096",
#                 "record":{…}}
#     metadata   owninghost = the owner
#
# Its epoch counts from -1, ours from 0: a host that opens a receiver gives it ours less one.
# `offset` is absent until the first checkpoint, and then the position is that pair. What these
# fields cannot say, a host does not know: it stands in `record`, which no other program writes; a
# host that takes the lease drops it, and with it a checkpoint of another kind.
#
# Source: Azure/azure-event-hubs-node processor/lib/azureBlob.ts, blobLease (fields and their
# defaults).

OWNER_METADATA: Final = "owninghost"
SEQUENCE_NUMBER_MAX: Final = 2**53 - 1
"""Largest number that a program in JavaScript reads exactly."""
_RECORD: Final = "record"


@dataclass(frozen=True, slots=True, kw_only=True)
class EphLease:
    """What a body says."""

    record: LeaseRecord
    token: str
    """The id of the owner's native lease; empty: nobody's."""


def body_of(record: LeaseRecord, token: str) -> bytes:
    """Return a record as a host writes and reads it."""
    fields: dict[str, object] = {
        "partitionId": record.key,
        "owner": record.owner or "",
        "epoch": record.epoch - 1,
        "token": token,
        "sequenceNumber": 0,
    }
    position = record.checkpoint
    if position is not None and _is_plain(position):
        fields |= {"sequenceNumber": int(position.seq), "offset": position.offset}
    fields[_RECORD] = json.loads(encode(record))
    return json.dumps(fields, separators=(",", ":"), ensure_ascii=False).encode()


def metadata_of(record: LeaseRecord) -> dict[str, str]:
    """Return what listings show of a record; nothing if it has no owner."""
    return {} if record.owner is None else {OWNER_METADATA: header_value(record.owner)}


def read_body(body: bytes, *, key: str, name: str) -> EphLease:
    """Return what a body says.

    Raises:
        InvalidStateError: it is none; the error names the blob and the field.
    """
    try:
        fields = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidStateError(
            f"blob {name}: expected JSON, got {body!r:.80}; restore or delete it"
        ) from error
    if not isinstance(fields, dict):
        raise InvalidStateError(f"blob {name}: expected an object, got {body!r:.80}")
    token = _text(fields, "token", name)
    if fields.get(_RECORD) is None:
        return EphLease(record=_record_of_host(fields, key=key, name=name), token=token)
    return EphLease(record=decode(json.dumps(fields[_RECORD]), key=key), token=token)


def _record_of_host(fields: dict[str, object], *, key: str, name: str) -> LeaseRecord:
    """Return what a host wrote."""
    epoch = _whole(fields, "epoch", name, default=-1)
    offset = _text(fields, "offset", name)
    sequence_number = _whole(fields, "sequenceNumber", name)
    owner = _text(fields, "owner", name)
    try:
        return LeaseRecord(
            key=key,
            epoch=epoch + 1,
            owner=owner or None,
            checkpoint=Position(str(sequence_number), offset=offset) if offset else None,
        )
    except (ValidationError, InvalidPositionError) as error:
        raise InvalidStateError(f"blob {name}: {error}") from error


def _is_plain(position: Position) -> bool:
    """Tell whether a host can read a position."""
    if position.is_name or position.sub or not position.offset:
        return False
    return int(position.seq) <= SEQUENCE_NUMBER_MAX


def _text(fields: dict[str, object], field: str, name: str) -> str:
    value = fields.get(field)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise InvalidStateError(f"blob {name}: {field}: expected a text, got {value!r:.80}")
    return value


def _whole(fields: dict[str, object], field: str, name: str, *, default: int = 0) -> int:
    value = fields.get(field, default)
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidStateError(f"blob {name}: {field}: expected a whole number, got {value!r:.80}")
    return value


class EphRecordStore:
    """Implements `broadsheet.consumer.leasing.store.RecordStore`. An async context manager for the workers of one
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
        """Native leases end when their holders do not renew them."""
        return True

    @property
    def deadline_monotonic_seconds(self) -> float | None:
        """Until when, by our clock, nobody can have taken any of this process's leases; None while it has none."""
        return self._keeper.deadline_monotonic_seconds

    async def exists(self) -> bool:
        """Return whether the container is there."""
        return await self._container.exists()

    async def create_store(self) -> bool:
        """Create the container. False if it is there."""
        return await self._container.create()

    async def delete_store(self) -> None:
        """Delete the container. Azure takes about half a minute, during which it cannot be created again."""
        self._keeper.drop_all()
        await self._container.delete()

    async def get(self, key: str) -> Versioned | None:
        """Return a record as it is now."""
        blob = await self._container.read(self._name(key))
        return None if blob is None else self._versioned(key, blob)

    async def scan(
        self, owner: str | None = None, *, on_unreadable: OnUnreadable = log_unreadable
    ) -> AsyncIterator[Versioned]:
        """Yield records. A listing does not show bodies, so each is read, some at a time."""
        keys = [key for key, _ in await listed(self._container, self._folder)]
        for start in range(0, len(keys), READS_AT_ONCE):
            some = keys[start : start + READS_AT_ONCE]
            for found in await asyncio.gather(
                *(self._readable(key, on_unreadable) for key in some)
            ):
                if found is not None and owner in (None, found.record.owner):
                    yield found

    async def create(self, record: LeaseRecord) -> Versioned:
        """Write a blob that is not there yet, never one that is there and not leased."""
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
        """Delete a blob, whoever has its lease if only the key is given."""
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
        raise DependencyError(f"lease {key}: others took it {DELETE_ATTEMPTS_MAX} times")

    async def join(self, worker: str) -> None:
        """Renew from now on what the worker acquires, and what others assign to it; not what it has already."""
        assert self._keeping is not None, "the store is used outside its `async with` block"
        if worker in self._joined:
            return
        async for name, token in self._leases_of({header_value(worker)}):
            self._keeper.ignore(name, token)  # Of another process: nobody here processes it.
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
        """Get the native lease, and write who has it."""
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
            # Unless the very same acquisition was faster: then the lease is its.
            if conflict.current is None or _token_of(conflict.current) != token:
                await self._release(record.key, token)
            raise
        if record.holder in self._joined:
            self._keeper.keep(name, token, since_seconds=since_seconds)
        return taken

    def _token_for(self, record: LeaseRecord, version: FencedVersion) -> str:
        """Return the id of a new lease; the same if one acquisition is tried again, for Azure then grants it again."""
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
        """Give a native lease back; what cannot be given back ends by itself."""
        name = self._name(key)
        self._keeper.drop(name, token)
        if not token:
            return
        try:
            await self._container.release(name, token)
        except (BlobRefusedError, LeasingError) as error:
            _log.info("leasing.eph.not_released", blob=name, cause=str(error))

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
            _log.info("leasing.eph.no_lease_to_end", blob=name, cause=error.code)

    async def _adopt(self) -> None:
        """Keep what other processes assigned to our workers."""
        if not self._joined:
            return
        workers = {header_value(worker) for worker in self._joined}
        since_seconds = self._clock.monotonic_seconds()
        async for name, token in self._leases_of(workers):
            self._keeper.adopt(name, token, since_seconds=since_seconds)

    async def _leases_of(self, workers: set[str]) -> AsyncIterator[tuple[str, str]]:
        """Yield the blobs that are leased for workers and not kept here, with their tokens."""
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
    """Return a record that is fenced as long as its owner has the native lease."""
    fence = record.epoch if record.holder is not None and token else 0
    version = FencedVersion(etag=etag, fence=fence, token=token if fence else "")
    return Versioned(record=record, version=version.text(), fence=fence)


def _token_of(found: Versioned) -> str:
    return FencedVersion.parsed(found.version).token


def _metadata_owner(record: LeaseRecord) -> str:
    return metadata_of(record).get(OWNER_METADATA, "")
