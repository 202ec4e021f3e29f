"""Checkpoint store for Azure's own event processors, over any record store.

    EventHubConsumerClient.from_connection_string(…, checkpoint_store=RecordCheckpointStore(store))

The store must exist, because processors do not create it. A processor judges a rival by when it last renewed; here that
is when *this process saw* it renew, so that no clocks are compared. Where the store itself knows which workers live, a
dead processor's partitions are free as soon as the store says so.

Source: Azure/azure-sdk-for-python sdk/eventhub/azure-eventhub, `CheckpointStore` (operations and shapes of answers).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final

import structlog
from azure.eventhub.aio import CheckpointStore

from broadsheet.leases import rules
from broadsheet.leases.compare_and_swap import (
    SwapAttempt,
    SwapOutcome,
    compare_and_swap,
    verdict_of_anybody,
)
from broadsheet.leases.errors import InvalidPositionError, InvalidStateError, ShutdownError
from broadsheet.leases.expiry import LastSeen, sighted
from broadsheet.leases.position import Position
from broadsheet.leases.record import LeaseRecord, RecordConflictError, Versioned
from broadsheet.leases.store import RecordStore
from broadsheet.runtime.clock import Clock, SystemClock

CLAIMS_AT_ONCE: Final = 16
"""Partitions claimed concurrently; a hub has up to a few thousand."""
_log = structlog.get_logger()

Ownership = dict[str, Any]
"""A processor's dictionary of one partition; Any is in their type."""


@dataclass(frozen=True, slots=True)
class HubGroup:
    """A consumer group of one hub, as a processor names it.

    The functions beside it translate between the dictionaries of Azure's event processors and records, purely:

    - A record's *key* is namespace/hub/group/partition, the first three in lower case.
    - The *etag* covers the acquisition and the renewals of the lease; checkpoints do not change it, as processors
      expect.

    Source: Azure/azure-sdk-for-python sdk/eventhub/azure-eventhub, `CheckpointStore` (shapes).
    """

    fully_qualified_namespace: str
    eventhub_name: str
    consumer_group: str

    @property
    def prefix(self) -> str:
        """Common prefix of the group's keys."""
        names = (self.fully_qualified_namespace, self.eventhub_name, self.consumer_group)
        return "".join(f"{name}/" for name in names).lower()

    def shape(self, key: str) -> Ownership:
        """Return the fields that every answer about a partition holds."""
        return {
            "fully_qualified_namespace": self.fully_qualified_namespace,
            "eventhub_name": self.eventhub_name,
            "consumer_group": self.consumer_group,
            "partition_id": key.removeprefix(self.prefix),
        }


def claimed(record: LeaseRecord, owner_id: str, *, is_held: bool) -> LeaseRecord:
    """Apply a processor's claim to a record."""
    if not owner_id:
        return rules.renew(record) if record.holder is None else rules.evict(record)
    if record.holder == owner_id and is_held:
        return rules.renew(record)
    return rules.take(record, owner_id)


def verdict_of_claim(attempt: SwapAttempt, current: Versioned) -> SwapOutcome:
    """Judge a claim: a checkpoint written in between does not invalidate it."""
    if attempt.has_landed(current):
        return SwapOutcome.LANDED
    seen = attempt.seen
    is_same = etag_of(current.record) == etag_of(seen.record) and current.fence == seen.fence
    return SwapOutcome.APPLY_AGAIN if is_same else SwapOutcome.LOST


def verdict_of_claimant(attempt: SwapAttempt, current: Versioned) -> SwapOutcome:
    """Judge a checkpoint: renewals written in between do not invalidate it."""
    seen = attempt.seen
    is_held = (
        current.fence == seen.fence != 0
        and current.record.epoch == seen.record.epoch
        and current.record.holder == seen.record.holder
    )
    return SwapOutcome.APPLY_AGAIN if is_held else SwapOutcome.LOST


def etag_of(record: LeaseRecord) -> str:
    """Return the ETag of an ownership, which changes with each claim and renewal, and with nothing else."""
    return f"{record.epoch}-{record.counter}-{record.write_id}"


def key_of(said: Ownership) -> str:
    """Return the key of a partition that a processor speaks of."""
    names = ("fully_qualified_namespace", "eventhub_name", "consumer_group")
    return HubGroup(*(str(said[name]) for name in names)).prefix + str(said["partition_id"])


