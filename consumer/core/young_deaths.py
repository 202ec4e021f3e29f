"""Notices members that die soon after they became a shard's primary: what they served may be what killed them.

A process that dies takes all of its shards with it, so one death proves nothing. But the shard that kills has its next
primary killed as well, and the one after that; the others serve on elsewhere and are cleared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from allocator.core.model import ItemId, MemberId

_KEPT_MAX = 16
"""Members named in a record."""
_DOUBLINGS_MAX = 8
"""The longest hold is 256 times the first."""


@dataclass(frozen=True, slots=True)
class YoungDeath:
    """A member died while it had been a shard's primary for a short time."""

    item_id: ItemId
    member_id: MemberId


class YoungDeaths:
    """Follows who is primary of what, and since when as seen from here."""

    def __init__(self, *, young_seconds: float) -> None:
        """Set what is young.

        Args:
            young_seconds: A primary that served for so long is not suspected.
        """
        self._young_seconds = young_seconds
        self._primaries: dict[ItemId, tuple[MemberId, float]] = {}
        self._exiting: dict[MemberId, bool] = {}

    def on_members(self, members: Mapping[MemberId, bool | None]) -> frozenset[MemberId]:
        """Take in what changed of members; return those that vanished without having been on their way out.

        Args:
            members: Whether each changed member is exiting; None if it is gone.
        """
        died = frozenset(
            member_id
            for member_id, exiting in members.items()
            if exiting is None and self._exiting.get(member_id) is False
        )
        for member_id, exiting in members.items():
            if exiting is None:
                self._exiting.pop(member_id, None)
            else:
                self._exiting[member_id] = exiting
        return died

    def on_primaries(
        self,
        primaries: Mapping[ItemId, MemberId | None],
        *,
        died: frozenset[MemberId],
        now_monotonic_seconds: float,
    ) -> tuple[YoungDeath, ...]:
        """Take in what changed of primaries; return the deaths of young ones.

        Args:
            primaries: The primary of each item of which an assignment changed; None if it has none.
            died: Members that died in the same change.
            now_monotonic_seconds: When the change was seen.
        """
        deaths: list[YoungDeath] = []
        for item_id, member_id in primaries.items():
            before, since = self._primaries.get(item_id, (None, 0.0))
            if before == member_id:
                continue
            if before in died and now_monotonic_seconds - since < self._young_seconds:
                assert before is not None, "None never dies"
                deaths.append(YoungDeath(item_id, before))
            if member_id is None:
                self._primaries.pop(item_id, None)
            else:
                self._primaries[item_id] = (member_id, now_monotonic_seconds)
        return tuple(deaths)


@dataclass(frozen=True, slots=True)
class DeathRecord:
    """The primaries that a shard had when they died, oldest first."""

    members: tuple[str, ...] = ()
    last_wall_seconds: float = 0.0

    def plus(
        self, member_id: MemberId, *, now_wall_seconds: float, window_seconds: float
    ) -> DeathRecord:
        """Return the record with one more; deaths longer ago than the window count no more."""
        recent = now_wall_seconds - self.last_wall_seconds < window_seconds
        before = self.members if recent else ()
        if str(member_id) in before:
            return self
        return DeathRecord((*before, str(member_id))[-_KEPT_MAX:], now_wall_seconds)

    def held_until_wall_seconds(self, *, deaths_max: int, hold_seconds: float) -> float | None:
        """Return until when the shard is held back; None if it is not.

        The hold doubles with each death beyond the bound: each trial of a shard that kills costs a member.
        """
        if deaths_max == 0 or len(self.members) < deaths_max:
            return None
        beyond = min(len(self.members) - deaths_max, _DOUBLINGS_MAX)
        return self.last_wall_seconds + hold_seconds * 2.0**beyond
