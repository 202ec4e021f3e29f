"""A reset of one source of a shard: its checkpoint goes on at another offset of a journal that was replaced.

    asked for ─► on file in etcd ─► the next primary finds its checkpoint contradicted ─► applied, in memory
                                                                       its first transaction commits it ─► off file

A checkpoint names the reset that was applied to a source last, so each is applied once, however often a primary dies in
between. What a producer has committed stays known: messages that were counted before, and were published again into
the new journal, are not counted twice.
"""

from __future__ import annotations

from dataclasses import dataclass

from consumer.journal.guard import Present, Standing, standing
from consumer.protocol.identity_pb2 import JournalEpoch
from consumer.protocol.shard_pb2 import Checkpoint

NOTHING_PENDING = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceReset:
    """What an operator asked for."""

    id: bytes
    """Drawn at random; no other reset has it."""
    journal: str
    """The source, with its `;meta` if it has one."""
    offset: int
    """Where reading goes on, bytes."""
    epoch: JournalEpoch | None
    """Of the journal that was looked at when it was asked for; None if its broker tells none."""


def was_applied(reset: SourceReset, checkpoint: Checkpoint) -> bool:
    """Tell whether a checkpoint is already of after a reset."""
    source = checkpoint.sources.get(reset.journal)
    return source is not None and source.reset == reset.id


def is_of(reset: SourceReset, present: Present) -> bool:
    """Tell whether a reset was asked for the journal that is there now, and not for one before it."""
    if reset.epoch is not None and present.identity is None:
        return False
    return standing(reset.offset, reset.epoch, present) is Standing.SAME and (
        reset.epoch is None
        or present.identity is None
        or reset.epoch.incarnation == present.identity.incarnation
    )


def apply_reset(reset: SourceReset, checkpoint: Checkpoint) -> None:
    """Have a checkpoint go on where a reset says."""
    source = checkpoint.sources[reset.journal]
    source.read_through = reset.offset
    source.reset = reset.id
    source.ClearField("epoch")
    if reset.epoch is not None:
        source.epoch.CopyFrom(reset.epoch)
    for producer in source.producers:
        # Its pending messages were at offsets of the other journal.
        producer.state.begin = NOTHING_PENDING
