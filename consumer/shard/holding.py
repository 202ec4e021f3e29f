"""The rest of a primary while another shard takes over keys: a fork a part of them, the survivor of a merge all.

    asked ─► transactions close: all is durable and acknowledged ─► fork-hold put ─► mark recorded ─► answered
                                                                                                       │
          the spec has a narrower range: it was forked ◄───────────────────────────────────────────────┤
          the spec is gone: the shard was absorbed ◄───────────────────────────────────────────────────┤
          the time is over: the hold is deleted, if it is there ─► nothing changed, else the spec says ┘

For a merge, both shards stop at the same place of their sources first: the survivor says where it stands, and this one
reads on to there, or stands farther on and says so.

The hold in etcd decides, never the clock: a parent that cannot ask goes on resting. Queries are served throughout.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import structlog

from broadsheet.allocator.errors import EtcdError
from broadsheet.allocator.model import ItemId
from broadsheet.allocator.ops import TxnCheckpoint
from broadsheet.consumer.elastic.family import absorbed_by, is_of_family
from broadsheet.consumer.elastic.flip import HeldKey, Rest, hold_txn, release_txn
from broadsheet.consumer.elastic.fork import ForkHold, encode_hold, hold_key, mark_of
from broadsheet.consumer.elastic.merge import absorbed_mark
from broadsheet.consumer.errors import AssignmentLostError, SplitDelayedError
from broadsheet.consumer.recoverylog.recorder import FileRecorder
from broadsheet.consumer.shard.environment import ShardEnvironment
from broadsheet.consumer.shard.input_queue import InputBound
from broadsheet.consumer.shard.replica_status import AssignedShard, check_same_shard
from broadsheet.runtime.backoff import Backoff
from broadsheet.wire.elastic_pb2 import PrepareForkRequest
from broadsheet.wire.key_range import key_range_of
from broadsheet.wire.labels import FORK_OF, value_of
from broadsheet.wire.shard_pb2 import ShardSpec

HOLD_SECONDS = 2.0
"""How long a parent rests for a child that does not commit the fork."""
CLOSE_SECONDS = 20.0
"""Longest wait for the transaction before the rest: a slow commit is no reason to give a split up."""

_log = structlog.get_logger()


@dataclass(slots=True)
class HoldOrder:
    """The request of a fork, or of the survivor of a merge, that a primary rests."""

    hold: ForkHold
    mark_content: str
    """Content of the mark: of a fork, its full name."""
    child_revision: int
    """That wrote the asking shard's spec."""
    read_through: Mapping[str, int] | None = None
    """Where the survivor of a merge stands, bytes by journal; None: a fork asks, and stands nowhere."""
    answer: asyncio.Future[Rest] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


def order_of(request: PrepareForkRequest, asking: ShardSpec, fqn: str) -> HoldOrder:
    """Return what a request asks of a primary.

    Args:
        request: Of the shard that takes over keys.
        asking: That shard's spec, which must be as new as the request says.
        fqn: Its full name.

    Raises:
        SplitDelayedError: it takes over no keys of this primary's shard.
    """
    is_merge = absorbed_by(asking) == request.parent
    if not is_merge and value_of(asking.labels, FORK_OF) != request.parent:
        raise SplitDelayedError(
            f"shard {request.child} is no fork of {request.parent}, and does not absorb it"
        )
    return HoldOrder(
        ForkHold(child=request.child, attempt=request.attempt),
        mark_content=absorbed_mark(fqn) if is_merge else fqn,
        child_revision=request.child_revision,
        read_through=dict(request.read_through) if is_merge else None,
    )


class RestingTransactions(Protocol):
    """The transactions of an attempt, as far as they rest and go on."""

    standstill: asyncio.Lock
    """Held while one caller ends input or has transactions rest: one at a time may."""

    def rest(self) -> asyncio.Event:
        """Have no transaction begin; return what is set once all is durable and acknowledged."""
        ...

    def go_on(self) -> None:
        """Let transactions begin again."""
        ...

    def bound(self, through: Mapping[str, int]) -> InputBound:
        """Have input end where it is, or at given offsets if those are behind; return where.

        Raises:
            SplitDelayedError: transactions have not begun.
        """
        ...

    def unbound(self) -> None:
        """Have input go on."""
        ...

    async def on_worker(self, function: Callable[..., Any], *args: Any) -> Any:
        """Return `function(*args)`, run on the shard's worker thread."""
        ...