def is_nowhere(checkpoint: Ownership) -> bool:
    """Tell whether a checkpoint names no event of the partition: it has neither offset nor sequence number."""
    return checkpoint.get("sequence_number") is None and checkpoint.get("offset") in (None, "")


def position_of(checkpoint: Ownership) -> Position:
    """Parse the position of a checkpoint that a processor writes.

    Raises:
        InvalidPositionError: it is none; the error names the field.
    """
    sequence_number, offset = checkpoint.get("sequence_number"), checkpoint.get("offset")
    if isinstance(sequence_number, bool) or not isinstance(sequence_number, int):
        raise InvalidPositionError(
            f"checkpoint.sequence_number: expected a whole number, got {sequence_number!r:.80}"
        )
    if offset is None or offset == "":
        raise InvalidPositionError("checkpoint.offset: expected that of an event, got none")
    return Position(str(sequence_number), offset=str(offset))


def shown(key: str, position: Position | None) -> Ownership:
    """Return a checkpoint as processors read it.

    Raises:
        InvalidStateError: it is of another kind.
    """
    if position is None or position.is_name or position.offset is None:
        raise InvalidStateError(
            f"partition {key}: expected a checkpoint with sequence number and offset, got {position}; delete it"
        )
    return {"sequence_number": int(position.seq), "offset": position.offset}


