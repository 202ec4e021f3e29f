"""Table layout of the Kinesis Client Library for Java (1.x to 3.x), whose workers may run beside ours.

Their writes move `leaseCounter`, with two exceptions: the beginning of a hand-off, which shows in `leaseOwner` and
`checkpointOwner`, and children, which are only ever added. They change rows attribute by attribute, so our attributes
stay:

    epoch, epochCounter  N   our epoch, and the counter that our last write left
    rev                  N   our writes so far
    broadsheet           S   the rest of the record, as JSON

A counter that differs from `epochCounter` was moved by another program: the lease changed hands, and the epoch is one
more. Foreign owners have no epochs, so two of them in a row share one.

Source: awslabs/amazon-kinesis-client leases.dynamodb.DynamoDBLeaseSerializer (attributes and types).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from broadsheet.leases.codec import encode
from broadsheet.leases.errors import InvalidStateError
from broadsheet.leases.position import Position
from broadsheet.leases.record import HashRange, LeaseRecord
from broadsheet.leases.store import ForeignLeader
from broadsheet.leases.stores.dynamodb.layout import (
    EPOCH,
    REMAINDER,
    REV,
    attrs_in,
    attrs_of_rest,
    attrs_of_row,
    located,
    reading,
    remainder_of,
)
from broadsheet.leases.stores.dynamodb.values import (
    Item,
    Value,
    binary_of,
    number_of,
    text_of,
    text_set_of,
    values_of,
)

KEY: Final = "leaseKey"
COUNTER: Final = "leaseCounter"
OWNER: Final = "leaseOwner"
SWITCHES: Final = "ownerSwitchesSinceCheckpoint"
CHECKPOINT: Final = "checkpoint"
CHECKPOINT_SUB: Final = "checkpointSubSequenceNumber"
PENDING: Final = "pendingCheckpoint"
PENDING_SUB: Final = "pendingCheckpointSubSequenceNumber"
PENDING_STATE: Final = "pendingCheckpointState"
PARENTS: Final = "parentShardId"
CHILDREN: Final = "childShardIds"
FIRST_HASH: Final = "startingHashKey"
LAST_HASH: Final = "endingHashKey"
CHECKPOINT_OWNER: Final = "checkpointOwner"
ENTITY: Final = "entityType"
ENTITY_LEASE: Final = "LEASE"
EPOCH_COUNTER: Final = "epochCounter"
OWNER_INDEX: Final = "LeaseOwnerToLeaseKeyIndex"
_KNOWN: Final = frozenset(
    {
        *(KEY, COUNTER, OWNER, SWITCHES, CHECKPOINT, CHECKPOINT_SUB, PENDING, PENDING_SUB),
        *(PENDING_STATE, PARENTS, CHILDREN, FIRST_HASH, LAST_HASH, CHECKPOINT_OWNER, ENTITY),
        *(EPOCH, EPOCH_COUNTER, REV, REMAINDER),
    }
)


class KclJavaLayout:
    """Implements `broadsheet.leases.stores.dynamodb.layout.Layout`."""

    key_name = KEY
    owner_name = OWNER
    owner_index = OWNER_INDEX
    guards = (COUNTER, OWNER, CHECKPOINT_OWNER, REV)

    def read(self, item: Item, known: Item | None) -> LeaseRecord | None:
        """Return the record; None for rows of other kinds that version 3 keeps in the same table."""
        key = str(item[KEY]["S"])
        with reading(key):
            if text_of(item, ENTITY) not in (None, ENTITY_LEASE):
                return None
            return _record(key, item, known)

    def row(self, record: LeaseRecord) -> dict[str, Value]:
        """Return the attributes that the Kinesis Client Library would write, and the remainder."""
        checkpoint, pending, hashes = record.checkpoint, record.pending, record.hash_range
        rest = LeaseRecord(
            key=record.key,
            claim=record.claim,
            checkpoint=_with_offset(checkpoint),
            pending=_with_offset(pending),
            write_id=record.write_id,
            attrs=attrs_of_rest(record),
        )
        values = values_of(
            {
                ENTITY: ENTITY_LEASE,
                COUNTER: record.counter,
                SWITCHES: record.owner_switches,
                OWNER: record.owner,
                CHECKPOINT_OWNER: record.handoff_from,
                CHECKPOINT: None if checkpoint is None else checkpoint.seq,
                # Written even where there is no checkpoint, as they write it.
                CHECKPOINT_SUB: 0 if checkpoint is None else checkpoint.sub,
                PENDING: None if pending is None else pending.seq,
                PENDING_SUB: None if pending is None else pending.sub,
                PENDING_STATE: record.pending_state,
                PARENTS: record.parents,
                CHILDREN: record.children,
                FIRST_HASH: None if hashes is None else hashes.first,
                LAST_HASH: None if hashes is None else hashes.last,
                REMAINDER: encode(rest),
            }
        )
        return values | attrs_of_row(record, known=_KNOWN)

    def own(self, record: LeaseRecord) -> dict[str, Value]:
        """Return the epoch, and the counter that belongs to it."""
        return values_of({EPOCH: record.epoch, EPOCH_COUNTER: record.counter})

    def stamped(
        self, before: LeaseRecord | None, after: LeaseRecord, *, now_nanoseconds: int
    ) -> LeaseRecord:
        """Return the record unchanged, because observers watch the counter."""
        return after


def _record(key: str, item: Item, known: Item | None) -> LeaseRecord:
    rest = remainder_of(item, key) or LeaseRecord(key=key)
    owner = text_of(item, OWNER) or None
    checkpoint_owner = text_of(item, CHECKPOINT_OWNER) or None
    if checkpoint_owner is not None and owner is None:
        raise InvalidStateError(
            f"lease {key}: it has a {CHECKPOINT_OWNER} and no {OWNER}: expected both, or none"
        )
    pending = _position(item, PENDING, PENDING_SUB)
    return replace(
        rest,
        epoch=_epoch(item, known),
        counter=number_of(item, COUNTER) or 0,
        owner=owner,
        handoff_from=checkpoint_owner,
        claim=None if rest.claim == owner else rest.claim,
        checkpoint=located(_position(item, CHECKPOINT, CHECKPOINT_SUB), rest.checkpoint),
        pending=located(pending, rest.pending),
        pending_state=None if pending is None else binary_of(item, PENDING_STATE),
        owner_switches=number_of(item, SWITCHES) or 0,
        write_id="" if _moved_by_others(item) else rest.write_id,
        parents=text_set_of(item, PARENTS),
        children=text_set_of(item, CHILDREN),
        hash_range=_hash_range(item),
        attrs=attrs_in(item, rest, known=_KNOWN),
    )


def _epoch(item: Item, known: Item | None) -> int:
    """Return the epoch of our last write, plus one if others have written since, or recreated the row."""
    epoch = number_of(item, EPOCH)
    if epoch is not None:
        return epoch + _moved_by_others(item)
    if known is None or (before := number_of(known, EPOCH)) is None:
        return 0
    return before + _moved_by_others(known) + 1


def _moved_by_others(item: Item) -> bool:
    return number_of(item, EPOCH_COUNTER) != (number_of(item, COUNTER) or 0)


def _position(item: Item, name: str, sub_name: str) -> Position | None:
    seq = text_of(item, name)
    return None if seq is None else Position(seq, number_of(item, sub_name) or 0)


def _with_offset(position: Position | None) -> Position | None:
    """Return a position if it has an offset, which the row's own attributes cannot hold."""
    return None if position is None or position.offset is None else position


