"""Conversion of the move log's entries to messages."""

from __future__ import annotations

from collections.abc import Iterator

from broadsheet.allocator.leader.move_records import MoveKind, decoded_or_none
from broadsheet.allocator.ops import KeyValue
from broadsheet.wire.allocation_pb2 import MoveKind as WireKind, ShardMove

UNASSIGNED = "unassigned"
"""Reason of what an Unassign does."""
STALLED = "stalled"
"""Reason why a primary gives its assignment up."""
UNAVAILABLE = "unavailable"
"""Reason why a standby takes a shard from its primary."""

_KINDS = {
    MoveKind.ASSIGN: WireKind.MOVE_KIND_ASSIGN,
    MoveKind.PROMOTE: WireKind.MOVE_KIND_PROMOTE,
    MoveKind.HAND_OVER: WireKind.MOVE_KIND_HAND_OVER,
    MoveKind.REMOVE: WireKind.MOVE_KIND_REMOVE,
    MoveKind.SHIFT: WireKind.MOVE_KIND_SHIFT,
}
KIND_NAMES = {wire: kind.value for kind, wire in _KINDS.items()}
"""For people, by the kind on the wire."""


def shard_moves(kv: KeyValue) -> Iterator[ShardMove]:
    """Yield the moves of a stored entry of the move log; none if it cannot be read."""
    entry = decoded_or_none(kv)
    if entry is None:
        return
    for move in entry.moves:
        message = ShardMove(
            shard=move.item,
            kind=_KINDS[move.kind],
            member=move.member,
            slot=move.slot,
            from_slot=move.from_slot,
            revision=kv.create_revision,
            reason=move.reason,
            plan_id=entry.plan_id,
            actor=entry.actor,
            writer=entry.writer,
            epoch=entry.epoch,
        )
        message.time.FromMilliseconds(entry.at_milliseconds)
        yield message
