"""When a leaving process stops waiting for its shards to be handed over.

A hand-over needs somebody to hand over to. With other members staying, it is worth the long wait: one may be full now
and have room later. Alone, or with every other member leaving too, it is worth a short one, in which a replacement may
come up.

Source: the model never gives up and so never exits alone; the two bounds are ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from allocator.core.model import Member, MemberId


class DrainVerdict(Enum):
    """What a leaving process does next."""

    WAIT = "wait"
    GIVE_UP_ALONE = "no other member stays, so there is nobody to hand shards to"
    GIVE_UP_LATE = "the other members did not take the shards in time"


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainBounds:
    """How long to wait, seconds."""

    total_seconds: float
    alone_seconds: float


class Drain:
    """Judges one departure; fed with the time and the key space at each look."""

    def __init__(self, bounds: DrainBounds, *, began_monotonic_seconds: float) -> None:
        self._bounds = bounds
        self._began = began_monotonic_seconds
        self._alone_since = began_monotonic_seconds

    def look(
        self,
        members: Mapping[MemberId, Member],
        *,
        leaving: MemberId,
        now_monotonic_seconds: float,
    ) -> DrainVerdict:
        """Return whether to go on waiting.

        Args:
            members: Live processes.
            leaving: This one.
            now_monotonic_seconds: By the clock of `began_monotonic_seconds`.
        """
        if _someone_stays(members, leaving):
            self._alone_since = now_monotonic_seconds
        if now_monotonic_seconds - self._began >= self._bounds.total_seconds:
            return DrainVerdict.GIVE_UP_LATE
        if now_monotonic_seconds - self._alone_since >= self._bounds.alone_seconds:
            return DrainVerdict.GIVE_UP_ALONE
        return DrainVerdict.WAIT


def _someone_stays(members: Mapping[MemberId, Member], leaving: MemberId) -> bool:
    return any(
        member_id != leaving and not member.value.is_exiting() and member.value.item_limit() > 0
        for member_id, member in members.items()
    )
