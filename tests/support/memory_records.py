"""Lease records in memory, as several processes see them: for simulations; held to the suite of all record stores."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field, replace

from broadsheet.leases.errors import InvalidStateError, UnreadableLeaseError
from broadsheet.leases.record import LeaseRecord, RecordConflictError, Version, Versioned
from broadsheet.leases.store import OnUnreadable, log_unreadable

Audit = Callable[[LeaseRecord | None, LeaseRecord], None]


@dataclass(slots=True)
class MemoryRecords:
    """What all processes share."""

    audit: Audit = lambda _before, _after: None
    """Told of each write."""
    versions: int = 0
    found: dict[str, Versioned] | None = None
    """None: there is no store."""
    spoiled: set[str] = field(default_factory=set)

    def current(self, key: str) -> Versioned | None:
        """Return a record."""
        return self._found().get(key)

    def put(self, record: LeaseRecord) -> Versioned:
        """Write a record."""
        before = self.current(record.key)
        self.audit(None if before is None else before.record, record)
        self.versions += 1
        fence = 0 if record.holder is None else record.epoch + 1
        written = Versioned(record=record, version=Version(str(self.versions)), fence=fence)
        self._found()[record.key] = written
        return written

    def remove(self, key: str) -> bool:
        """Delete a record."""
        self.spoiled.discard(key)
        return self._found().pop(key, None) is not None

    def readable(self) -> list[str]:
        """Return the keys that can be read, in order."""
        return sorted(self._found().keys() - self.spoiled)

    def _found(self) -> dict[str, Versioned]:
        if self.found is None:
            raise InvalidStateError("there is no store in memory: create it")
        return self.found


@dataclass(slots=True)
class MemoryRecordStore:
    """One process's way to them, which may take a while."""

    records: MemoryRecords
    latency_seconds: Callable[[], float] = lambda: 0.0
    """How long a request takes on its way, and its answer on its way back."""

    @property
    def tells_who_lives(self) -> bool:
        """Observers watch the counters."""
        return False

    async def exists(self) -> bool:
        """Return whether it was created."""
        await self._travel()
        return self.records.found is not None

    async def create_store(self) -> bool:
        """Create it."""
        await self._travel()
        if self.records.found is not None:
            return False
        self.records.found = {}
        return True

    async def delete_store(self) -> None:
        """Delete it."""
        await self._travel()
        self.records.found = None

    async def get(self, key: str) -> Versioned | None:
        """Return a record."""
        await self._travel()
        self._check_readable(key)
        found = self.records.current(key)
        await self._travel()
        return found

    async def scan(
        self, owner: str | None = None, *, on_unreadable: OnUnreadable = log_unreadable
    ) -> AsyncIterator[Versioned]:
        """Yield records, all as of one moment."""
        await self._travel()
        found = [self.records.current(key) for key in self.records.readable()]
        await self._travel()
        for key in sorted(self.records.spoiled):
            on_unreadable(_unreadable(key))
        for each in found:
            if each is not None and owner in (None, each.record.owner):
                yield each

    async def create(self, record: LeaseRecord) -> Versioned:
        """Write what is not there."""
        await self._travel()
        self._check_readable(record.key)
        current = self.records.current(record.key)
        if current is not None:
            raise RecordConflictError(record.key, current)
        return await self._answered(self.records.put(record))

    async def replace(self, record: LeaseRecord, expected: Versioned) -> Versioned:
        """Write in place of what is expected."""
        await self._travel()
        current = self.records.current(record.key)
        if current is None or not _is(current, expected):
            raise RecordConflictError(record.key, current)
        return await self._answered(self.records.put(record))

    async def delete(self, key: str, expected: Versioned | None = None) -> bool:
        """Delete what is there, or what is expected."""
        await self._travel()
        current = self.records.current(key)
        if current is not None and expected is not None and not _is(current, expected):
            raise RecordConflictError(key, current)
        return self.records.remove(key)

    async def join(self, worker: str) -> None:
        """Do nothing."""

    def _check_readable(self, key: str) -> None:
        if key in self.records.spoiled:
            raise _unreadable(key)

    async def _travel(self) -> None:
        await asyncio.sleep(self.latency_seconds())

    async def _answered(self, written: Versioned) -> Versioned:
        await self._travel()
        return written


def _unreadable(key: str) -> UnreadableLeaseError:
    return UnreadableLeaseError(key, f"lease {key} cannot be read")


@dataclass(frozen=True, slots=True)
class MemorySubject:
    """Two processes."""

    store: MemoryRecordStore
    rival: MemoryRecordStore

    async def spoil(self, key: str) -> None:
        """Make a record unreadable."""
        self.store.records.spoiled.add(key)


def memory_subject() -> MemorySubject:
    """Return a store that is not created yet."""
    records = MemoryRecords()
    return MemorySubject(MemoryRecordStore(records), MemoryRecordStore(records))


def _is(current: Versioned, expected: Versioned) -> bool:
    return replace(current, record=expected.record) == expected
