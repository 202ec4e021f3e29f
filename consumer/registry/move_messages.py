"""Conversion of the move log's entries to messages, and of these to words."""

from __future__ import annotations

from collections.abc import Iterator

from broadsheet.allocator.leader.move_records import (
    NO_SLOT,
    DecisionOutcome,
    DecisionRecord,
    MoveKind,
    MoveLogEntry,
    decoded_or_none,
)
from broadsheet.allocator.ops import KeyValue
from broadsheet.wire import allocation_pb2 as wire
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
KIND_NAMES = {
    **{kind_on_wire: kind.value for kind, kind_on_wire in _KINDS.items()},
    WireKind.MOVE_KIND_DECISION: "decision",
}
"""For people, by the kind on the wire."""
_OUTCOMES = {
    DecisionOutcome.ORDERED: wire.DecisionOutcome.DECISION_OUTCOME_ORDERED,
    DecisionOutcome.OBSERVED: wire.DecisionOutcome.DECISION_OUTCOME_OBSERVED,
    DecisionOutcome.REFUSED: wire.DecisionOutcome.DECISION_OUTCOME_REFUSED,
}
OUTCOME_NAMES = {on_wire: outcome.value for outcome, on_wire in _OUTCOMES.items()}
"""For people, by the outcome on the wire."""


def shard_moves(kv: KeyValue) -> Iterator[ShardMove]:
    """Yield the moves, or the decision, of a stored entry of the move log; none if it cannot be read."""
    entry = decoded_or_none(kv)
    if entry is None:
        return
    for move in entry.moves:
        message = _message(entry, kv)
        message.shard, message.kind = move.item, _KINDS[move.kind]
        message.member, message.slot, message.from_slot = move.member, move.slot, move.from_slot
        message.reason = move.reason
        yield message
    if entry.decision is not None:
        message = _message(entry, kv)
        message.shard, message.kind = entry.decision.item, WireKind.MOVE_KIND_DECISION
        message.slot = message.from_slot = NO_SLOT
        message.reason = entry.decision.rule
        message.decision.CopyFrom(_decision(entry.decision))
        yield message


def move_name(move: ShardMove) -> str:
    """Return the kind of a move, or the action of a decision, for people."""
    return move.decision.action or KIND_NAMES.get(move.kind, str(move.kind))


def move_reason(move: ShardMove) -> str:
    """Return why a move was made; of a decision its rule, inputs and outcome. For people."""
    if not move.HasField("decision"):
        return str(move.reason)
    decision = move.decision
    inputs = " ".join(f"{name}={value:.4g}" for name, value in sorted(decision.inputs.items()))
    outcome = OUTCOME_NAMES.get(decision.outcome, str(decision.outcome))
    because = f": {decision.reason}" if decision.reason else ""
    return f"{decision.rule} ({inputs}), {outcome}{because}"


def _message(entry: MoveLogEntry, kv: KeyValue) -> ShardMove:
    message = ShardMove(
        revision=kv.create_revision,
        plan_id=entry.plan_id,
        actor=entry.actor,
        writer=entry.writer,
        epoch=entry.epoch,
    )
    message.time.FromMilliseconds(entry.at_milliseconds)
    return message


def _decision(decision: DecisionRecord) -> wire.ScalingDecision:
    return wire.ScalingDecision(
        action=decision.action,
        rule=decision.rule,
        inputs=decision.inputs,
        outcome=_OUTCOMES[decision.outcome],
        reason=decision.reason,
    )
