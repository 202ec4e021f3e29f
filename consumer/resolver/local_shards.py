r"""The shards that run in this process, kept equal to its assignments in etcd.

`apply` is called after each change of the key space, on the loop and without awaiting, so that the running shards never
disagree with the snapshot. It looks only at changed shards, because statuses of a large cluster arrive one by one. At
most one life of a shard runs here at a time: a new one waits until the previous one is torn down.

A primary that yields to another member's keeps serving until its successor has fenced it, or reports PRIMARY, so that
processing does not stop while a successor starts.

A promotion appears as a *new* assignment key (the slot is part of the key) with a lower slot. Every other new key, that
is any other create revision, is another life of the replica: the old one ends and a new one starts.

    running \ assigned     absent   same key   lower slot   other key, slot not lower   spec deleted and made again
    absent                 -        -          -            Start                       Start
    running                Stop     Update     Promote      Replace                     Replace

An assignment may outlive the spec for which it was made, until the leader deletes it. If another shard has the id by
then, a replica of the old one must not go on as one of the new one: they do not share a history.

Source: gazette/core consumer/resolver.go (updateLocalShards, stopServingLocalReplicas), consumer/shard.go (transition);
that a new life waits is ours.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import TypeVar, assert_never

import structlog
from prometheus_client import CollectorRegistry

from broadsheet.allocator.key_space import KeySpace
from broadsheet.allocator.model import Assignment, Item, ItemId, MemberId
from broadsheet.allocator.state.alloc_state import PRIMARY_SLOT
from broadsheet.consumer.registry.key_space import spec_of, status_of
from broadsheet.consumer.resolver.metrics import register_shard_gauges
from broadsheet.consumer.shard.live_shard import LiveShard
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.shard_pb2 import ReplicaStatus, ShardSpec

_log = structlog.get_logger()
REST_SECONDS = 1.0
"""Delay before a former primary starts as a standby, so that it does not compete with its successor for brokers."""
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True)
class Replica:
    """A replica that this process runs, with the last assignment passed to it."""

    slot: int
    create_revision: int
    spec_create_revision: int
    """That created the shard: a later shard may have its id."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Assigned:
    """A replica that this process should run."""

    item: Item
    assignment: Assignment


@dataclass(frozen=True, slots=True)
class Start:
    """Start the replica: as a standby, and at once as the primary if its slot is 0."""

    assigned: Assigned


@dataclass(frozen=True, slots=True)
class ShardUpdate:
    """Pass the current spec and status to the running replica; nothing restarts."""

    assigned: Assigned


@dataclass(frozen=True, slots=True)
class Promote:
    """Pass the lower slot to the running replica; in slot 0 it becomes the primary."""

    assigned: Assigned


