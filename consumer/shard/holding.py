"""The rest of a primary while a fork takes over a part of its keys.

    asked ─► transactions close: all is durable and acknowledged ─► fork-hold put ─► mark recorded ─► answered
                                                                                                       │
          the spec has a narrower range: it was forked ◄───────────────────────────────────────────────┤
          the time is over: the hold is deleted, if it is there ─► not forked, else the spec says ◄────┘

The hold in etcd decides, never the clock: a parent that cannot ask goes on resting. Queries are served throughout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog

from broadsheet.allocator.errors import EtcdError
from broadsheet.allocator.model import ItemId
from broadsheet.allocator.ops import TxnCheckpoint
from broadsheet.consumer.elastic.family import is_of_family
from broadsheet.consumer.elastic.flip import HeldKey, hold_txn, release_txn
from broadsheet.consumer.elastic.fork import ForkHold, encode_hold, hold_key, mark_of
from broadsheet.consumer.errors import AssignmentLostError, SplitDelayedError
from broadsheet.consumer.recoverylog.recorder import FileRecorder
from broadsheet.consumer.shard.environment import ShardEnvironment
from broadsheet.consumer.shard.replica_status import AssignedShard
from broadsheet.runtime.backoff import Backoff
from broadsheet.wire.key_range import key_range_of

HOLD_SECONDS = 2.0
"""How long a parent rests for a child that does not commit the fork."""
CLOSE_SECONDS = 20.0
"""Longest wait for the transaction before the rest: a slow commit is no reason to give a split up."""

_log = structlog.get_logger()


@dataclass(slots=True)
class HoldOrder:
    """A child's request that the parent rests."""

    hold: ForkHold
    child_fqn: str
    child_revision: int
    """That wrote the child's spec."""
    answer: asyncio.Future[HeldKey] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )
    """Resolves with the primary's assignment."""


