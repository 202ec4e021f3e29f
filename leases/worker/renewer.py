"""Renewal of a worker's leases; consumers are told of requests and of lost leases."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import structlog

from broadsheet.leases.errors import LeasingError
from broadsheet.leases.worker.context import WorkerContext
from broadsheet.leases.worker.shard_consumer import EndReason, ShardConsumer
from broadsheet.runtime.task_group import TaskGroup

ATTEMPTS = 2
"""Attempts at a renewal in its turn; the Kinesis Client Library's number."""

_log = structlog.get_logger()


class Renewer:
    """Renews the leases in a table of consumers, which the worker fills and clears."""

    def __init__(self, worker: WorkerContext, consumers: Mapping[str, ShardConsumer]) -> None:
        """Watch the table.

        Args:
            worker: Whose they are.
            consumers: Those that run, by the keys of their leases.
        """
        self._worker = worker.name
        self._manager = worker.leases
        self._metrics = worker.metrics
        self._at_once = worker.settings.renewals_at_once
        self._consumers = consumers

    async def renew_all(self) -> None:
        """Renew each lease, and pass on the result. A failure of the store leaves them unchanged."""
        if not self._consumers:
            return
        with self._metrics.renewal():
            if self._manager.store.tells_who_lives:
                await self._look()
            else:
                await self._renew_each()

    def end_expired(self) -> None:
        """Tell the consumers whose leases have ended by the clock, taken by a rival or not."""
        for consumer in tuple(self._consumers.values()):
            if not consumer.lease.is_held:
                consumer.request(EndReason.LEASE_LOST)

    async def _renew_each(self) -> None:
        queue = iter(tuple(self._consumers.values()))
        async with TaskGroup() as group:
            for number in range(min(self._at_once, len(self._consumers))):
                group.start_soon(self._renew_some(queue), name=f"renew {number}")

    async def _renew_some(self, queue: Iterator[ShardConsumer]) -> None:
        for consumer in queue:
            if not consumer.lease.ended:
                await self._renew(consumer)

    async def _renew(self, consumer: ShardConsumer) -> None:
        for attempt in range(ATTEMPTS):
            try:
                self._hand_on(consumer, held=await consumer.lease.renew())
            except LeasingError as error:
                self._metrics.on_renewal_failed(error)
                _log.warning(
                    "leasing.renewal_failed",
                    key=consumer.lease.record.key,
                    attempt=attempt,
                    cause=str(error),
                )
                if not error.retryable:
                    return
            else:
                return

    async def _look(self) -> None:
        """Read all leases at once, where the store itself keeps them alive with the process."""
        consumers = tuple(self._consumers.values())
        asked_seconds = self._manager.clock.monotonic_seconds()
        try:
            found = {each.record.key: each for each in await self._manager.list_leases()}
        except LeasingError as error:
            self._metrics.on_renewal_failed(error, leases=len(consumers))
            _log.warning("leasing.renewal_failed", cause=str(error))
            return
        for consumer in consumers:
            lease = consumer.lease
            current = found.get(lease.record.key)
            held = lease.learn(current, asked_monotonic_seconds=asked_seconds)
            self._hand_on(consumer, held=held)

    def _hand_on(self, consumer: ShardConsumer, *, held: bool) -> None:
        if consumer.lease.given_up:
            return  # It was released while the renewal waited for its turn.
        record = consumer.lease.record
        self._metrics.on_renewed(held=held)
        if not held:
            consumer.request(EndReason.LEASE_LOST)
        elif record.handoff_from is not None or record.claim not in (None, self._worker):
            consumer.request(EndReason.REQUESTED)
