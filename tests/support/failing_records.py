"""A fault between who uses records and their store: calls that fail, with nothing done."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from broadsheet.leases.errors import LeasingError
from broadsheet.leases.record import LeaseRecord, Versioned
from broadsheet.leases.store import OnUnreadable, RecordStore, log_unreadable


@dataclass(slots=True)
class FailingRecords:
    """Passes everything on to a store, but for what is to fail."""

    store: RecordStore
    failures: dict[str, list[LeasingError]] = field(default_factory=lambda: defaultdict(list))
    """What the next calls of an operation raise, by its name."""
    calls: list[str] = field(default_factory=list)
    """The operations that were called."""

    @property
    def tells_who_lives(self) -> bool:
        """As the store says."""
        return self.store.tells_who_lives

    async def exists(self) -> bool:
        """Pass it on."""
        self._check("exists")
        return await self.store.exists()

    async def create_store(self) -> bool:
        """Pass it on."""
        self._check("create_store")
        return await self.store.create_store()

    async def delete_store(self) -> None:
        """Pass it on."""
        self._check("delete_store")
        await self.store.delete_store()

    async def get(self, key: str) -> Versioned | None:
        """Pass it on."""
        self._check("get")
        return await self.store.get(key)

    async def scan(
        self, owner: str | None = None, *, on_unreadable: OnUnreadable = log_unreadable
    ) -> AsyncIterator[Versioned]:
        """Pass it on."""
        self._check("scan")
        async for found in self.store.scan(owner, on_unreadable=on_unreadable):
            yield found

    async def create(self, record: LeaseRecord) -> Versioned:
        """Pass it on."""
        self._check("create")
        return await self.store.create(record)

    async def replace(self, record: LeaseRecord, expected: Versioned) -> Versioned:
        """Pass it on."""
        self._check("replace")
        return await self.store.replace(record, expected)

    async def delete(self, key: str, expected: Versioned | None = None) -> bool:
        """Pass it on."""
        self._check("delete")
        return await self.store.delete(key, expected)

    async def join(self, worker: str) -> None:
        """Pass it on."""
        await self.store.join(worker)

    def _check(self, operation: str) -> None:
        self.calls.append(operation)
        if self.failures[operation]:
            raise self.failures[operation].pop(0)
