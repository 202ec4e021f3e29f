"""A plan in a form that a later leader can continue: the demand it answers, and its differences from the cluster.

Only misplaced items are stored, with the planned primaries of those that will get another one. The rest of the
placement is what the cluster shows. So the stored plan shrinks with the remaining work, and is small where little
changes.

A plan is continued only if it answers exactly the demand that the later leader sees, and if the resulting placement
passes the verifier. Otherwise a new plan is made: only stability depends on a stored plan.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from hashlib import blake2b

import msgspec

from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.placement.problem import Desired
from broadsheet.allocator.state.alloc_state import PRIMARY_SLOT, AllocState, Demand
from broadsheet.allocator.transition.replicas import is_settled
from broadsheet.runtime.documents import DocumentError, decode_msgpack

_ID_BYTES = 16
PLAN_BYTES_MAX = 64 << 20
"""Bound of an unpacked plan: an item that will move takes its id and a few bytes."""


class StoredPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a plan that one leader passes to the next."""

    demand: str
    """Digest of the demand that the plan answers."""
    members: list[tuple[str, str]]
    """Zone and suffix of every member named below, by position."""
    pending: dict[str, list[int]]
    """Positions of the members that should hold each misplaced item."""
    primaries: dict[str, int]
    """Position of the member that should serve each item that is served elsewhere."""
    gap: float = 0.0
    """The plan's distance from its proven lower bound; see `Plan.gap`. It is informational."""

    def desired(self, state: AllocState) -> Desired:
        """Return the whole placement: the snapshot's where nothing is pending."""
        members = self._members()
        found: dict[ItemId, tuple[MemberId, ...]] = {}
        for item_id in state.items:
            pending = self.pending.get(item_id)
            found[item_id] = (
                holders(state, item_id)
                if pending is None
                else tuple(sorted(members[position] for position in pending))
            )
        return found

    def planned_primaries(self, state: AllocState) -> Mapping[ItemId, MemberId]:
        """Return the planned primary of each item that has one."""
        members = self._members()
        found: dict[ItemId, MemberId] = {}
        for item_id in state.items:
            planned = self.primaries.get(item_id)
            primary = primary_of(state, item_id) if planned is None else members[planned]
            if primary is not None:
                found[item_id] = primary
        return found

    def _members(self) -> list[MemberId]:
        return [MemberId(zone, suffix) for zone, suffix in self.members]


def plan_to_store(
    state: AllocState,
    demand: Demand,
    desired: Desired,
    primaries: Mapping[ItemId, MemberId],
    *,
    gap: float = 0.0,
) -> StoredPlan:
    """Return the remaining work of a plan."""
    positions: dict[MemberId, int] = {}

    def position(member_id: MemberId) -> int:
        return positions.setdefault(member_id, len(positions))

    pending = {
        str(item_id): [position(member_id) for member_id in members]
        for item_id, members in desired.items()
        if not is_settled(state.assignments.get(item_id, ()), members)
        # Not if only slots remain to be settled, because `desired` takes such items from the snapshot.
        and tuple(members) != holders(state, item_id)
    }
    moved = {
        str(item_id): position(member_id)
        for item_id, member_id in primaries.items()
        if member_id != primary_of(state, item_id)
    }
    return StoredPlan(
        demand=digest(demand),
        members=[(member_id.zone, member_id.suffix) for member_id in positions],
        pending=pending,
        primaries=moved,
        gap=gap,
    )


def pack(stored: StoredPlan) -> bytes:
    """Return the plan as compressed bytes."""
    return zlib.compress(msgspec.msgpack.encode(stored), 1)


def unpack_or_none(packed: bytes) -> StoredPlan | None:
    """Return the plan; None if the bytes cannot be decoded."""
    try:
        stored = decode_msgpack(_decompressed(packed), StoredPlan)
    except (zlib.error, DocumentError):
        return None
    named = [*stored.primaries.values(), *(p for each in stored.pending.values() for p in each)]
    # Checked here, because a wrong position would only fail in the middle of a leader's decision.
    return stored if all(0 <= p < len(stored.members) for p in named) else None


def _decompressed(packed: bytes) -> bytes:
    """Decompress a bounded number of bytes, or raise `zlib.error`: a kilobyte can expand to a megabyte."""
    stream = zlib.decompressobj()
    unpacked = stream.decompress(packed, PLAN_BYTES_MAX)
    if not stream.eof:
        raise zlib.error(f"cut off, or more than {PLAN_BYTES_MAX} bytes")
    return unpacked


def holders(state: AllocState, item_id: ItemId) -> tuple[MemberId, ...]:
    """Return the live members that hold an item, sorted."""
    group = state.assignments.get(item_id, ())
    return tuple(sorted({a.member_id for a in group if a.member_id in state.members}))


def primary_of(state: AllocState, item_id: ItemId) -> MemberId | None:
    """Return the live member at an item's slot 0."""
    for assignment in state.assignments.get(item_id, ()):
        if assignment.slot == PRIMARY_SLOT and assignment.member_id in state.members:
            return assignment.member_id
    return None


def digest(demand: Demand) -> str:
    """Return a short digest of a demand; equal demands have the same digest in every process."""
    hashed = blake2b(digest_size=_ID_BYTES)
    for each in fields(demand):
        value = getattr(demand, each.name)
        hashed.update(f"{each.name}=".encode())
        # The order of a set differs between processes.
        parts = sorted(value) if isinstance(value, frozenset) else _parts(value)
        for part in parts:
            hashed.update(repr(part).encode())
            hashed.update(b"\n")
    return hashed.hexdigest()


def _parts(value: object) -> Iterable[object]:
    if isinstance(value, tuple):
        return value
    assert is_dataclass(value), f"a demand is made of tuples, sets and dataclasses, not {value!r}"
    return (value,)