class RecordCheckpointStore(CheckpointStore):
    """Ownership and checkpoints of the processors of one process.

    A checkpoint is written under the claim that this object made last for its partition, so a processor that lost the
    partition cannot move it. Each processor needs its own object; processors that share one are not fenced from each
    other.
    """

    def __init__(
        self,
        store: RecordStore,
        *,
        may_go_back: bool = False,
        clock: Clock | None = None,
    ) -> None:
        """Start without sightings: a partition that is owned at the first look counts as renewed then.

        Args:
            store: The records; stays the caller's.
            may_go_back: Take checkpoints before the stored one too, as Azure's own stores do; e.g. of a hub that was
                deleted and created again.
            clock: Measures how long ago renewals were seen, and says what time it is for processors.
        """
        self._store = store
        self._may_go_back = may_go_back
        self._clock = clock or SystemClock()
        self._sighting_by_key: dict[str, LastSeen] = {}
        self._modified_by_key: dict[str, tuple[str, float]] = {}
        """The state last told of each partition, and the moment told with it, seconds since the Unix epoch."""
        self._held_by_key: dict[str, Versioned] = {}
        """What this object claimed last, or gave back; also what it lost, for a zombie may try more than once."""

    async def list_ownership(
        self, fully_qualified_namespace: str, eventhub_name: str, consumer_group: str, **_: Any
    ) -> Iterable[Ownership]:
        """Return the ownership of every partition that was ever owned, including those given back."""
        group = HubGroup(fully_qualified_namespace, eventhub_name, consumer_group)
        found = [each async for each in self._records_of(group) if each.record.epoch]
        return [
            group.shape(each.record.key)
            | {"owner_id": each.record.holder or ""}
            | self._state_of(each)
            for each in found
        ]

    async def claim_ownership(
        self, ownership_list: Iterable[Ownership], **_: Any
    ) -> Iterable[Ownership]:
        """Claim partitions, renew them, or give them back (an empty owner).

        Returns:
            Those that were as the claimant saw them, with their new state: the given dictionaries, which change as in
            Azure's own stores.
        """
        wanted = list(ownership_list)
        succeeded: list[Ownership] = []
        for start in range(0, len(wanted), CLAIMS_AT_ONCE):
            some = wanted[start : start + CLAIMS_AT_ONCE]
            answers = await asyncio.gather(*map(self._claim, some), return_exceptions=True)
            for answer in answers:
                if isinstance(answer, BaseException):
                    raise answer
                if answer is not None:
                    succeeded.append(answer)
        return succeeded

    async def update_checkpoint(self, checkpoint: Ownership, **_: Any) -> None:
        """Store a checkpoint; the checkpoint of an event without sequence number and offset stores nothing.

        Raises:
            ShutdownError: the partition was claimed here, and is lost.
            InvalidPositionError: one of sequence number and offset is missing, or the checkpoint would go back.
        """
        key = key_of(checkpoint)
        if is_nowhere(checkpoint):
            # Azure's stores accept it, and a successor then begins at its default position. Here it changes nothing.
            _log.warning("leasing.checkpoint_without_position", key=key)
            return
        commit = self._commit_of(position_of(checkpoint))
        held = self._held_by_key.get(key)
        if held is None:
            await self._update_unowned(key, commit)
            return
        updated = await compare_and_swap(self._store, held, commit, verdict_of_claimant)
        if updated is None:
            raise ShutdownError(f"partition {key} is lost, its checkpoint is not stored")
        if self._held_by_key.get(key) is held:
            self._held_by_key[key] = updated

    async def list_checkpoints(
        self, fully_qualified_namespace: str, eventhub_name: str, consumer_group: str, **_: Any
    ) -> Iterable[Ownership]:
        """Return the checkpoints of all partitions that have one."""
        group = HubGroup(fully_qualified_namespace, eventhub_name, consumer_group)
        return [
            group.shape(each.record.key) | shown(each.record.key, each.record.checkpoint)
            async for each in self._records_of(group)
            if each.record.checkpoint is not None
        ]

    async def _records_of(self, group: HubGroup) -> AsyncIterator[Versioned]:
        async for found in self._store.scan():
            if found.record.key.startswith(group.prefix):
                yield found

    async def _claim(self, ownership: Ownership) -> Ownership | None:
        """Claim one partition; return None if another processor won the race."""
        key, owner_id = key_of(ownership), str(ownership.get("owner_id") or "")
        if owner_id:
            await self._store.join(owner_id)
        seen = await self._seen(key, ownership.get("etag"))
        if seen is None:
            return None
        held = await compare_and_swap(
            self._store,
            seen,
            lambda record: claimed(record, owner_id, is_held=bool(seen.fence)),
            verdict_of_claim,
        )
        if held is None:
            return None
        self._held_by_key[key] = held
        ownership.update(owner_id=owner_id, **self._state_of(held))
        return ownership

    async def _seen(self, key: str, etag: object) -> Versioned | None:
        """Return the record that a claimant saw; None if it has changed since."""
        if etag is not None:
            found = await self._store.get(key)
            return found if found is not None and etag_of(found.record) == etag else None
        try:
            return await self._store.create(LeaseRecord(key=key))
        except RecordConflictError as conflict:
            current = conflict.current
            # The record exists without an owner: a checkpoint came first, or a claimant died after creating it.
            return current if current is not None and not current.record.epoch else None

    async def _update_unowned(self, key: str, commit: Callable[[LeaseRecord], LeaseRecord]) -> None:
        """Store the checkpoint of a receiver that did not claim its partition."""
        seen = await self._store.get(key)
        if seen is None:
            try:
                seen = await self._store.create(LeaseRecord(key=key))
            except RecordConflictError as conflict:
                seen = conflict.current
        if (
            seen is None
            or await compare_and_swap(self._store, seen, commit, verdict_of_anybody) is None
        ):
            raise InvalidStateError(f"partition {key}: its record was deleted meanwhile")

    def _commit_of(self, position: Position) -> Callable[[LeaseRecord], LeaseRecord]:
        """Return a commit that leaves the counter, and so the ownership's ETag, unchanged."""

        def commit(record: LeaseRecord) -> LeaseRecord:
            base = replace(record, checkpoint=None) if self._may_go_back else record
            return replace(rules.commit(base, position), counter=record.counter)

        return commit

    def _state_of(self, found: Versioned) -> Ownership:
        """Return the ETag of an ownership, and when its renewal was seen."""
        key, now_seconds = found.record.key, self._clock.monotonic_seconds()
        sighting = sighted(self._sighting_by_key.get(key), found.record, now_seconds=now_seconds)
        self._sighting_by_key[key] = sighting
        moved_seconds = sighting.moved_monotonic_seconds
        age_seconds = 0.0 if moved_seconds is None else now_seconds - moved_seconds
        etag = etag_of(found.record)
        modified = self._modified_by_key.get(key)
        if modified is None or modified[0] != etag:
            # One moment for each state, because a processor that compares two answers must see the same one.
            modified = self._modified_by_key[key] = (etag, self._clock.wall_seconds() - age_seconds)
        is_dead = found.record.holder is not None and not found.fence
        return {"etag": etag, "last_modified_time": 0.0 if is_dead else modified[1]}
