"""Renewals and takes a second of a store, in turn with as many writes of the bare client."""

from __future__ import annotations

import statistics
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import cycle

from bench.leasing.bare import BARE, BareClient, Texts, each_at_once
from bench.leasing.places import CALLS_AT_ONCE, Place, lease_keys, opened
from bench.report import Params, emit_pair
from broadsheet.leases import rules
from broadsheet.leases.codec import encode
from broadsheet.leases.compare_and_swap import stamped
from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.position import TRIM_HORIZON, Position
from broadsheet.leases.record import LeaseRecord, Versioned
from broadsheet.leases.store import RecordStore

ROUNDS = 3


async def run(bench: str, place: Place, leases: int, params: Params) -> None:
    """Measure and print `renew_per_s` and `take_per_s`.

    Renewals run as many at a time as a worker's do. Takes run so too, and one after the other, as a worker takes.
    """
    async with _rates(place, leases) as rates:
        for figure, call, at_once in (
            ("renew_per_s", rates.renew, CALLS_AT_ONCE),
            ("take_per_s", rates.take, CALLS_AT_ONCE),
            ("take_per_s", rates.take, 1),
        ):
            emit_pair(
                bench,
                figure,
                await rates.compare(call, at_once),
                "1/s",
                limit=rates.bare.what,
                leases=leases,
                at_once=at_once,
                **params,
            )


async def fill(store: RecordStore, leases: int, owners: Iterator[str]) -> None:
    """Create a store with leases, each with the next owner."""
    await store.create_store()

    async def create(key: str) -> None:
        record = LeaseRecord(key=key, owner=next(owners), checkpoint=Position(TRIM_HORIZON))
        await store.create(record)

    await each_at_once(lease_keys(leases), CALLS_AT_ONCE, create)


@dataclass(slots=True)
class _Rates:
    """Leases that one process holds, and takes from itself."""

    manager: LeaseManager
    held: dict[str, Versioned]
    bare: BareClient

    async def renew(self, key: str) -> None:
        """Renew a lease."""
        self._keep(key, await self.manager.renew(self.held[key]))

    async def take(self, key: str) -> None:
        """Take a lease from the other of two workers."""
        held = self.held[key]
        rival = "worker-0" if held.record.owner == "worker-1" else "worker-1"
        self._keep(key, await self.manager.take(held, rival))

    async def compare(
        self, call: Callable[[str], Awaitable[None]], at_once: int
    ) -> tuple[float, float]:
        """Return the medians of calls and of bare writes a second, after one round of each that is not counted."""
        await each_at_once(list(self.held), at_once, call)
        await self.bare.write_all(at_once)
        ours: list[float] = []
        limit: list[float] = []
        for _ in range(ROUNDS):
            ours.append(len(self.held) / await each_at_once(list(self.held), at_once, call))
            limit.append(len(self.held) / await self.bare.write_all(at_once))
        return statistics.median(ours), statistics.median(limit)

    def _keep(self, key: str, lease: Versioned | None) -> None:
        if lease is None:
            raise RuntimeError(f"{key} is lost, and nobody else was there")
        self.held[key] = lease


@asynccontextmanager
async def _rates(place: Place, leases: int) -> AsyncIterator[_Rates]:
    async with opened(place) as store:
        await fill(store, leases, cycle(["worker-0"]))
        manager = LeaseManager(store)
        held = {each.record.key: each for each in await manager.list_leases()}
        records = [each.record for each in held.values()]
        # Of the same size: renewals of the same records.
        versions = (_texts(map(_renewed, records)), _texts(map(_renewed, records)))
        async with BARE[place.backend](place, Texts(versions)) as bare:
            rates = _Rates(manager, held, bare)
            await each_at_once(list(held), CALLS_AT_ONCE, rates.take)
            yield rates
        await store.delete_store()


def _renewed(record: LeaseRecord) -> LeaseRecord:
    return stamped(record, rules.renew(record))[0]


def _texts(records: Iterable[LeaseRecord]) -> dict[str, str]:
    return {record.key: encode(record) for record in records}
