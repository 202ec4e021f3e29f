"""Leader election: one row that a worker holds, renewed less often than leases because little depends on it.

A store that knows which workers live also knows that the leader is gone. Elsewhere, candidates watch the row's counter,
each by its own clock, and one of them takes the row when it has not moved for its length. The leader has stopped by
then, by its own clock. A leader that restarts under its name leads again at once.

Source: awslabs/amazon-kinesis-client coordinator.DynamoDBLockBasedLeaderDecider (lengths).
"""

from __future__ import annotations

from typing import Final

from broadsheet.leases.errors import InvalidStateError
from broadsheet.leases.expiry import LastSeen, is_free, sighted
from broadsheet.leases.facades.kcl import LeaseManager
from broadsheet.leases.record import LeaseRecord, Versioned
from broadsheet.leases.record_processor.held_lease import HeldLease
from broadsheet.leases.store import ForeignLeader, RecordStore, TellsForeignLeader
from broadsheet.runtime.clock import Clock

LEADER_KEY: Final = "leader"
WORKER_PREFIX: Final = "worker-"


def worker_key(name: str) -> str:
    """Return the key of a worker's row."""
    return f"{WORKER_PREFIX}{name}"


def check_rows(found: tuple[Versioned, ...]) -> None:
    """Refuse a store that holds other rows than a fleet's: its leader, and its workers.

        leader           held by the worker that leads
        worker-{name}    held by the worker, as long as it lives: so that one without a lease is known too

    Rows are lease records, so any record store will do, and a store that knows which workers live is believed. They are
    never in the store of the leases, so that its readers, including other programs, find leases only.

    Raises:
        InvalidStateError: there is something else in it.
    """
    for each in found:
        key = each.record.key
        if key != LEADER_KEY and not key.startswith(WORKER_PREFIX):
            raise InvalidStateError(
                f"the fleet's store holds {key}: expected {LEADER_KEY} and {WORKER_PREFIX}… only; give workers a store"
                " for their fleet that is not that of the leases"
            )


async def taken_row(manager: LeaseManager, key: str, worker: str) -> Versioned | None:
    """Take a row for a worker, held or not; return None if a rival was faster."""
    seen = await manager.get_lease(key)
    if seen is None:
        await manager.create_lease(LeaseRecord(key=key))
        seen = await manager.get_lease(key)
    return None if seen is None else await manager.take(seen, worker)


class LeaderLock:
    """One worker's side of the leader's row."""

    def __init__(self, worker: str, fleet: LeaseManager, *, lease_seconds: float) -> None:
        """Start without the lock, and without sightings of it.

        Args:
            worker: Its name.
            fleet: Of the fleet's rows; its clock is the worker's.
            lease_seconds: How long a leader may not move.
        """
        self._worker = worker
        self._manager = fleet
        self._lease_seconds = lease_seconds
        self._clock = fleet.clock
        self._held: HeldLease | None = None
        self._sighting: LastSeen | None = None

    @property
    def is_held(self) -> bool:
        """True while the worker leads, by its own clock."""
        return self._held is not None and self._held.is_held

    async def contend(self) -> bool:
        """Read the row, and take it if no leader lives; return True if the worker leads then.

        Raises:
            LeasingError: the store failed; the outcome is unknown.
        """
        if self.is_held:
            return True
        self._held = None
        asked_seconds = self._clock.monotonic_seconds()
        seen = await self._seen()
        if seen is None or not self._may_take(seen, asked_seconds):
            return False
        sent_seconds = self._clock.monotonic_seconds()
        taken = await self._manager.take(seen, self._worker)
        if taken is None:
            return False
        self._held = HeldLease(
            self._manager,
            taken,
            lease_seconds=self._lease_seconds,
            acquired_monotonic_seconds=sent_seconds,
        )
        return True

    async def renew(self) -> None:
        """Renew the row, if this worker leads.

        Raises:
            LeasingError: the store failed; the worker leads until its row runs out.
        """
        if self._held is not None:
            await self._held.renew()

    async def step_down(self) -> None:
        """Stop leading even if the store fails; if it answers, candidates need not wait.

        Raises:
            LeasingError: it did not.
        """
        held, self._held = self._held, None
        if held is not None:
            await held.give_up()

    async def _seen(self) -> Versioned | None:
        """Return the row, created if absent, and remember when it was seen to move."""
        found = await self._manager.get_lease(LEADER_KEY)
        if found is None:
            await self._manager.create_lease(LeaseRecord(key=LEADER_KEY))
            found = await self._manager.get_lease(LEADER_KEY)
        if found is not None:
            now_seconds = self._clock.monotonic_seconds()
            self._sighting = sighted(self._sighting, found.record, now_seconds=now_seconds)
        return found

    def _may_take(self, seen: Versioned, asked_seconds: float) -> bool:
        if seen.record.holder == self._worker:
            return True  # It is left from this worker's earlier life.
        if self._manager.store.tells_who_lives:
            return not seen.fence
        return self._sighting is not None and is_free(
            seen, self._sighting, now_seconds=asked_seconds, lease_seconds=self._lease_seconds
        )


# Liveness of other programs' leaders: their rows keep changing, by this worker's clock.


class ForeignWatch:
    """Remembers when each leader's row was seen to change."""

    def __init__(self, leases: RecordStore, clock: Clock) -> None:
        """Start without sightings: a leader's row in the first read counts as alive.

        Args:
            leases: Their store.
            clock: Measures it.
        """
        self._leases = leases if isinstance(leases, TellsForeignLeader) else None
        self._clock = clock
        self._changed_seconds: dict[ForeignLeader, float] = {}

    async def living(self) -> ForeignLeader | None:
        """Return a living leader of another program; None if there is none, or the store has only our leases.

        Raises:
            LeasingError: the store failed.
        """
        if self._leases is None:
            return None
        asked_seconds = self._clock.monotonic_seconds()
        found = await self._leases.foreign_leaders()
        now_seconds = self._clock.monotonic_seconds()
        self._changed_seconds = {
            leader: self._changed_seconds.get(leader, now_seconds) for leader in found
        }
        for leader, changed_seconds in self._changed_seconds.items():
            if asked_seconds - changed_seconds <= leader.lease_seconds:
                return leader
        return None
