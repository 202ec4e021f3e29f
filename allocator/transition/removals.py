"""Removal of unwanted replicas: which of them may go now, and what holds the others back."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from broadsheet.allocator.model import Assignment, MemberId
from broadsheet.allocator.placement.problem import zones_spanned
from broadsheet.allocator.state.alloc_state import PRIMARY_SLOT
from broadsheet.allocator.transition.capacity import Capacity, WaitReason
from broadsheet.allocator.transition.replicas import ItemReplicas


@dataclass(frozen=True, slots=True)
class KeptReplica:
    """An unwanted replica that stays for now, with the reason."""

    assignment: Assignment
    reason: WaitReason
    others: int
    """The number of other consistent replicas."""


def removals(
    replicas: ItemReplicas, capacity: Capacity, waited_for: Collection[MemberId]
) -> tuple[tuple[Assignment, ...], tuple[KeptReplica, ...]]:
    """Return the unwanted replicas that may go now, and those that may not.

    Invariants: a removal never leaves fewer live consistent replicas than the item wants, nor fewer zones than it spans
    now and should span. Two kinds of replica are not protected: a second one on the same member, and one whose member
    is gone or that has failed for too long, once a live consistent one can take over.

    Dead ones go first, then inconsistent ones, then those whose place another item waits for, then from the fullest;
    the primary goes last.

    Args:
        replicas: The replicas of one item.
        capacity: Loads of members.
        waited_for: Full members that other items wait for.

    Source: gazette/core allocator/item_state.go (the removal gate). Ours: each removal is decided separately, so that a
    blocked one does not block the rest; zones are checked; dead replicas do not count as consistent.
    """
    if not replicas.unwanted:
        return (), ()

    def eagerness(assignment: Assignment) -> tuple[bool, bool, bool, bool, float, MemberId, int]:
        return (
            assignment.kv.key in replicas.live,
            assignment.kv.key in replicas.consistent,
            assignment.slot == PRIMARY_SLOT,
            assignment.member_id not in waited_for,
            -capacity.load_ratio(assignment.member_id),
            assignment.member_id,
            assignment.slot,
        )

    staying = {a.kv.key: a.member_id for a in replicas.current if a.kv.key in replicas.live}
    unwanted = [a for a in replicas.current if a.kv.key in replicas.unwanted]
    if len(unwanted) > 1:
        unwanted.sort(key=eagerness)
    gone: list[Assignment] = []
    refused: list[KeptReplica] = []
    for assignment in unwanted:
        reason = _refusal(replicas, assignment.kv.key, staying, replicas.consistent)
        if reason is None:
            staying.pop(assignment.kv.key, None)
            gone.append(assignment)
        else:
            others = staying.keys() & replicas.consistent - {assignment.kv.key}
            refused.append(KeptReplica(assignment, reason, len(others)))
    return tuple(gone), tuple(refused)


def parting_primary(replicas: ItemReplicas, removes: Iterable[Assignment]) -> Assignment | None:
    """Return the primary that goes after it has handed over; None if it stays or has nothing to hand over."""
    # The item wants no replicas at all, so there is no successor to wait for.
    if replicas.replication == 0:
        return None
    for assignment in removes:
        key = assignment.kv.key
        if assignment.slot == PRIMARY_SLOT and key in replicas.live:
            could_serve = replicas.ready - replicas.unwanted | replicas.ready & {key}
            return assignment if could_serve else None
    return None


def would_free(replicas: ItemReplicas, assignment: Assignment, added: MemberId) -> bool:
    """Return whether a replica may go once another one exists and is consistent, and no other goes."""
    staying = {a.kv.key: a.member_id for a in replicas.current if a.kv.key in replicas.live}
    staying[b""] = added
    return _refusal(replicas, assignment.kv.key, staying, replicas.consistent | {b""}) is None


def to_go(replicas: ItemReplicas) -> frozenset[bytes]:
    """Return the keys of unwanted replicas that go once all desired replicas exist and have caught up.

    The others stay as long as members lack room, or the plan does not change.
    """
    if not replicas.unwanted:
        return frozenset()
    staying = {a.kv.key: a.member_id for a in replicas.current if a.kv.key in replicas.live}
    staying |= {f"missing {number}".encode(): m for number, m in enumerate(replicas.missing)}
    reliable = frozenset(staying)
    going: set[bytes] = set()
    for assignment in replicas.current:
        key = assignment.kv.key
        if key in replicas.unwanted and _refusal(replicas, key, staying, reliable) is None:
            staying.pop(key, None)
            going.add(key)
    return frozenset(going)


def _refusal(
    replicas: ItemReplicas,
    key: bytes,
    staying: Mapping[bytes, MemberId],
    reliable: Collection[bytes],
) -> WaitReason | None:
    if replicas.replication == 0 or key in replicas.surplus:
        return None
    others = [m for k, m in staying.items() if k in reliable and k != key]
    if key not in replicas.live:
        return None if others else WaitReason.STANDBY_NOT_CAUGHT_UP
    if len(others) < replicas.replication:
        return WaitReason.STANDBY_NOT_CAUGHT_UP
    zones_wanted, zone = zones_spanned(replicas.desired), staying[key].zone
    if key in reliable and _loses_a_zone(others, zone, zones_wanted):
        return WaitReason.ZONE
    rest = (m for k, m in staying.items() if k != key)
    return WaitReason.ZONE if _loses_a_zone(rest, zone, zones_wanted) else None


def _loses_a_zone(others: Iterable[MemberId], zone: str, zones_wanted: int) -> bool:
    """Return whether the others span too few zones without a replica that goes."""
    zones = {member_id.zone for member_id in others}
    return zone not in zones and len(zones) < zones_wanted
