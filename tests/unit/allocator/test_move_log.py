"""What the move log says of transactions, and what it forgets."""

from __future__ import annotations

from broadsheet.allocator.keys import AuxiliaryKeys, Keys
from broadsheet.allocator.leader.move_records import (
    Move,
    MoveKind,
    MoveLogEntry,
    decoded_or_none,
    encoded,
    entry_key,
    keys_to_prune,
    moves_of,
)
from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.ops import Delete, KeyValue, Operation, Put

KEYS = Keys("/test/root")
AUXILIARY = AuxiliaryKeys("/test/root")
ITEM = ItemId("item-a")
ONE, TWO, THREE = (MemberId("zone", name) for name in ("one", "two", "three"))


def _put(member: MemberId, slot: int) -> Operation:
    return Put(KEYS.assignment(ITEM, member, slot), b"")


def _delete(member: MemberId, slot: int) -> Operation:
    return Delete(KEYS.assignment(ITEM, member, slot))


def _move(kind: MoveKind, member: MemberId, slot: int, from_slot: int) -> Move:
    return Move(ITEM, kind, str(member), slot, from_slot, "why")


def test_moves_of_tells_each_kind_by_the_keys_alone() -> None:
    """A put is an assignment, a delete a removal, both of one member a change of slot; into slot 0 a promotion, and a
    hand-over if another one leaves it for a standby's. Other keys are nobody's moves.
    """
    assert moves_of((_put(ONE, 0),), KEYS, "why") == (_move(MoveKind.ASSIGN, ONE, 0, -1),)
    assert moves_of((_delete(ONE, 1),), KEYS, "why") == (_move(MoveKind.REMOVE, ONE, 1, 1),)
    assert moves_of((_delete(ONE, 2), _put(ONE, 0)), KEYS, "why") == (
        _move(MoveKind.PROMOTE, ONE, 0, 2),
    )
    handed_over = (_delete(ONE, 0), _put(ONE, 1), _delete(TWO, 1), _put(TWO, 0))
    assert moves_of(handed_over, KEYS, "why") == (
        _move(MoveKind.SHIFT, ONE, 1, 0),
        _move(MoveKind.HAND_OVER, TWO, 0, 1),
    )
    replaced = (_delete(ONE, 0), _delete(TWO, 1), _put(TWO, 0), _put(THREE, 1))
    assert [each.kind for each in moves_of(replaced, KEYS, "why")] == [
        MoveKind.PROMOTE,
        MoveKind.ASSIGN,
        MoveKind.REMOVE,
    ]
    others = (Put(KEYS.item(ITEM), b""), Delete(b"/elsewhere"))
    assert moves_of(others, KEYS, "why") == ()


def test_entry_is_read_back_and_a_broken_one_is_passed_over() -> None:
    """What one version writes another reads; what cannot be read does not hide the rest."""
    entry = MoveLogEntry(
        at_milliseconds=1_700_000_000_123,
        writer="zone#one",
        epoch=7,
        actor="maria@here",
        plan_id="p1",
        moves=(_move(MoveKind.ASSIGN, ONE, 0, -1),),
    )

    assert decoded_or_none(_kv(b"k", encoded(entry))) == entry
    assert decoded_or_none(_kv(b"k", encoded(entry)[:-3])) is None


def test_keys_sort_by_time_and_prune_from_the_front() -> None:
    """The oldest go first: those above the count, and those below the age; never one between two that stay."""
    entries = [
        MoveLogEntry(at_milliseconds=stamp, writer="zone#one", epoch=1, moves=())
        for stamp in (900, 1_000, 20_000, 300_000)
    ]
    kvs = [
        _kv(entry_key(AUXILIARY, entry, number=9 - index), b"")
        for index, entry in enumerate(entries)
    ]

    assert [kv.key for kv in kvs] == sorted(kv.key for kv in kvs)
    assert keys_to_prune(kvs, entries_max=4, oldest_milliseconds=0) == ()
    assert keys_to_prune(kvs, entries_max=3, oldest_milliseconds=0) == (kvs[0].key,)
    assert keys_to_prune(kvs, entries_max=4, oldest_milliseconds=20_000) == (
        kvs[0].key,
        kvs[1].key,
    )


def _kv(key: bytes, value: bytes) -> KeyValue:
    return KeyValue(key=key, value=value, create_revision=1, mod_revision=1, version=1, lease=0)