class ForkHolding:
    """Rests one attempt of a primary for one other shard at a time. `run` it beside the transactions."""

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
            shard: The one that rests.
            environment: The services and limits of this process.
            transactions: Of the attempt.
            hold_seconds: How long it rests for another one that does not commit.
        """
        self._shard = shard
        self._environment = environment
        self._transactions = transactions
        self._hold_seconds = hold_seconds
        self._orders: asyncio.Queue[HoldOrder] = asyncio.Queue()
        self._idle = asyncio.Event()
        self._idle.set()
        self._narrowed = asyncio.Event()

    async def prepare(self, order: HoldOrder) -> Rest:
        """Rest for an attempt of a fork or a merge; return our assignment, by which the other one commits.

        Raises:
            SplitDelayedError: not now; the error says why.
            ServiceError: the log cannot be written, or etcd does not answer.
        """
        if not self._idle.is_set() or self._transactions.standstill.locked():
            raise SplitDelayedError(f"shard {self._shard.id} rests for another attempt")
        self._idle.clear()
        self._orders.put_nowait(order)
        # Shielded: what was begun for a caller that gives up is brought to its end all the same.
        return await asyncio.shield(order.answer)

    async def settle(self) -> HeldKey:
        """Rest until all that was published is acknowledged, then go on; return our assignment.

        Raises:
            SplitDelayedError: not now; the error says why.
        """
        shard, transactions = self._shard, self._transactions
        if not self._idle.is_set() or transactions.standstill.locked():
            raise SplitDelayedError(f"shard {shard.id} rests for a split or a merge")
        assignment = HeldKey.of(shard.assignment.kv)
        async with transactions.standstill:
            try:
                async with asyncio.timeout(CLOSE_SECONDS):
                    await transactions.rest().wait()
            except TimeoutError:
                raise SplitDelayedError(
                    f"shard {shard.id} did not commit within {CLOSE_SECONDS:g} s: look at its commits"
                ) from None
            finally:
                transactions.go_on()
        return assignment

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
            await self._transactions.standstill.acquire()
            await self.hold(order)
        finally:
            _fail(order, SplitDelayedError(f"shard {self._shard.id} stopped"))
        # If it failed or was cancelled, the owner of the keys is not known: transactions rest until the attempt ends.
        self._transactions.unbound()
        self._transactions.go_on()
        self._transactions.standstill.release()

    async def hold(self, order: HoldOrder) -> None:
        """Rest for an order, answer it, and return once it is decided which keys are ours."""
        shard, before = self._shard, key_range_of(self._shard.spec.labels)
        try:
            async with asyncio.timeout(CLOSE_SECONDS):
                read_through = await self._stand(order)
                await self._transactions.rest().wait()
        except TimeoutError:
            _fail(
                order,
                SplitDelayedError(
                    f"shard {shard.id} did not commit within {CLOSE_SECONDS:g} s: look at its commits"
                ),
            )
            return
        except SplitDelayedError as error:
            _fail(order, error)
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
                        f"shard {shard.id} does not rest for {order.hold.child}: that was cancelled, the "
                        "shard has another assignment, or it rests for another attempt"
                    ),
                )
                return
            await self.mark(order)
            _log.info("split.parent_rests", shard=shard.id, child=order.hold.child)
            if not order.answer.done():
                order.answer.set_result(Rest(assignment=assignment, read_through=read_through))
            await self._until_narrower(before)
        except EtcdError as error:
            # The hold may be there all the same, so it is looked for below.
            _fail(order, error)
        if key_range_of(self._shard.spec.labels) == before:
            released = await self._release(value)
            await self._see_spec()
            _log.info("split.parent_goes_on", shard=shard.id, timed_out=released)

    async def _stand(self, order: HoldOrder) -> Mapping[str, int]:
        """Read on to where the survivor of a merge stands, unless we are farther on; return where we stand.

        Raises:
            SplitDelayedError: its sources are not ours, or nothing is read now.
        """
        wanted = order.read_through
        if wanted is None:
            return {}
        bound = self._transactions.bound(wanted)
        if wanted.keys() != bound.through.keys():
            raise SplitDelayedError(
                f"shard {self._shard.id} reads other sources than {order.hold.child}, which takes its keys over"
            )
        await bound.reached.wait()
        return bound.through

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
        return await release_hold(self._environment, self._shard.id, hold)

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
        await see_spec(self._environment, self._shard)

    async def _succeeds(self, checkpoint: TxnCheckpoint) -> bool:
        result = await self._environment.etcd.txn(checkpoint.compares, checkpoint.operations)
        return result.succeeded


async def release_hold(environment: ShardEnvironment, shard_id: str, hold: bytes) -> bool:
    """Delete a shard's hold unless it is gone or another one; return whether it was there. For as long as it takes."""
    checkpoint = release_txn(environment.keys, shard_id, hold)
    backoff = Backoff()
    while True:
        try:
            result = await environment.etcd.txn(checkpoint.compares, checkpoint.operations)
        except EtcdError as error:
            _log.warning("split.release_waits", shard=shard_id, error=str(error))
            await backoff.sleep()
        else:
            return result.succeeded


async def see_spec(environment: ShardEnvironment, shard: AssignedShard) -> None:
    """Wait until the mirror shows the spec that etcd has now: it says which keys are the shard's.

    Raises:
        AssignmentLostError: there is none, or a later shard has its id.
    """
    key = environment.keys.item(ItemId(shard.id))
    backoff = Backoff()
    while True:
        try:
            found = (await environment.etcd.get_range(key)).kvs
        except EtcdError as error:
            _log.warning("split.spec_waits", shard=shard.id, error=str(error))
            await backoff.sleep()
            continue
        if not found:
            raise AssignmentLostError(f"shard {shard.id} was deleted, or absorbed by another one")
        check_same_shard(found[0], shard)
        await environment.key_space.read_back(found[0].mod_revision)
        return


def _recorded_mark(recorder: FileRecorder, order: HoldOrder) -> Any:
    """Record the mark of an attempt; return what resolves once it is durable. On the worker thread."""
    recorder.set_property(mark_of(order.hold.attempt), order.mark_content)
    return recorder.barrier()


def _fail(order: HoldOrder, error: BaseException) -> None:
    if not order.answer.done():
        order.answer.set_exception(error)
        # A caller that gave up asks for nothing.
        order.answer.exception()
