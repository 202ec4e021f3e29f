"""What Azure's event processors say and hear of partitions, and what it does to records: pure.

    key     namespace/hub/group/partition, the first three in lower case
    etag    the acquisition and the renewals of the lease; checkpoints do not change it, as processors expect

Source: Azure/azure-sdk-for-python sdk/eventhub/azure-eventhub, `CheckpointStore` (shapes).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from consumer.errors import InvalidPositionError, InvalidStateError
from consumer.leasing.core import rules
from consumer.leasing.core.position import Position
from consumer.leasing.core.record import LeaseRecord, Versioned
from consumer.leasing.core.verdict import Attempt, Verdict

Ownership = dict[str, Any]
"""What processors say of a partition; Any is theirs."""


@dataclass(frozen=True, slots=True)
class HubGroup:
    """Whose partitions they are, as a processor named them."""

    fully_qualified_namespace: str
    eventhub_name: str
    consumer_group: str

    @property
    def prefix(self) -> str:
        """What keys begin with."""
        names = (self.fully_qualified_namespace, self.eventhub_name, self.consumer_group)
        return "".join(f"{name}/" for name in names).lower()

    def shape(self, key: str) -> Ownership:
        """Return what every answer about a partition holds."""
        return {
            "fully_qualified_namespace": self.fully_qualified_namespace,
            "eventhub_name": self.eventhub_name,
            "consumer_group": self.consumer_group,
            "partition_id": key.removeprefix(self.prefix),
        }


def claimed(record: LeaseRecord, owner_id: str, *, is_held: bool) -> LeaseRecord:
    """Return a record as its claimant wants it."""
    if not owner_id:
        return rules.renew(record) if record.holder is None else rules.evict(record)
    if record.holder == owner_id and is_held:
        return rules.renew(record)
    return rules.take(record, owner_id)


def verdict_of_claim(attempt: Attempt, current: Versioned) -> Verdict:
    """Judge a claim: a checkpoint that came in between does not disturb it."""
    if attempt.has_landed(current):
        return Verdict.LANDED
    seen = attempt.seen
    is_same = etag_of(current.record) == etag_of(seen.record) and current.fence == seen.fence
    return Verdict.APPLY_AGAIN if is_same else Verdict.LOST


def verdict_of_claimant(attempt: Attempt, current: Versioned) -> Verdict:
    """Judge a checkpoint: renewals that came in between do not disturb it."""
    seen = attempt.seen
    is_held = (
        current.fence == seen.fence != 0
        and current.record.epoch == seen.record.epoch
        and current.record.holder == seen.record.holder
    )
    return Verdict.APPLY_AGAIN if is_held else Verdict.LOST


def etag_of(record: LeaseRecord) -> str:
    """Return what changes with each claim and renewal, and with nothing else."""
    return f"{record.epoch}-{record.counter}-{record.write_id}"


def key_of(said: Ownership) -> str:
    """Return the key of a partition that a processor speaks of."""
    names = ("fully_qualified_namespace", "eventhub_name", "consumer_group")
    return HubGroup(*(str(said[name]) for name in names)).prefix + str(said["partition_id"])


def is_nowhere(checkpoint: Ownership) -> bool:
    """Tell whether a checkpoint is that of an event which was never in a partition."""
    return checkpoint.get("sequence_number") is None and checkpoint.get("offset") in (None, "")


def position_of(checkpoint: Ownership) -> Position:
    """Return the position of a checkpoint that a processor writes.

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
