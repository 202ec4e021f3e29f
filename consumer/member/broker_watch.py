"""Watches whether the journal broker answers this process, and informs its shards.

    asked ──answered──► shards are told that they are available, if they were not
      └── silence, `unavailable_seconds` long ──► shards are told; a connection that is silent, not closed, is given up

One request serves all shards, because they all use the same broker over the same connection. A process without shards
asks nothing. The member that has a shard's standby decides what follows
(`broadsheet.consumer.member.standby_take_over`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from datetime import UTC, datetime

import structlog
from prometheus_client import CollectorRegistry

from broadsheet.consumer.member.availability import Reach, Reachability
from broadsheet.consumer.member.metrics import broker_unavailable
from broadsheet.consumer.shard.live_shard import LiveShard
from broadsheet.journals.client import JournalClient
from broadsheet.runtime.clock import Clock
from broadsheet.runtime.errors import EndpointError

QUESTION_SECONDS = 0.5
"""Between two questions: an outage is noticed so much late, and its end, too."""
ANSWER_SECONDS_MAX = 1.0
"""Longest wait for an answer."""

_log = structlog.get_logger()


class BrokerWatch:
    """Asks the broker and informs the shards. `run` until cancelled."""

    def __init__(
        self,
        journals: JournalClient,
        shards: Callable[[], Collection[LiveShard]],
        *,
        unavailable_seconds: float,
        clock: Clock,
        registry: CollectorRegistry,
    ) -> None:
        """Bind the watch.

        Args:
            journals: Asks.
            shards: Returns those that run here now.
            unavailable_seconds: How long brokers may be silent; above 0.
            clock: Time.
            registry: Of Prometheus metrics.
        """
        self._journals = journals
        self._shards = shards
        self._unavailable_seconds = unavailable_seconds
        self._clock = clock
        self._reachability = Reachability(unavailable_seconds=unavailable_seconds)
        self._silent = ""
        """What shards are told."""
        self._gauge = broker_unavailable(registry)

    def is_calm(self) -> bool:
        """Return whether every recent request was answered."""
        return self._reachability.is_calm(now=self._clock.monotonic_seconds())

    async def run(self) -> None:
        """Ask the broker until cancelled."""
        while True:
            asked = self._clock.monotonic_seconds()
            if self._shards():
                await self._ask(asked)
            else:
                self._reachability.on_answer()  # No caller relies on a failed probe.
            self._note()
            for shard in self._shards():
                shard.availability.look(self._silent, overdue_seconds=self._unavailable_seconds)
            spent_seconds = self._clock.monotonic_seconds() - asked
            await asyncio.sleep(max(0.0, QUESTION_SECONDS - spent_seconds))

    async def _ask(self, asked: float) -> None:
        is_silent = False
        try:
            async with asyncio.timeout(ANSWER_SECONDS_MAX):
                await self._journals.ask_once(timeout_seconds=ANSWER_SECONDS_MAX * 2)
        except TimeoutError:
            is_silent, cause = True, f"no answer within {ANSWER_SECONDS_MAX:g} s"
        except EndpointError as error:
            cause = error.detail
        else:
            self._reachability.on_answer()
            return
        now = self._clock.monotonic_seconds()
        self._reachability.on_failure(cause, asked=asked, now=now)
        if is_silent and self._reachability.takes_renewal(now=now):
            _log.info("broker.connection_given_up", broker=self._journals.address)
            await self._journals.renew_connection()

    def _note(self) -> None:
        """Log once when the brokers are lost, and once when they are back."""
        is_lost = self._reachability.reach is Reach.UNAVAILABLE
        self._gauge.set(is_lost)
        if is_lost == bool(self._silent):
            return
        if not is_lost:
            self._silent = ""
            _log.info("broker.answers_again", broker=self._journals.address)
            return
        lost_seconds = self._clock.monotonic_seconds() - self._reachability.since_seconds
        since = datetime.fromtimestamp(self._clock.wall_seconds() - lost_seconds, UTC)
        self._silent = (
            f"broker {self._journals.address} has not answered since "
            f"{since.isoformat(timespec='seconds')}: {self._reachability.cause}"
        )
        _log.warning("broker.unavailable", cause=self._silent)
