"""Rules of leasing: pure functions from record to record, one for each operation.

    rule            epoch  counter  owner      besides
    take            +1     +1       new        claim and hand-off end; the pending position stays
    begin_hand_off  .      .        next       the holder goes on, as `handoff_from`
    renew           .      +1       .
    commit          .      +1       .          checkpoint moves, pending and owner switches end
    prepare         .      +1       .          pending and its state are replaced
    evict           .      +1       none       during a hand-off instead: the next owner takes the lease
    update          .      +1       .          whatever the holder changes
    claim           .      .        .          claim is set
    note_children   .      .        .          children, hash range

Any worker may make a change that does not move the counter, at any time, without breaking the holder's next write:
writers apply their change again if only such fields changed.

Source: awslabs/amazon-kinesis-client leases.dynamodb.DynamoDBLeaseRefresher (conditions and effects); epochs, and the
check that a checkpoint never goes back in the store itself, are ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from broadsheet.leases.errors import (
    InvalidPositionError,
    InvalidStateError,
    LeaseNotAcquiredError,
    ShardClaimedError,
)
from broadsheet.leases.position import Position
from broadsheet.leases.record import HashRange, LeaseRecord


def take(record: LeaseRecord, owner: str) -> LeaseRecord:
    """Make `owner` the holder and begin a new epoch, even if it holds the lease already."""
    switched = record.holder is not None and record.holder != owner
    return replace(
        record,
        owner=owner,
        handoff_from=None,
        claim=None,
        epoch=record.epoch + 1,
        counter=record.counter + 1,
        owner_switches=record.owner_switches + switched,
    )


def may_begin_hand_off(record: LeaseRecord, owner: str) -> bool:
    """Tell whether another worker holds the lease, and is not handing it off already."""
    return record.owner not in (None, owner) and record.handoff_from is None


def begin_hand_off(record: LeaseRecord, owner: str) -> LeaseRecord:
    """Name the next owner; the holder keeps processing until it passes the lease on.

    Raises:
        InvalidStateError: `may_begin_hand_off` says no.
    """
    if not may_begin_hand_off(record, owner):
        raise InvalidStateError(
            f"lease {record.key} cannot be handed off to {owner}: owner {record.owner},"
            f" hand-off from {record.handoff_from}"
        )
    return replace(record, owner=owner, handoff_from=record.owner)


def renew(record: LeaseRecord) -> LeaseRecord:
    """Move the counter, which shows that the holder lives."""
    return replace(record, counter=record.counter + 1)


def commit(record: LeaseRecord, position: Position) -> LeaseRecord:
    """Move the checkpoint; a pending one ends.

    Raises:
        InvalidPositionError: it would go back.
    """
    if record.checkpoint is not None and position < record.checkpoint:
        raise InvalidPositionError(
            f"checkpoint of lease {record.key}: expected {record.checkpoint.seq} or later, got {position.seq}"
            f" (sub-sequences {record.checkpoint.sub} and {position.sub})"
        )
    return replace(
        record,
        checkpoint=position,
        pending=None,
        pending_state=None,
        owner_switches=0,
        counter=record.counter + 1,
    )


def prepare(record: LeaseRecord, position: Position, state: bytes | None = None) -> LeaseRecord:
    """Announce a checkpoint, replacing an earlier announcement; the committed one stays."""
    return replace(record, pending=position, pending_state=state, counter=record.counter + 1)


def evict(record: LeaseRecord) -> LeaseRecord:
    """Take the lease from its holder. This ends a hand-off: the next owner then holds the lease, in a new epoch."""
    if record.handoff_from is not None and record.owner is not None:
        return take(record, record.owner)
    return replace(record, owner=None, counter=record.counter + 1)


def claim(record: LeaseRecord, worker: str) -> LeaseRecord:
    """Ask the holder to let go.

    Raises:
        ShardClaimedError: another worker asked before.
        LeaseNotAcquiredError: no other worker holds it, or nothing of the shard is left.
    """
    if record.claim == worker:
        return record
    if record.claim is not None:
        raise ShardClaimedError(f"lease {record.key} is claimed by {record.claim}")
    if record.holder in (None, worker):
        raise LeaseNotAcquiredError(
            f"lease {record.key} cannot be claimed: expected another worker to hold it, it has {record.holder}"
        )
    if record.is_finished:
        raise LeaseNotAcquiredError(f"lease {record.key} cannot be claimed: its shard is finished")
    return replace(record, claim=worker)


def update(record: LeaseRecord, change: Callable[[LeaseRecord], LeaseRecord]) -> LeaseRecord:
    """Apply a holder's change without its effects on ownership; it always counts as a heartbeat."""
    changed = change(record)
    return replace(
        changed,
        key=record.key,
        epoch=record.epoch,
        counter=record.counter + 1,
        owner=record.owner,
        handoff_from=record.handoff_from,
        write_id=record.write_id,
    )


def note_children(
    record: LeaseRecord,
    *,
    children: frozenset[str] = frozenset(),
    hash_range: HashRange | None = None,
) -> LeaseRecord:
    """Add children and a hash range; neither is ever removed.

    Raises:
        InvalidStateError: it has another hash range, and that cannot change.
    """
    if hash_range is not None and record.hash_range not in (None, hash_range):
        raise InvalidStateError(
            f"lease {record.key}: its hash range is {record.hash_range} and never changes, got {hash_range}"
        )
    return replace(
        record,
        children=record.children | children,
        hash_range=record.hash_range if hash_range is None else hash_range,
    )


def blocking_parents(record: LeaseRecord, records: Mapping[str, LeaseRecord]) -> tuple[str, ...]:
    """Return the parents that must be finished before this shard may be processed, in order.

    A parent without a record was finished and cleaned up. One without a checkpoint has not even begun.

    Args:
        record: The shard.
        records: All records, by key.
    """
    present = (records[key] for key in sorted(record.parents) if key in records)
    return tuple(parent.key for parent in present if not parent.is_finished)
