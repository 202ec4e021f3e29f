"""What a step does to an item's replicas, in the words of plans."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from allocator.model import Assignment, ItemId, MemberId
from allocator.state.alloc_state import PRIMARY_SLOT


class Kind(Enum):
    """What happens to a replica."""

    ADD = "add"
    REMOVE = "remove"
    PROMOTE = "promote"
    HAND_OVER = "hand-over"


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """One thing that a plan does."""

    round: int
    """Which pass of the schedule, from 0; between two passes replicas catch up."""
    kind: Kind
    item_id: ItemId
    member_id: MemberId
    """The member that gets the replica, loses it, or becomes primary."""
    from_member: MemberId | None = None
    """The former primary, of a promotion or hand-over."""
    cold: bool = False
    """The new primary has yet to catch up: nobody serves the item in the meantime."""


def happenings(
    number: int,
    item_id: ItemId,
    old: Sequence[Assignment],
    new: Sequence[Assignment],
    *,
    behind: Container[tuple[ItemId, MemberId]] = (),
) -> Iterator[Happening]:
    """Yield what became of an item's replicas.

    Args:
        number: Which pass of the schedule it was.
        item_id: The item.
        old: Its assignments before.
        new: Its assignments after.
        behind: Replicas that have yet to catch up.
    """
    had, has = {a.member_id for a in old}, {a.member_id for a in new}
    was, now = _primary(old), _primary(new)
    for member_id in sorted(has - had):
        yield Happening(round=number, kind=Kind.ADD, item_id=item_id, member_id=member_id)
    for member_id in sorted(had - has):
        yield Happening(round=number, kind=Kind.REMOVE, item_id=item_id, member_id=member_id)
    if now is not None and now != was and now in had:
        yield Happening(
            round=number,
            kind=Kind.HAND_OVER if was in has else Kind.PROMOTE,
            item_id=item_id,
            member_id=now,
            from_member=was,
            cold=(item_id, now) in behind,
        )


def _primary(group: Sequence[Assignment]) -> MemberId | None:
    return next((a.member_id for a in group if a.slot == PRIMARY_SLOT), None)
