"""A fault between a lease manager and its store: requests or answers that are lost."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from broadsheet.leases.errors import DependencyError
from broadsheet.leases.record import LeaseRecord, Versioned
from broadsheet.leases.store import OnUnreadable, RecordStore, log_unreadable


@dataclass(slots=True)
class LostAnswers:
    """Passes everything on to a store, and loses some of its writes, or what it says of them."""

    store: RecordStore
    losses: list[str] = field(default_factory=list)
    """What happens to the next writes: `request`, `answer`, or `none`."""
    writes: int = 0

    @property
    def tells_who_lives(self) -> bool:
        """As the store says."""
        return self.store.tells_who_lives

    async def exists(self) -> bool:
        """Pass it on."""
        return await self.store.exists()

    async def create_store(self) -> bool:
        """Pass it on."""
        return await self.store.create_store()

    async def delete_store(self) -> None:
        """Pass it on."""
        await self.store.delete_store()

    async def get(self, key: str) -> Versioned | None:
        """Pass it on."""
        return await self.store.get(key)

    def scan(
        self, owner: str | None = None, *, on_unreadable: OnUnreadable = log_unreadable
    ) -> AsyncIterator[Versioned]:
        """Pass it on."""
        return self.store.scan(owner, on_unreadable=on_unreadable)

    async def create(self, record: LeaseRecord) -> Versioned:
        """Perform it, unless it is lost."""
        loss = self._next_loss()
        created = await self.store.create(record)
        self._lose_answer(loss)
        return created

    async def replace(self, record: LeaseRecord, expected: Versioned) -> Versioned:
        """Perform it, unless it is lost."""
        loss = self._next_loss()
        written = await self.store.replace(record, expected)
        self._lose_answer(loss)
        return written

    async def delete(self, key: str, expected: Versioned | None = None) -> bool:
        """Pass it on."""
        return await self.store.delete(key, expected)

    async def join(self, worker: str) -> None:
        """Pass it on."""
        await self.store.join(worker)

    def _next_loss(self) -> str:
        self.writes += 1
        loss = self.losses.pop(0) if self.losses else "none"
        if loss == "request":
            raise DependencyError("the request was lost", outcome_unknown=True)
        return loss

    def _lose_answer(self, loss: str) -> None:
        if loss == "answer":
            raise DependencyError("the answer was lost", outcome_unknown=True)
