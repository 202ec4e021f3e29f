"""Notices members that die soon after they became a shard's primary: what they served may be what killed them.

A process that dies takes all of its shards with it, so one death proves nothing. But the shard that kills has its next
primary killed as well, and the one after that; the others serve on elsewhere and are cleared.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from allocator.model import ItemId, MemberId

_KEPT_MAX = 16
"""Members named in a record."""
_DOUBLINGS_MAX = 6
"""The longest hold is 64 times the first. Whatever kills is tried again in the end: it may have been something else."""


@dataclass(frozen=True, slots=True)
class Life:
    """One life of a member: a process that is started again under the same name begins another."""

    revision: int
    """Which created the member's key."""
    exiting: bool


@dataclass(frozen=True, slots=True)
class YoungDeath:
    """A member died while it had been a shard's primary for a short time."""

    item_id: ItemId
    member_id: MemberId
    life: int
    """The revision that created the member's key."""


class YoungDeaths:
    """Follows who is primary of what, and since when as seen from here."""

    def __init__(self, *, young_seconds: float) -> None:
        """Set what is young.

        Args:
            young_seconds: A primary that served for so long is not suspected.
        """
        self._young_seconds = young_seconds
        self._primaries: dict[ItemId, tuple[MemberId, float]] = {}
        self._lives: dict[MemberId, Life] = {}

    def on_members(self, members: Mapping[MemberId, Life | None]) -> Mapping[MemberId, int]:
        """Take in what changed of members; return whose life ended without having been on its way out, and which life.

        Args:
            members: The present life of each changed member; None if it is gone.
        """
        died: dict[MemberId, int] = {}
        for member_id, now in members.items():
            before = self._lives.pop(member_id, None)
            if now is not None:
                self._lives[member_id] = now
            if before is None or before.exiting:
                continue
            if now is None or now.revision != before.revision:
                died[member_id] = before.revision
        return died

    def on_primaries(
        self,
        primaries: Mapping[ItemId, MemberId | None],
        *,
        died: Mapping[MemberId, int],
        now_monotonic_seconds: float,
    ) -> tuple[YoungDeath, ...]:
        """Take in what changed of primaries; return the deaths of young ones.

        Args:
            primaries: The primary of each item of which an assignment changed; None if it has none.
            died: Lives of members that ended in the same change.
            now_monotonic_seconds: When the change was seen.
        """
        deaths: list[YoungDeath] = []
        for item_id, member_id in primaries.items():
            before, since = self._primaries.get(item_id, (None, 0.0))
            life = None if before is None else died.get(before)
            if before == member_id and life is None:
                continue
            if (
                before is not None
                and life is not None
                and now_monotonic_seconds - since < self._young_seconds
            ):
                deaths.append(YoungDeath(item_id, before, life))
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
    lives: tuple[int, ...] = ()
    """Which life of each of them, by the revision that created the member's key."""

    def plus(
        self, death: YoungDeath, *, now_wall_seconds: float, window_seconds: float
    ) -> DeathRecord:
        """Return the record with one more; deaths longer ago than the window count no more."""
        before = self if now_wall_seconds - self.last_wall_seconds < window_seconds else _NO_DEATHS
        if death.life in before.lives:
            return self
        return DeathRecord(
            (*before.members, str(death.member_id))[-_KEPT_MAX:],
            now_wall_seconds,
            (*before.lives, death.life)[-_KEPT_MAX:],
        )

    def held_seconds(
        self, *, now_wall_seconds: float, deaths_max: int, hold_seconds: float
    ) -> float:
        """Return for how long from now the shard is held back; 0 if it is not.

        The hold doubles with each death beyond the bound: each trial of a shard that kills costs a member. It is never
        longer than that from now on, however far ahead the clock was of the machine that recorded the last death.
        """
        if deaths_max == 0 or len(self.members) < deaths_max:
            return 0.0
        hold = hold_seconds * 2.0 ** min(len(self.members) - deaths_max, _DOUBLINGS_MAX)
        return min(hold, max(0.0, self.last_wall_seconds + hold - now_wall_seconds))


_NO_DEATHS = DeathRecord()
