"""Renewal of the native leases that a process holds.

A lease that was not renewed for its length is never renewed again, although Azure would allow it: its consumer may have
stopped, and then no worker would process a shard that this process keeps from the others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import structlog

from broadsheet.leases.errors import LeasingError
from broadsheet.leases.stores.azure.container import BlobContainer, BlobRefusedError
from broadsheet.runtime.clock import Clock

RENEWALS_AT_ONCE = 16
"""Concurrent renewals; a hub has up to a few thousand partitions."""

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Held:
    token: str
    deadline_monotonic_seconds: float


class BlobLeaseKeeper:
    """The native leases of one process, by the names of their blobs."""

    def __init__(
        self,
        container: BlobContainer,
        *,
        lease_seconds: float,
        clock: Clock,
        sleep: Callable[[float], Awaitable[None]],
    ) -> None:
        """Start without leases.

        Args:
            container: Where the blobs are.
            lease_seconds: Length of a native lease.
            clock: Decides when one counts as lost.
            sleep: Waits, for a number of seconds.
        """
        self._container = container
        self._lease_seconds = lease_seconds
        self._clock = clock
        self._sleep = sleep
        self._held: dict[str, _Held] = {}
        self._ignored: set[tuple[str, str]] = set()
        """Leases, as blob and token, that are never renewed here."""

    @property
    def deadline_monotonic_seconds(self) -> float | None:
        """Time until which, by our clock, Azure cannot have ended any held lease; None without one."""
        return min((held.deadline_monotonic_seconds for held in self._held.values()), default=None)

    def holds(self, name: str) -> bool:
        """Tell whether a blob's lease is renewed here."""
        return name in self._held

    def keep(self, name: str, token: str, *, since_seconds: float) -> None:
        """Start renewing a lease.

        Args:
            name: Of the blob.
            token: Of its lease.
            since_seconds: Before the request for it was sent, by the clock.
        """
        self._held[name] = _Held(
            token=token, deadline_monotonic_seconds=since_seconds + self._lease_seconds
        )

    def adopt(self, name: str, token: str, *, since_seconds: float) -> None:
        """Start renewing a lease that another process assigned to us, unless it is ignored or renewed already."""
        if name not in self._held and (name, token) not in self._ignored:
            self.keep(name, token, since_seconds=since_seconds)

    def ignore(self, name: str, token: str) -> None:
        """Never renew a lease, although our worker owns it."""
        self._ignored.add((name, token))
        self.drop(name, token)

    def drop(self, name: str, token: str | None = None) -> None:
        """Stop renewing a blob's lease; if a token is given, only the lease of that token."""
        held = self._held.get(name)
        if held is not None and token in (None, held.token):
            del self._held[name]

    def drop_all(self) -> None:
        """Stop renewing all leases."""
        self._held.clear()

    async def run(self, before_each: Callable[[], Awaitable[None]]) -> None:
        """Renew until cancelled.

        Args:
            before_each: Called before each round; what Azure fails at is logged.
        """
        while True:
            await self._sleep(self._lease_seconds / 3)
            try:
                await before_each()
            except LeasingError as error:
                _log.warning("leasing.eph.scan_failed", cause=str(error))
            await self.renew_all()

    async def renew_all(self) -> None:
        """Renew all held leases."""
        names = sorted(self._held)
        for start in range(0, len(names), RENEWALS_AT_ONCE):
            some = names[start : start + RENEWALS_AT_ONCE]
            await asyncio.gather(*(self._renew(name) for name in some))

    async def release_all(self) -> None:
        """Release all held leases; one that cannot be released ends by itself."""
        held_by_name, self._held = self._held, {}
        for name, held in sorted(held_by_name.items()):
            try:
                await self._container.release(name, held.token)
            except (BlobRefusedError, LeasingError) as error:
                _log.info("leasing.eph.release_failed", blob=name, cause=str(error))

    async def _renew(self, name: str) -> None:
        held = self._held.get(name)
        if held is None:
            return
        sent_seconds = self._clock.monotonic_seconds()
        if sent_seconds >= held.deadline_monotonic_seconds:
            _log.warning("leasing.eph.lease_lost", blob=name, cause="not renewed in time")
            # Never renew it again: its consumer may have stopped, and no worker would process the shard.
            self.ignore(name, held.token)
            return
        try:
            await self._container.renew(name, held.token)
        except BlobRefusedError as error:
            _log.warning("leasing.eph.lease_lost", blob=name, cause=error.code)
            self.drop(name, held.token)
        except LeasingError as error:
            _log.warning("leasing.eph.renewal_failed", blob=name, cause=str(error))
        else:
            if self._held.get(name) == held:
                self.keep(name, held.token, since_seconds=sent_seconds)
