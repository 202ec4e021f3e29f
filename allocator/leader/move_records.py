"""The move log's records: moves of replicas and decisions to scale, with their time, reason and origin. Pure.

    /broadsheet.v1{root}/moves/{milliseconds}-{writer}-{number}      one transaction's moves, or a decision, as JSON

An entry is written by the transaction that it describes, so it exists if and only if that was applied, and its revision
is the transaction's. `MoveLogPolicy` bounds the log. Keys sort by the writer's clock. A replica
whose member's lease ends is removed by etcd, without a transaction; the moves that follow from it are in the log, with
the reason.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final

import msgspec

from broadsheet.allocator.errors import KeyDecodeError
from broadsheet.allocator.keys import AssignmentKey, AuxiliaryKeys, Keys
from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.ops import Delete, KeyValue, Operation, Put
from broadsheet.allocator.state.alloc_state import PRIMARY_SLOT
from broadsheet.runtime.documents import DocumentError
from broadsheet.runtime.formats import Format

MOVES: Final = Format("an entry of the log of moves", "list moves by a member of that release")

NO_SLOT = -1


class MoveKind(Enum):
    """The kind of a replica's move."""

    ASSIGN = "assign"
    """A member got the replica."""
    PROMOTE = "promote"
    """A standby became primary, because there was none."""
    HAND_OVER = "hand-over"
    """A standby became primary in place of a live one."""
    REMOVE = "remove"
    """A member lost the replica."""
    SHIFT = "shift"
    """A standby changed its slot."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """The origin of a move."""

    actor: str = ""
    """The requester, as far as known; empty if the leader decided by itself."""
    plan_id: str = ""
    """The plan that an operator applied; empty: the leader's own."""


class Move(msgspec.Struct, frozen=True, array_like=True):
    """One move of one replica. An array in JSON, because there are many."""

    item: str
    kind: MoveKind
    member: str
    """`zone#suffix`."""
    slot: int
    """The current slot; of a removed replica, its last one."""
    from_slot: int
    """The previous slot; -1: none."""
    reason: str


class DecisionOutcome(Enum):
    """Outcome of a decision to scale."""

    ORDERED = "ordered"
    """It is carried out."""
    OBSERVED = "observed"
    """Nothing is done, because the leader only observes."""
    REFUSED = "refused"
    """It cannot be carried out."""


class DecisionRecord(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A decision to change the number of shards or members, with what it was decided on."""

    action: str
    """Such as `split` or `scale`."""
    item: str = ""
    """The item that it changes; empty: none, but the members."""
    rule: str
    """The rule that fired."""
    inputs: dict[str, float]
    """What the rule looked at, by name."""
    outcome: DecisionOutcome
    reason: str = ""
    """Why it is refused."""


class MoveLogEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The moves of one transaction, or a decision. Unknown fields are ignored, so that a later version may add some."""

    at_milliseconds: int
    """Since the Unix epoch, by the writer's clock."""
    writer: str
    """The member that wrote the entry, `zone#suffix`."""
    epoch: int = 0
    """The number of the writing leadership; 0: not a leader."""
    actor: str = ""
    plan_id: str = ""
    moves: tuple[Move, ...]
    decision: DecisionRecord | None = None
    """Alone in its entry."""


def moves_of(operations: Iterable[Operation], keys: Keys, reason: str) -> tuple[Move, ...]:
    """Return the moves in a transaction's operations; operations on other keys are skipped.

    Args:
        operations: Those of one or several items' steps.
        keys: The syntax of the root.
        reason: The reason of all of them.
    """
    before: dict[tuple[ItemId, MemberId], int] = {}
    after: dict[tuple[ItemId, MemberId], int] = {}
    for operation in operations:
        replica = _replica(operation, keys)
        if replica is not None:
            slots = before if isinstance(operation, Delete) else after
            slots[replica.item_id, replica.member_id] = replica.slot
    demoted = {
        item_id
        for (item_id, member_id), slot in before.items()
        if slot == PRIMARY_SLOT and (item_id, member_id) in after
    }
    return tuple(
        Move(
            item_id,
            _kind(before.get((item_id, member_id)), slot, is_hand_over=item_id in demoted),
            str(member_id),
            slot,
            before.get((item_id, member_id), NO_SLOT),
            reason,
        )
        for (item_id, member_id), slot in after.items()
    ) + tuple(
        Move(item_id, MoveKind.REMOVE, str(member_id), slot, slot, reason)
        for (item_id, member_id), slot in before.items()
        if (item_id, member_id) not in after
    )


def entry_key(keys: AuxiliaryKeys, entry: MoveLogEntry, *, number: int) -> bytes:
    """Return an entry's key.

    Args:
        keys: The syntax of the root.
        entry: Provides the time and the writer.
        number: Unique among the entries of its writer's process.
    """
    writer = f"{entry.epoch}.{entry.writer}"
    # Thirteen digits last until the year 2286, so keys sort like their times.
    return keys.moves_prefix + f"{entry.at_milliseconds:013}-{writer}-{number}".encode()


def first_key(keys: AuxiliaryKeys, at_milliseconds: int) -> bytes:
    """Return a key that sorts before entries of that time, and after all earlier ones."""
    return keys.moves_prefix + f"{at_milliseconds:013}".encode()


def encoded(entry: MoveLogEntry) -> bytes:
    """Return the value to store."""
    return msgspec.json.encode(entry)


def decoded_or_none(kv: KeyValue) -> MoveLogEntry | None:
    """Return the entry of a stored value; None if it cannot be decoded, or needs a later release."""
    try:
        return MOVES.decode_json(kv.value, MoveLogEntry)
    except DocumentError:
        return None


def keys_to_prune(
    kvs: Iterable[KeyValue], *, entries_max: int, oldest_milliseconds: int
) -> tuple[bytes, ...]:
    """Return the keys of the entries to remove, in order: those beyond the count or the age.

    Args:
        kvs: All entries, in key order.
        entries_max: The number of newest entries that stay.
        oldest_milliseconds: Since the Unix epoch; older entries are removed.
    """
    keys = [kv.key for kv in kvs]
    surplus = max(0, len(keys) - entries_max)
    return tuple(
        key
        for index, key in enumerate(keys)
        if index < surplus or _milliseconds(key) < oldest_milliseconds
    )


def _replica(operation: Operation, keys: Keys) -> AssignmentKey | None:
    if not isinstance(operation, Put | Delete) or not operation.key.startswith(
        keys.assignments_prefix
    ):
        return None
    try:
        parsed = keys.parse(operation.key)
    except KeyDecodeError:
        return None
    assert isinstance(parsed, AssignmentKey), "its prefix is that of assignments"
    return parsed


def _kind(from_slot: int | None, slot: int, *, is_hand_over: bool) -> MoveKind:
    if from_slot is None:
        return MoveKind.ASSIGN
    if slot != PRIMARY_SLOT:
        return MoveKind.SHIFT
    return MoveKind.HAND_OVER if is_hand_over else MoveKind.PROMOTE


def _milliseconds(key: bytes) -> int:
    """Return an entry's time, from its key; 0 if the key is malformed, so that it is removed first."""
    stamp = key.rpartition(b"/")[2].partition(b"-")[0]
    return int(stamp) if stamp.isdigit() else 0
