"""A lease that is kept alive, and that counts as lost here *before* it does in etcd.

Etcd counts a lease's time from when it handled the last renewal, which is after we sent it. So by our own monotonic
clock, etcd cannot have expired the lease at sending time + TTL. We stop some time before that moment, whether or not
etcd can be reached, and so fence ourselves before another process may take our place.

The clock runs on while the machine is suspended (`SystemClock`); the event loop's timers do not. So the deadline is
checked every `LOOK_SECONDS`: a process that wakes up learns within that time that its lease is lost.

Requires: the two machines' clocks run at the same rate to within the safety margin.

Source: gazette/core mainboilerplate and task.Group keep-alive (TTL/3); the local deadline and the renewal every second
are ours.
"""

from __future__ import annotations

import asyncio
import math

import structlog

from broadsheet.allocator.errors import EtcdError, EtcdUnavailableError, LeaseLostError
from broadsheet.allocator.etcd.api import Etcd
from broadsheet.allocator.ops import LeaseId
from broadsheet.runtime.backoff import Backoff
from broadsheet.runtime.clock import Clock

RENEWALS_PER_TTL = 3
RENEWAL_SECONDS_MAX = 1.0
"""Longest pause between renewals: a lease's remaining time in etcd tells peers when its holder was last alive. To
renew one costs etcd no write."""
LOOK_SECONDS = 0.25
"""Longest sleep between two checks of the deadline."""
SAFETY_SHARE = 0.1
"""Part of the TTL before its end at which the lease counts as lost: time to stop, and room for clock drift."""
RETRY_DELAY_SECONDS_MAX = 1.0
REVOKE_TIMEOUT_SECONDS_MAX = 5.0

_log = structlog.get_logger()


class LeaseKeeper:
    """Renews one lease until it is lost."""

    def __init__(
        self,
        etcd: Etcd,
        clock: Clock,
        *,
        lease: LeaseId,
        ttl_seconds: float,
        sent_monotonic_seconds: float,
    ) -> None:
        """Take over a lease that was just granted or renewed.

        Args:
            etcd: Where the lease is.
            clock: Decides when the lease is lost.
            lease: Its id.
            ttl_seconds: What etcd granted.
            sent_monotonic_seconds: When the request that granted or last renewed it was sent.
        """
        self._etcd = etcd
        self._clock = clock
        self._ttl_seconds = ttl_seconds
        self._sent_monotonic_seconds = sent_monotonic_seconds
        self.lease = lease

    @classmethod
    async def grant(cls, etcd: Etcd, ttl_seconds: float, clock: Clock) -> LeaseKeeper:
        """Create a lease of at least `ttl_seconds`, rounded up to the whole seconds that etcd counts in."""
        whole_seconds = max(1, math.ceil(ttl_seconds))
        sent = clock.monotonic_seconds()
        lease = await etcd.lease_grant(whole_seconds)
        return cls(etcd, clock, lease=lease, ttl_seconds=whole_seconds, sent_monotonic_seconds=sent)

    @property
    def ttl_seconds(self) -> float:
        """The time that each renewal grants."""
        return self._ttl_seconds

    @property
    def deadline_monotonic_seconds(self) -> float:
        """The time by the given clock at which the lease counts as lost unless it is renewed."""
        return self._sent_monotonic_seconds + self._ttl_seconds * (1 - SAFETY_SHARE)

    async def run(self) -> None:
        """Renew every second, and at least three times within the TTL, for ever.

        Raises:
            LeaseLostError: etcd says that the lease is gone, or by our clock it may soon be.
        """
        while True:
            await self._sleep_until_due()
            await self._renew_before_deadline()

    async def refresh(self, *, older_than_seconds: float) -> None:
        """Renew now unless that was done lately, because the process is about to block for a while.

        An unreachable etcd is not an error: `run` keeps trying.

        Args:
            older_than_seconds: A renewal younger than that is good enough.

        Raises:
            LeaseLostError: etcd says that the lease is gone.
        """
        age_seconds = self._clock.monotonic_seconds() - self._sent_monotonic_seconds
        if age_seconds < older_than_seconds:
            return
        try:
            await self._renew()
        except EtcdUnavailableError as error:
            _log.warning("lease.renewal_failed", lease=f"{self.lease:x}", cause=str(error))

    async def revoke(self) -> bool:
        """End the lease now, which deletes its keys. False if etcd did not answer: the lease then expires."""
        timeout_seconds = min(self._ttl_seconds, REVOKE_TIMEOUT_SECONDS_MAX)
        try:
            async with asyncio.timeout(timeout_seconds):
                await self._etcd.lease_revoke(self.lease)
        except (EtcdError, TimeoutError) as error:
            _log.warning("lease.revoke_failed", lease=f"{self.lease:x}", cause=str(error))
            return False
        return True

    async def _sleep_until_due(self) -> None:
        pause_seconds = min(RENEWAL_SECONDS_MAX, self._ttl_seconds / RENEWALS_PER_TTL)
        while True:
            due = self._sent_monotonic_seconds + pause_seconds
            left_seconds = due - self._clock.monotonic_seconds()
            if left_seconds <= 0:
                return
            await asyncio.sleep(min(left_seconds, LOOK_SECONDS))

    async def _renew_before_deadline(self) -> None:
        backoff = Backoff(initial_seconds=0.05, max_seconds=RETRY_DELAY_SECONDS_MAX)
        cause = "etcd did not answer"
        while True:
            self._check_deadline(cause)
            try:
                async with asyncio.timeout(self._left_seconds()):
                    await self._renew()
                    return
            except TimeoutError:
                # The deadline passed during the call: the check above raises.
                continue
            except EtcdUnavailableError as error:
                cause = str(error)
                if not backoff.attempt:
                    _log.warning("lease.renewal_failed", lease=f"{self.lease:x}", cause=cause)
            await asyncio.sleep(max(0.0, min(backoff.next_seconds(), self._left_seconds())))

    async def _renew(self) -> None:
        # Before the call: etcd counts from when it handles the request, which is later.
        sent = self._clock.monotonic_seconds()
        ttl_seconds = await self._etcd.lease_keep_alive_once(self.lease)
        if ttl_seconds <= 0:
            raise LeaseLostError(self.lease, "etcd says that it expired or was revoked")
        # A process that was suspended while the answer came must not count the answer as fresh.
        self._check_deadline("this process was suspended or blocked for too long")
        self._sent_monotonic_seconds = sent
        self._ttl_seconds = ttl_seconds
        # Once more, because etcd may have granted less time than before.
        self._check_deadline("this process was suspended or blocked for too long")

    def _left_seconds(self) -> float:
        return self.deadline_monotonic_seconds - self._clock.monotonic_seconds()

    def _check_deadline(self, cause: str) -> None:
        if self._left_seconds() <= 0:
            raise LeaseLostError(
                self.lease, f"not renewed within {self._ttl_seconds:g} s by our clock: {cause}"
            )