def _hash_range(item: Item) -> HashRange | None:
    first, last = text_of(item, FIRST_HASH), text_of(item, LAST_HASH)
    return None if first is None or last is None else HashRange(first=first, last=last)


LEADER_KEYS: Final = ("Leader", "DeployingLeader")
"""Keys of the leader's row, and of the second one that newer versions keep while a fleet is replaced."""
STATE_KEY: Final = "key"
LEASE_SECONDS: Final = 120.0
"""Default lease duration, for rows without one."""
_MILLISECONDS: Final = 1_000
_DIGITS_MAX: Final = 15
"""Most digits of an accepted number; longer ones are useless as times, and Python parses none of thousands of digits.
"""


def state_table(lease_table: str) -> str:
    """Return the table where versions 3.0 to 3.4 keep the row, if the lease table is named after the application."""
    return f"{lease_table}-CoordinatorState"


def leader_in(row: Item) -> ForeignLeader | None:
    """Return the leader that a row names, dead or alive; None if it stepped down, or the row names none.

    The lock client of the Kinesis Client Library for Java, version 3, keeps the row under the key `Leader`: since 3.5
    in the lease table, with `entityType` `LEADER`, before that in a separate table. It is read here and never written,
    because two libraries with different rules would take one lock from each other.

        ownerName              S  the worker that leads
        recordVersionNumber    S  new with each heartbeat, every 30 s
        leaseDuration          S  milliseconds that it may stand still, 120 000
        isReleased             S  its owner stepped down

    Source: awslabs/amazon-dynamodb-lock-client AmazonDynamoDBLockClient (attributes); awslabs/amazon-kinesis-client
    coordinator.CoordinatorStateDAO (table, key).
    """
    owner, version = _plain(row, "ownerName"), _plain(row, "recordVersionNumber")
    if owner is None or version is None or "isReleased" in row:
        return None
    return ForeignLeader(name=owner, version=version, lease_seconds=_lease_seconds(row))


def _lease_seconds(row: Item) -> float:
    written = _plain(row, "leaseDuration") or ""
    is_number = written.isdecimal() and len(written) <= _DIGITS_MAX
    return int(written) / _MILLISECONDS if is_number else LEASE_SECONDS


def _plain(row: Item, name: str) -> str | None:
    """Return an attribute as text, whether their version wrote a text or a number."""
    value = row.get(name, {})
    found = value.get("S", value.get("N"))
    return None if found is None else str(found)
