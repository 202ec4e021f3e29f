"""Looks at a primary's progress now and then, and says when it stands still though there is work.

A stalled primary is reported (log with the stack of its thread, status FAILED with the same in short, metric); and, if
so configured, gives its assignment up: its fence makes whatever it still does harmless, and another member goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import structlog

from consumer.core.stall import Stall, StallDetector
from consumer.errors import JournalError, RpcFailedError
from consumer.journal.client import JournalClient
from consumer.shard.environment import ShardEnvironment
from consumer.shard.primary import PrimaryAttempt

LOOKS_PER_STALL = 4
"""How often to look within the patience: a stall is told at most a quarter late."""

STACK_LINES_IN_STATUS = 8
"""Innermost lines of the stack that a status shows; the log has all of it."""

_log = structlog.get_logger()


class StallWatch:
    """Watches one attempt."""

    def __init__(
        self,
        attempt: PrimaryAttempt,
        environment: ShardEnvironment,
        *,
        shard_id: str,
        fqn: str,
        sources: Callable[[], list[str]],
        say_stalled: Callable[[str], Awaitable[None]],
        say_moving: Callable[[], Awaitable[None]],
    ) -> None:
        """Bind the watch to an attempt.

        Args:
            attempt: Whose progress.
            environment: Of the process.
            shard_id: For the log.
            fqn: For metrics.
            sources: Returns the journals that the shard reads now.
            say_stalled: Called with a description once it stands still.
            say_moving: Called when it moves again.
        """
        self._attempt = attempt
        self._environment = environment
        self._shard_id = shard_id
        self._fqn = fqn
        self._sources = sources
        self._say_stalled = say_stalled
        self._say_moving = say_moving
        self._told = False

    async def run(self) -> None:
        """Watch until cancelled."""
        patience = self._environment.config.stall_seconds
        detector = StallDetector(stall_seconds=patience)
        while True:
            await asyncio.sleep(patience / LOOKS_PER_STALL)
            heads = await write_heads(self._environment.journals, self._sources())
            look = self._attempt.look(heads)
            now = self._environment.clock.monotonic_seconds()
            await self._tell(detector.observed(look, now))

    async def _tell(self, stall: Stall | None) -> None:
        self._environment.metrics.record_stalled(self._fqn, stall is not None)
        if stall is not None and not self._told:
            self._told = True
            stack = self._attempt.stack()
            _log.error(
                "shard.stalled",
                shard=self._shard_id,
                seconds=round(stall.seconds, 1),
                bytes_behind=stall.bytes_behind,
                in_transaction=stall.in_transaction,
                stack=stack,
            )
            await self._say_stalled(description(stall, stack))
        elif stall is None and self._told:
            self._told = False
            _log.info("shard.moving_again", shard=self._shard_id)
            await self._say_moving()


def description(stall: Stall, stack: str) -> str:
    """Return what a status says of a stall."""
    where = "in a transaction" if stall.in_transaction else "reading"
    lines = "\n".join(stack.rstrip().splitlines()[-STACK_LINES_IN_STATUS:])
    return (
        f"STALLED: no progress for {stall.seconds:.0f} s {where}, {stall.bytes_behind} bytes behind; "
        f"its thread is at:\n{lines}"
    )


async def write_heads(journals: JournalClient, names: list[str]) -> dict[str, int]:
    """Return the write heads of those journals that answer, bytes."""
    heads: dict[str, int] = {}
    for name in names:
        try:
            heads[name] = await journals.write_head(name)
        except (JournalError, RpcFailedError) as error:
            _log.info("stall_watch.head_unknown", journal=name, cause=str(error))
    return heads
