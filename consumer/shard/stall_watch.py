"""Periodically checks a primary's progress, and reports when it makes none though there is work.

A stalled primary is reported (log with the stack of its thread, status FAILED with a short form of it, metric). If so
configured, its assignment is deleted: the fence makes its further actions harmless, and another member continues.
While no broker answers, the assignment is kept, because the shard would stall on every member.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

import structlog

from broadsheet.allocator.errors import EtcdError
from broadsheet.allocator.leader.move_records import Cause
from broadsheet.allocator.ops import Compare, Delete, TxnCheckpoint
from broadsheet.consumer.application import MessageProducer
from broadsheet.consumer.registry.failure_kind import STALLED_STATUS
from broadsheet.consumer.registry.move_messages import STALLED
from broadsheet.consumer.shard.environment import ShardEnvironment
from broadsheet.consumer.shard.primary import PrimaryAttempt
from broadsheet.consumer.shard.replica_status import AssignedShard
from broadsheet.consumer.shard.stall_detector import Stall, StallDetector
from broadsheet.journals.client import JournalClient
from broadsheet.runtime.errors import ServiceError

LOOKS_PER_STALL = 4
"""How often to look within the patience: a stall is told at most a quarter late."""

STACK_LINES_IN_STATUS = 8
"""Innermost lines of the stack that a status shows; the log has all of it."""

_log = structlog.get_logger()


class StallWatch:
    """Stall watch of one attempt."""

    def __init__(
        self,
        attempt: PrimaryAttempt,
        environment: ShardEnvironment,
        shard: AssignedShard,
        *,
        say_stalled: Callable[[str], Awaitable[None]],
        say_moving: Callable[[], Awaitable[None]],
    ) -> None:
        """Bind the watch to an attempt.

        Args:
            attempt: Whose progress.
            environment: Of the process.
            shard: The shard, whose assignment to us is given up if so configured.
            say_stalled: Called with a description once it is stalled.
            say_moving: Called when it moves again.
        """
        self._attempt = attempt
        self._environment = environment
        self._shard = shard
        self._say_stalled = say_stalled
        self._say_moving = say_moving
        self._told = False
        self._silent: list[str] = []
        """Sources of which no broker told the head at the last look."""

    async def run(self) -> None:
        """Watch until cancelled."""
        patience = self._environment.config.stall_seconds
        detector = StallDetector(stall_seconds=patience)
        pause = patience / LOOKS_PER_STALL
        try:
            while True:
                await asyncio.sleep(pause)
                look = self._attempt.look(await self._heads(timeout_seconds=pause))
                now = self._environment.clock.monotonic_seconds()
                await self._tell(detector.observed(look, now))
        finally:
            # The shard's next holder reports its own.
            self._environment.metrics.record_stalled(self._shard.fqn, False)

    async def _heads(self, *, timeout_seconds: float) -> dict[str, int]:
        if isinstance(self._environment.application, MessageProducer):
            return {}  # An application that reads other sources than journals has no heads to compare.
        sources = [source.journal for source in self._shard.spec.sources]
        heads = await write_heads(
            self._environment.journals, sources, timeout_seconds=timeout_seconds
        )
        self._silent = [source for source in sources if source not in heads]
        for journal, head in heads.items():
            # A reader that waits for slow transactions learns of no newer heads.
            self._environment.metrics.lags.on_head(self._shard.fqn, journal, head)
        return heads

    async def _tell(self, stall: Stall | None) -> None:
        self._environment.metrics.record_stalled(self._shard.fqn, stall is not None)
        if stall is not None and not self._told:
            self._told = True
            stack = self._attempt.stack()
            _log.error(
                "shard.stalled",
                shard=self._shard.id,
                seconds=round(stall.seconds, 1),
                bytes_behind=stall.bytes_behind,
                in_transaction=stall.in_transaction,
                stack=stack,
            )
            await self._say_stalled(description(stall, stack, silent=self._silent))
        elif stall is None and self._told:
            self._told = False
            _log.info("shard.moving_again", shard=self._shard.id)
            await self._say_moving()
        if stall is not None and self._environment.config.stall_hand_over:
            await self._give_up()

    async def _give_up(self) -> None:
        """Delete our assignment, so that the shard is placed again; each look retries while etcd does not answer."""
        if self._silent:
            # The primary's appends wait for the broker, too, and would on any other member.
            _log.warning(
                "shard.stalled_assignment_kept",
                shard=self._shard.id,
                cause=_no_broker(self._silent),
            )
            return
        kv = self._shard.assignment.kv
        _log.warning("shard.stalled_assignment_deleted", shard=self._shard.id)
        gift = TxnCheckpoint(
            (Compare.create_revision(kv.key, kv.create_revision),), (Delete(kv.key),)
        )
        move_log = self._environment.move_log
        noted = (
            move_log.note((gift,), reasons={gift.subject: STALLED}, cause=Cause())
            if move_log is not None
            else None
        )
        operations = gift.operations if noted is None else (*gift.operations, noted)
        try:
            await self._environment.etcd.txn(gift.compares, operations)
        except EtcdError as error:
            _log.warning("shard.stalled_assignment_kept", shard=self._shard.id, cause=str(error))


def description(stall: Stall, stack: str, *, silent: Sequence[str] = ()) -> str:
    """Return the status text of a stall.

    Args:
        stall: What was observed.
        stack: Of the application's thread.
        silent: Sources of which no broker told the head.
    """
    where = "in a transaction" if stall.in_transaction else "reading"
    lines = "\n".join(stack.rstrip().splitlines()[-STACK_LINES_IN_STATUS:])
    return (
        f"{STALLED_STATUS}no progress for {stall.seconds:.0f} s {where}, {stall.bytes_behind} bytes behind; "
        f"{_no_broker(silent) + '; ' if silent else ''}its thread is at:\n{lines}"
    )


def _no_broker(silent: Sequence[str]) -> str:
    more = f" and {len(silent) - 1} more" if len(silent) > 1 else ""
    return f"no broker serves {silent[0]}{more}"


async def write_heads(
    journals: JournalClient, names: list[str], *, timeout_seconds: float
) -> dict[str, int]:
    """Return the write heads of those journals that answer in time, bytes.

    Args:
        journals: Asks.
        names: Of the journals.
        timeout_seconds: For all of them together.
    """
    heads: dict[str, int] = {}
    with suppress(TimeoutError):
        async with asyncio.timeout(timeout_seconds):
            for name in names:
                try:
                    heads[name] = await journals.write_head(name)
                except ServiceError as error:
                    _log.info("stall_watch.head_unknown", journal=name, cause=str(error))
    return heads