@dataclass(frozen=True, slots=True)
class Replace:
    """Stop the running replica and start a new one."""

    assigned: Assigned
    is_other_shard: bool = False
    """The running one is of a shard that was deleted, which has no successor."""


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop the running replica, which is no longer assigned here."""

    item_id: ItemId


Instruction = Start | ShardUpdate | Promote | Replace | Stop


def assigned_to(
    member_id: MemberId, items: Mapping[ItemId, Item], assignments: Iterable[Assignment]
) -> dict[ItemId, Assigned]:
    """Return the replicas of one member, by shard id.

    An assignment without its item is left out, because there is no spec to run. Of two for one item the lowest slot
    counts.
    """
    assigned: dict[ItemId, Assigned] = {}
    for assignment in assignments:
        item = items.get(assignment.item_id)
        if assignment.member_id != member_id or item is None:
            continue
        known = assigned.get(assignment.item_id)
        if known is None or assignment.slot < known.assignment.slot:
            assigned[assignment.item_id] = Assigned(item=item, assignment=assignment)
    return assigned


def diff(
    running: Mapping[ItemId, Replica], assigned: Mapping[ItemId, Assigned]
) -> tuple[Instruction, ...]:
    """Return the instructions, stops first, then by shard id."""
    stops: tuple[Instruction, ...] = tuple(
        Stop(item_id) for item_id in sorted(running.keys() - assigned.keys())
    )
    return stops + tuple(
        _instruction(running.get(item_id), assigned[item_id]) for item_id in sorted(assigned)
    )


def _instruction(running: Replica | None, assigned: Assigned) -> Instruction:
    if running is None:
        return Start(assigned)
    if assigned.item.kv.create_revision != running.spec_create_revision:
        return Replace(assigned, is_other_shard=True)
    slot = assigned.assignment.slot
    # A promotion carries the status over. An assignment without a status is a new one: its replica has told none.
    if slot == 0 < running.slot or (slot < running.slot and _has_status(assigned)):
        return Promote(assigned)
    if assigned.assignment.kv.create_revision == running.create_revision:
        return ShardUpdate(assigned)
    return Replace(assigned)


def _has_status(assigned: Assigned) -> bool:
    status = assigned.assignment.value
    return isinstance(status, ReplicaStatus) and status.code != ReplicaStatus.IDLE


class LocalShards:
    """The live shards of this process: starts, promotes and stops them."""

    def __init__(
        self,
        key_space: KeySpace,
        *,
        member_id: MemberId,
        new_shard: Callable[[ShardSpec, Assignment, int], LiveShard],
        group: TaskGroup,
        registry: CollectorRegistry,
    ) -> None:
        """Create the set, empty.

        Args:
            key_space: The mirror; register `apply` as its observer.
            member_id: This process.
            new_shard: Creates a shard that does not run yet; given its spec, our assignment, and the revision that
                created it.
            group: Runs the shards; it must live until `join` has returned.
            registry: Shows the shards.
        """
        self._key_space = key_space
        self._member_id = member_id
        self._new_shard = new_shard
        self._group = group
        self._shards: dict[ItemId, LiveShard] = {}
        """Create revisions of their specs."""
        self._assigned: set[ItemId] = set()
        """Items of which this member has an assignment, whether or not it has seen their specs."""
        self._teardowns: dict[ItemId, asyncio.Task[None]] = {}
        self._ending: set[LiveShard] = set()
        """Shards that are being torn down."""
        self._yielding: dict[ItemId, LiveShard] = {}
        """Former primaries that serve until their successors do."""
        self._starting: dict[ItemId, asyncio.Task[None]] = {}
        """Shards that wait before they start."""
        self.stopped = False
        """Whether this process no longer serves any shard."""
        register_shard_gauges(self._shards, registry)

    @property
    def shards(self) -> Mapping[ItemId, LiveShard]:
        """The shards that run here, by id."""
        return self._shards

    def apply(self) -> None:
        """Start, promote and stop shards as the last change of the key space requires."""
        if self.stopped:
            return
        changed, assignments_of = self._changed_here(), self._key_space.assignments_of
        assigned = assigned_to(
            self._member_id,
            self._key_space.items,
            chain.from_iterable(assignments_of(item_id) for item_id in changed),
        )
        running = {
            item_id: Replica(
                shard.assignment.slot,
                shard.assignment.kv.create_revision,
                shard.created_revision,
            )
            for item_id in changed
            if (shard := self._shards.get(item_id)) is not None
        }
        for instruction in diff(running, assigned):
            match instruction:
                case Start(target):
                    self._start(target)
                case ShardUpdate(target) | Promote(target):
                    shard = self._shards[target.item.item_id]
                    shard.on_assignment_changed(spec_of(target.item), target.assignment)
                case Replace(target, is_other_shard):
                    if is_other_shard:
                        self._stop(target.item.item_id)
                    else:
                        self._give_way(target.item.item_id)
                    self._start(target)
                case Stop(item_id):
                    self._give_way(item_id)
                case _:
                    assert_never(instruction)
        if self._yielding:
            self._tell_succeeded({key.item_id for key in self._key_space.changes.assignments})

    def _changed_here(self) -> set[ItemId]:
        """Return this member's shards in the last change, which may concern many others of the cluster."""
        changes = self._key_space.changes
        ours = {key.item_id for key in changes.assignments if key.member_id == self._member_id}
        # A changed spec concerns us only if the shard is assigned here.
        changed = ours | (changes.items & self._assigned)
        for item_id in ours:
            replicas = self._key_space.assignments_of(item_id)
            if any(replica.member_id == self._member_id for replica in replicas):
                self._assigned.add(item_id)
            else:
                self._assigned.discard(item_id)
        return changed

    def stop(self, *, grace_seconds: float | None = None) -> None:
        """Stop every shard and start none again. Idempotent; `join` waits for the end.

        Args:
            grace_seconds: Time for transactions to finish; None is as configured, 0 aborts them.
        """
        self.stopped = True
        for item_id in tuple(self._shards):
            self._stop(item_id, grace_seconds=grace_seconds)

    def abort(self) -> None:
        """Stop every shard without grace, even those that are being stopped with some."""
        for shard in self._ending:
            self._group.start_soon(shard.stop(grace_seconds=0), name=f"abort {shard.id}")
        self.stop(grace_seconds=0.0)

    async def join(self) -> None:
        """Wait until every stopped shard is torn down; each bounds its own teardown."""
        # A loop, because teardowns may be added meanwhile.
        while self._teardowns:
            await asyncio.wait(tuple(self._teardowns.values()))

    def _start(self, target: Assigned) -> None:
        item_id = target.item.item_id
        created = target.item.kv.create_revision
        shard = self._new_shard(spec_of(target.item), target.assignment, created)
        self._shards[item_id] = shard
        predecessor = self._teardowns.get(item_id)
        _log.info("shard.assigned", shard=item_id, slot=target.assignment.slot)
        if predecessor is None:
            shard.start(self._group)
        else:
            # The new life waits for the old one's teardown, and a former primary rests before it stands by.
            rest_seconds = REST_SECONDS if item_id in self._yielding else 0.0
            starting = self._start_after(shard, predecessor, rest_seconds=rest_seconds)
            self._starting[item_id] = self._group.start_soon(starting, name=f"start {item_id}")

    async def _start_after(
        self, shard: LiveShard, predecessor: asyncio.Task[None], *, rest_seconds: float
    ) -> None:
        await asyncio.wait([predecessor])
        await shard.rest(rest_seconds)
        del self._starting[ItemId(shard.id)]
        shard.start(self._group)

    def _give_way(self, item_id: ItemId) -> None:
        shard = self._shards[item_id]
        # Serving on is useful only until a successor serves.
        if shard.primary and self._successor(item_id) is not None:
            self._yielding[item_id] = shard
            self._end(item_id, shard.hand_over)
        else:
            self._stop(item_id)

    def _successor(self, item_id: ItemId) -> Assignment | None:
        for assignment in self._key_space.assignments_of(item_id):
            if assignment.slot == PRIMARY_SLOT and assignment.member_id != self._member_id:
                return assignment
        return None

    def _tell_succeeded(self, changed: Collection[ItemId]) -> None:
        for item_id in self._yielding.keys() & changed:
            successor = self._successor(item_id)
            if successor is not None and status_of(successor).code == ReplicaStatus.PRIMARY:
                self._yielding.pop(item_id).on_succeeded()

    def _stop(self, item_id: ItemId, *, grace_seconds: float | None = None) -> None:
        stop = partial(self._shards[item_id].stop, grace_seconds=grace_seconds)
        self._end(item_id, stop)

    def _end(self, item_id: ItemId, stop: Callable[[], Awaitable[None]]) -> None:
        shard = self._shards.pop(item_id)
        if (starting := self._starting.pop(item_id, None)) is not None:
            # It still waits for its predecessor, and must not start any more.
            starting.cancel()
        _log.info("shard.unassigned", shard=item_id)
        predecessor = self._teardowns.get(item_id)
        task = self._group.start_soon(_tear_down(stop, predecessor), name=f"stop {item_id}")
        self._ending.add(shard)
        self._teardowns[item_id] = task
        task.add_done_callback(lambda done: self._forget(shard, done))

    def _forget(self, shard: LiveShard, done: asyncio.Task[None]) -> None:
        self._ending.discard(shard)
        item_id = ItemId(shard.id)
        # Only if no later life of the shard has taken the entry.
        if self._yielding.get(item_id) is shard:
            del self._yielding[item_id]
        if self._teardowns.get(item_id) is done:
            del self._teardowns[item_id]


async def _tear_down(
    stop: Callable[[], Awaitable[None]], predecessor: asyncio.Task[None] | None
) -> None:
    await stop()
    if predecessor is not None:
        await asyncio.wait([predecessor])
