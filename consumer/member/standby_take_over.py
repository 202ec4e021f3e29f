"""Takes shards over from primaries that lost their brokers, where this member has a standby that has not.

    a primary says that it is unavailable ──► can this member reach the broker? ──yes──► the two replicas change places
                                                  └── no: asked again, until the primary is available, or another's

The primary's status is in etcd, so the two members need not reach each other; and a broker that is down moves no
shards. The exchange is the allocator's planned hand-over, in one transaction that compares all of its preconditions.
The new primary fences the old one, so that its later writes are harmless.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import structlog
from prometheus_client import CollectorRegistry

from broadsheet.allocator.errors import EtcdError
from broadsheet.allocator.leader.move_log import MoveLog
from broadsheet.allocator.leader.move_records import Cause
from broadsheet.allocator.model import Assignment, Item, ItemId, MemberId
from broadsheet.allocator.ops import Compare, Delete, Put, TxnCheckpoint
from broadsheet.consumer.member.availability import (
    CALM_SECONDS,
    TakeOver,
    TakeOverPace,
    take_over_of,
)
from broadsheet.consumer.member.metrics import shards_taken_over
from broadsheet.consumer.recoverylog.hints import has_recovery_log, recovery_log_of
from broadsheet.consumer.registry.key_space import PRIMARY_SLOT, spec_of, status_of
from broadsheet.consumer.registry.move_messages import UNAVAILABLE
from broadsheet.consumer.resolver.resolver import LocalMember
from broadsheet.journals.client import JournalClient
from broadsheet.runtime.backoff import Backoff
from broadsheet.runtime.clock import Clock
from broadsheet.runtime.errors import ServiceError, ValidationError
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.shard_pb2 import ShardSpec

PROOF_SECONDS_MAX = 1.0
"""Longest wait for the broker to show that it answers this member."""
AGAIN_SECONDS_FIRST, AGAIN_SECONDS_MAX = 0.2, 2.0
"""Before the broker is asked again, or a refused exchange is tried again."""

_log = structlog.get_logger()


class BrokerProof:
    """Proof that brokers answer this member."""

    def __init__(
        self, journals: JournalClient, *, is_calm: Callable[[], bool], reads_journals: bool
    ) -> None:
        """Bind the proof.

        Args:
            journals: Asks the brokers.
            is_calm: Whether brokers have answered this process all the time lately.
            reads_journals: Whether the sources of shards are journals.
        """
        self._journals = journals
        self.is_calm = is_calm
        self._reads_journals = reads_journals

    async def reaches(self, spec: ShardSpec, unanswered_journal: str) -> bool:
        """Return whether this member can read a shard's sources and append to its journals now.

        Args:
            spec: Of the shard.
            unanswered_journal: The journal whose appends its primary misses; empty: none in particular.
        """
        barriers = {unanswered_journal} - {""}
        if has_recovery_log(spec):
            barriers.add(recovery_log_of(spec))
        try:
            async with asyncio.timeout(PROOF_SECONDS_MAX):
                await self._journals.ask_once(timeout_seconds=PROOF_SECONDS_MAX * 2)
                if self._reads_journals:
                    for source in spec.sources:
                        await self._journals.write_head(source.journal)
                for journal in barriers:
                    # The probe follows pending appends on the same path, and writes nothing.
                    await self._journals.append(journal, b"")
        except (ServiceError, ValidationError, TimeoutError) as error:
            # The second error: a status is free text of its writer, so the name may not be a
            # journal's.
            _log.info(
                "shard.not_taken_over", shard=spec.id, cause=str(error) or "no answer in time"
            )
            return False
        return True


class StandbyTakeOver:
    """Take-overs by one member; register `look` as an observer of the key space, and `run` it until cancelled."""

    def __init__(
        self,
        membership: LocalMember,
        proof: BrokerProof,
        *,
        move_log: MoveLog,
        clock: Clock,
        registry: CollectorRegistry,
    ) -> None:
        """Bind to a member.

        Args:
            membership: Of this process, with the key space that shows what primaries say.
            proof: That brokers answer it.
            move_log: Where it is noted.
            clock: Paces.
            registry: Of Prometheus metrics.
        """
        self._membership = membership
        self._etcd = membership.etcd
        self._key_space = membership.key_space
        self._member_id = membership.member_id
        self._proof = proof
        self._move_log = move_log
        self._clock = clock
        self._pace: TakeOverPace[ItemId] = TakeOverPace()
        self._unavailable: dict[ItemId, MemberId] = {}
        """Primaries that say so, by shard."""
        self._wanted: set[ItemId] = set()
        self._changed = asyncio.Event()
        self._taken = shards_taken_over(registry)

    def look(self) -> None:
        """Process a change, in time proportional to its size."""
        for item_id in {key.item_id for key in self._key_space.changes.assignments}:
            replicas = self._key_space.assignments_of(item_id)
            self._follow(item_id, replicas)
            if take_over_of(replicas, self._member_id) is not None:
                self._wanted.add(item_id)
                self._changed.set()

    def _follow(self, item_id: ItemId, replicas: Sequence[Assignment]) -> None:
        """Count every take-over of the shard, by any member: each of them delays the next."""
        primary = next((each for each in replicas if each.slot == PRIMARY_SLOT), None)
        before = self._unavailable.pop(item_id, None)
        if primary is None:
            return
        if before is not None and primary.member_id != before:
            self._pace.on_taken(item_id, now=self._clock.monotonic_seconds())
        if status_of(primary).unavailable:
            self._unavailable[item_id] = primary.member_id

    async def run(self) -> None:
        """Take over shards until cancelled."""
        async with TaskGroup() as group:
            tasks: dict[ItemId, asyncio.Task[None]] = {}
            while True:
                await self._changed.wait()
                self._changed.clear()
                for item_id in self._wanted:
                    if item_id not in tasks or tasks[item_id].done():
                        taking = self._take(item_id)
                        tasks[item_id] = group.start_soon(taking, name=f"take over {item_id}")
                self._wanted.clear()
                tasks = {item_id: task for item_id, task in tasks.items() if not task.done()}

    async def _take(self, item_id: ItemId) -> None:
        """Try until the shard is ours, or there is no longer a reason to."""
        backoff = Backoff(initial_seconds=AGAIN_SECONDS_FIRST, max_seconds=AGAIN_SECONDS_MAX)
        is_calm = self._proof.is_calm()
        while True:
            now = self._clock.monotonic_seconds()
            await asyncio.sleep(self._pace.wait_seconds(item_id, now=now))
            item = self._key_space.items.get(item_id)
            wish = self._wish(item_id)
            if item is None or wish is None:
                return
            unanswered_journal = status_of(wish.primary).unanswered_journal
            if not await self._proof.reaches(spec_of(item), unanswered_journal):
                is_calm = False
            elif not is_calm:
                # The brokers were lost for us, too, and are back: the primary may reach them in a
                # moment as well.
                await asyncio.sleep(CALM_SECONDS)
                is_calm = True
                continue
            else:
                # The present state, because the proof took time.
                wish = self._wish(item_id)
                if wish is None or await self._exchange(item, wish):
                    return
            await backoff.sleep()

    def _wish(self, item_id: ItemId) -> TakeOver | None:
        member = self._membership.announced
        if member is None or member.value.is_exiting():
            return None
        return take_over_of(self._key_space.assignments_of(item_id), self._member_id)

    async def _exchange(self, item: Item, wish: TakeOver) -> bool:
        """Exchange the two replicas; False if it must be tried again."""
        keys, primary, standby = self._key_space.keys, wish.primary, wish.standby
        new_primary = keys.assignment(item.item_id, standby.member_id, PRIMARY_SLOT)
        new_standby = keys.assignment(item.item_id, primary.member_id, standby.slot)
        checkpoint = TxnCheckpoint(
            (
                Compare.mod_revision(item.kv.key, item.kv.mod_revision),
                Compare.mod_revision(primary.kv.key, primary.kv.mod_revision),
                Compare.mod_revision(standby.kv.key, standby.kv.mod_revision),
                Compare.absent(new_primary),
                Compare.absent(new_standby),
            ),
            (
                Delete(primary.kv.key),
                Delete(standby.kv.key),
                Put(new_primary, standby.kv.value, lease=standby.kv.lease),
                # It has to catch up before it counts as ready.
                Put(new_standby, b"", lease=primary.kv.lease),
            ),
            subject=item.item_id,
        )
        noted = self._move_log.note(
            (checkpoint,), reasons={item.item_id: UNAVAILABLE}, cause=Cause()
        )
        operations = checkpoint.operations if noted is None else (*checkpoint.operations, noted)
        try:
            result = await self._etcd.txn(checkpoint.compares, operations)
        except EtcdError as error:
            _log.warning("shard.not_taken_over", shard=item.item_id, cause=str(error))
            return False
        if not result.succeeded:
            return False
        self._taken.inc()
        _log.warning(
            "shard.taken_over",
            shard=item.item_id,
            from_member=str(primary.member_id),
            cause=status_of(primary).unavailable,
        )
        await self._key_space.wait_for_revision(result.header.revision)
        return True
