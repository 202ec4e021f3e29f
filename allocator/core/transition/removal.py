"""The replicas of an item that may go now.

Invariants: a removal never leaves fewer live consistent replicas than the item wants, nor fewer zones than it spans now
and is meant to span. Two kinds of replica are not protected: a second one on the same member, and one whose member is
gone, or that has failed for too long, once a live consistent one can take over.

Source: gazette/core allocator/item_state.go (the removal gate). Ours: each removal is judged by itself, so that a
blocked one does not block the rest; zones are looked at; dead replicas do not count as consistent.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass

from allocator.core.transition.blocked import Reason
from allocator.core.transition.replicas import Replicas
from allocator.core.transition.room import Capacity
from allocator.model import Assignment, MemberId
from allocator.placement.problem import zones_spanned
from allocator.state.alloc_state import PRIMARY_SLOT


@dataclass(frozen=True, slots=True)
class Refused:
    """An unwanted replica that stays for now, and why."""

    assignment: Assignment
    reason: Reason
    others: int
    """Consistent replicas besides."""


def removals(
    replicas: Replicas, capacity: Capacity, waited_for: Collection[MemberId]
) -> tuple[tuple[Assignment, ...], tuple[Refused, ...]]:
    """Return the unwanted replicas that may go now, and those that may not.

    Dead ones go first, then inconsistent ones, then those whose place another item waits for, then from the fullest;
    the primary goes last.

    Args:
        replicas: Of one item.
        capacity: Loads of members.
        waited_for: Members at their limit on which other items should be.
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
    refused: list[Refused] = []
    for assignment in unwanted:
        reason = _refusal(replicas, assignment.kv.key, staying, replicas.consistent)
        if reason is None:
            staying.pop(assignment.kv.key, None)
            gone.append(assignment)
        else:
            others = staying.keys() & replicas.consistent - {assignment.kv.key}
            refused.append(Refused(assignment, reason, len(others)))
    return tuple(gone), tuple(refused)


def parting_primary(replicas: Replicas, removes: Iterable[Assignment]) -> Assignment | None:
    """Return the primary that may go once it has handed over; None if it does not go, or has nothing to hand over."""
    if replicas.replication == 0:
        return None
    for assignment in removes:
        key = assignment.kv.key
        if assignment.slot == PRIMARY_SLOT and key in replicas.live:
            could_serve = replicas.ready - replicas.unwanted | replicas.ready & {key}
            return assignment if could_serve else None
    return None


def would_free(replicas: Replicas, assignment: Assignment, added: MemberId) -> bool:
    """Return whether a replica may go once another one is there and consistent, and no other goes."""
    staying = {a.kv.key: a.member_id for a in replicas.current if a.kv.key in replicas.live}
    staying[b""] = added
    return _refusal(replicas, assignment.kv.key, staying, replicas.consistent | {b""}) is None


def to_go(replicas: Replicas) -> frozenset[bytes]:
    """Return the keys of unwanted replicas that go once all that should be there is there, and has caught up.

    The others stay for as long as members lack room, or the plan is what it is.
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
    replicas: Replicas,
    key: bytes,
    staying: Mapping[bytes, MemberId],
    reliable: Collection[bytes],
) -> Reason | None:
    if replicas.replication == 0 or key in replicas.surplus:
        return None
    others = [m for k, m in staying.items() if k in reliable and k != key]
    if key not in replicas.live:
        return None if others else Reason.STANDBY_NOT_CAUGHT_UP
    if len(others) < replicas.replication:
        return Reason.STANDBY_NOT_CAUGHT_UP
    zones_wanted, zone = zones_spanned(replicas.desired), staying[key].zone
    if key in reliable and _loses_a_zone(others, zone, zones_wanted):
        return Reason.ZONE
    rest = (m for k, m in staying.items() if k != key)
    return Reason.ZONE if _loses_a_zone(rest, zone, zones_wanted) else None


def _loses_a_zone(others: Iterable[MemberId], zone: str, zones_wanted: int) -> bool:
    """Return whether the others span too few zones, for want of one that goes."""
    zones = {member_id.zone for member_id in others}
    return zone not in zones and len(zones) < zones_wanted