class RestingTransactions(Protocol):
    """The transactions of an attempt, as far as they rest and go on."""

    def rest(self) -> asyncio.Event:
        """Have no transaction begin; return what is set once all is durable and acknowledged."""
        ...

    def go_on(self) -> None:
        """Let transactions begin again."""
        ...

    async def on_worker(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return `function(*args)`, run on the shard's worker thread."""
        ...


class ForkHolding:
    """Rests one attempt of a primary for one fork at a time. `run` it beside the transactions."""

    def __init__(
        self,
        shard: AssignedShard,
        environment: ShardEnvironment,
        transactions: RestingTransactions,
        *,
        hold_seconds: float = HOLD_SECONDS,
    ) -> None:
        """Bind to an attempt.

        Args:
            shard: The parent.
            environment: The services and limits of this process.
            transactions: Of the attempt.
            hold_seconds: How long it rests for a child that does not commit.
        """
        self._shard = shard
        self._environment = environment
        self._transactions = transactions
        self._hold_seconds = hold_seconds
        self._orders: asyncio.Queue[HoldOrder] = asyncio.Queue()
        self._idle = asyncio.Event()
        self._idle.set()
        self._narrowed = asyncio.Event()

    async def prepare(self, order: HoldOrder) -> HeldKey:
        """Rest for an attempt of a fork; return our assignment, by which the child commits.

        Raises:
            SplitDelayedError: not now; the error says why.
            ServiceError: the log cannot be written, or etcd does not answer.
        """
        if not self._idle.is_set():
            raise SplitDelayedError(f"shard {self._shard.id} rests for another attempt")
        self._idle.clear()
        self._orders.put_nowait(order)
        # Shielded: what was begun for a caller that gives up is brought to its end all the same.
        return await asyncio.shield(order.answer)

    async def resting_is_over(self) -> None:
        """Wait until no fork has this shard rest."""
        await self._idle.wait()

    def on_spec_changed(self) -> None:
        """Look whether a fork was committed."""
        self._narrowed.set()

    async def forget_former(self) -> None:
        """Delete the hold of a former attempt before anything is delivered, and see what became of it.

        Raises:
            AssignmentLostError: the shard is gone.
        """
        if not is_of_family(self._shard.spec):
            return  # No split has begun, as of our assignment.
        key = hold_key(self._environment.keys.root, self._shard.id)
        found = await self._environment.etcd.get_range(key)
        for kv in found.kvs:
            _log.info("split.hold_forgotten", shard=self._shard.id)
            await self._release(kv.value)
        # Also if there was none: a flip may have deleted it, and the mirror may not show the narrower range yet.
        await self._see_spec()

    async def run(self) -> None:
        """Rest whenever that is asked for, until cancelled."""
        try:
            while True:
                await self._rest(await self._orders.get())
                self._idle.set()
        finally:
            while not self._orders.empty():
                _fail(self._orders.get_nowait(), SplitDelayedError("the shard's primary stopped"))

    async def _rest(self, order: HoldOrder) -> None:
        try:
            await self.hold(order)
        finally:
            _fail(order, SplitDelayedError(f"shard {self._shard.id} stopped"))
        self._transactions.go_on()

    async def hold(self, order: HoldOrder) -> None:
        """Rest for an order, answer it, and return once it is decided which keys are ours."""
        shard, before = self._shard, key_range_of(self._shard.spec.labels)
        held = self._transactions.rest()
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                await held.wait()
        except TimeoutError:
            _fail(
                order,
                SplitDelayedError(
                    f"shard {shard.id} did not commit within {CLOSE_SECONDS:g} s: look at its commits"
                ),
            )
            return
        value = encode_hold(order.hold)
        assignment = HeldKey.of(shard.assignment.kv)
        checkpoint = hold_txn(
            self._environment.keys,
            shard.id,
            assignment=assignment,
            child_revision=order.child_revision,
            hold=order.hold,
        )
        try:
            if not await self._succeeds(checkpoint):
                await self._release_late(assignment)
                _fail(
                    order,
                    SplitDelayedError(
                        f"shard {shard.id} does not rest for {order.hold.child}: the split was cancelled, the "
                        "shard has another assignment, or it rests for another attempt"
                    ),
                )
                return
            await self.mark(order)
            _log.info("split.parent_rests", shard=shard.id, child=order.hold.child)
            if not order.answer.done():
                order.answer.set_result(assignment)
            await self._until_narrower(before)
        except EtcdError as error:
            # The hold may be there all the same, so it is looked for below.
            _fail(order, error)
        if key_range_of(self._shard.spec.labels) == before:
            released = await self._release(value)
            await self._see_spec()
            _log.info("split.parent_goes_on", shard=shard.id, timed_out=released)

    async def mark(self, order: HoldOrder) -> None:
        """Record the mark, so that it is durable behind all that was committed."""
        local_state = self._shard.local_state
        assert local_state is not None, "a shard without a log is not split"
        assert local_state.recorder is not None, "the log is ours"
        await asyncio.wrap_future(
            await self._transactions.on_worker(_recorded_mark, local_state.recorder, order)
        )

    async def _until_narrower(self, before: object) -> None:
        try:
            async with asyncio.timeout(self._hold_seconds):
                while key_range_of(self._shard.spec.labels) == before:
                    self._narrowed.clear()
                    await self._narrowed.wait()
        except TimeoutError:
            pass

    async def _release(self, hold: bytes) -> bool:
        """Delete a hold unless it is gone; return whether it was there. For as long as it takes."""
        checkpoint = release_txn(self._environment.keys, self._shard.id, hold)
        backoff = Backoff()
        while True:
            try:
                return await self._succeeds(checkpoint)
            except EtcdError as error:
                _log.warning("split.release_waits", shard=self._shard.id, error=str(error))
                await backoff.sleep()

    async def _release_late(self, assignment: HeldKey) -> None:
        # Its answer was lost, and it came behind the release. Holds are made one after the other, so none is in use.
        found = await self._environment.etcd.get_range(
            hold_key(self._environment.keys.root, self._shard.id)
        )
        for kv in found.kvs:
            late = release_txn(self._environment.keys, self._shard.id, kv.value)
            await self._environment.etcd.txn(
                (assignment.unchanged, *late.compares), late.operations
            )
            _log.info("split.late_hold_released", shard=self._shard.id)

    async def _see_spec(self) -> None:
        """Wait until the mirror shows the spec that etcd has now: it says which keys are ours.

        Raises:
            AssignmentLostError: there is none.
        """
        key = self._environment.keys.item(ItemId(self._shard.id))
        backoff = Backoff()
        while True:
            try:
                found = (await self._environment.etcd.get_range(key)).kvs
            except EtcdError as error:
                _log.warning("split.spec_waits", shard=self._shard.id, error=str(error))
                await backoff.sleep()
                continue
            if not found:
                raise AssignmentLostError(f"shard {self._shard.id} was deleted")
            await self._environment.key_space.wait_for_revision(found[0].mod_revision)
            return

    async def _succeeds(self, checkpoint: TxnCheckpoint) -> bool:
        result = await self._environment.etcd.txn(checkpoint.compares, checkpoint.operations)
        return result.succeeded


def _recorded_mark(recorder: FileRecorder, order: HoldOrder) -> Any:
    """Record the mark of an attempt; return what resolves once it is durable. On the worker thread."""
    recorder.set_property(mark_of(order.hold.attempt), order.child_fqn)
    return recorder.barrier()


def _fail(order: HoldOrder, error: BaseException) -> None:
    if not order.answer.done():
        order.answer.set_exception(error)
        # A caller that gave up asks for nothing.
        order.answer.exception()
