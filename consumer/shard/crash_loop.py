"""Crash-loop detection: records, in etcd, of primaries that died young; no key for a shard without any.

/broadsheet.v1{root}/deaths/{shard id}    JSON: members, last_wall_seconds, lives
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import msgspec
import structlog

from broadsheet.allocator.errors import EtcdError
from broadsheet.allocator.etcd.api import Etcd
from broadsheet.allocator.keys import AuxiliaryKeys
from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.ops import Compare, Delete, Put
from broadsheet.consumer.errors import ShardHeldBackError
from broadsheet.runtime.backoff import Backoff
from broadsheet.runtime.clock import Clock
from broadsheet.runtime.documents import DocumentError
from broadsheet.runtime.formats import Format, LaterFormatError

DEATHS: Final = Format("the record of a shard's dead primaries", "upgrade this member")
_TRIES_MAX = 5
"""Other members may write the same record; each try starts from what they wrote."""
_log = structlog.get_logger()

_KEPT_MAX = 16
"""Members named in a record."""
_DOUBLINGS_MAX = 6
"""The longest hold is 64 times the first. It is tried again in the end, because the cause may be something else."""


@dataclass(frozen=True, slots=True)
class Life:
    """One life of a member: a restarted process under the same name begins another."""

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


class CrashLoop:
    """Follows each shard's primary, and since when it is primary as seen from here.

    A member that dies soon after it became a shard's primary may have been killed by that shard. A process that dies
    takes all of its shards with it, so one death proves nothing. But a shard that kills also kills its next primary,
    and the one after that; the other shards keep running elsewhere and are cleared.
    """

    def __init__(self, *, young_seconds: float) -> None:
        """Set the age below which a primary is young.

        Args:
            young_seconds: A primary that served for so long is not suspected.
        """
        self._young_seconds = young_seconds
        self._primaries: dict[ItemId, tuple[MemberId, float]] = {}
        self._lives: dict[MemberId, Life] = {}

    def on_members(self, members: Mapping[MemberId, Life | None]) -> Mapping[MemberId, int]:
        """Process changed members; return the lives that ended without a planned exit.

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
        """Process changed primaries; return the deaths of young ones.

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
        """Return the record with one more death; deaths before the window no longer count."""
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

        The hold doubles with each death beyond the bound, because each trial of a shard that kills costs a member. It
        never ends later than one such hold from now, even if the clock that recorded the last death was far ahead.
        """
        if deaths_max == 0 or len(self.members) < deaths_max:
            return 0.0
        hold = hold_seconds * 2.0 ** min(len(self.members) - deaths_max, _DOUBLINGS_MAX)
        return min(hold, max(0.0, self.last_wall_seconds + hold - now_wall_seconds))


_NO_DEATHS = DeathRecord()


class CrashHistory:
    """Reads and writes the death records of one cluster root."""

    def __init__(
        self, etcd: Etcd, keys: AuxiliaryKeys, *, clock: Clock, deaths_max: int, hold_seconds: float
    ) -> None:
        """Bind to a root.

        Args:
            etcd: Where records are.
            keys: Of the root.
            clock: Tells wall time: records outlive every process.
            deaths_max: Primaries in a row that may die young before the shard is held back; 0: any number.
            hold_seconds: For how long it is, at first.
        """
        self._etcd = etcd
        self._keys = keys
        self._clock = clock
        self._deaths_max = deaths_max
        self._hold_seconds = hold_seconds

    async def admit(self, shard_id: str) -> DeathRecord:
        """Return the record of a shard that is about to start.

        Raises:
            ShardHeldBackError: too many of its primaries died, too recently.
        """
        try:
            record, _ = await self._read(ItemId(shard_id))
        except LaterFormatError as error:
            # A record that cannot be read holds no shard back; it is only a help against deaths in series.
            _log.warning("shard.death_record_of_later_release", shard=shard_id, cause=str(error))
            return DeathRecord()
        seconds = self._held_seconds(record)
        if seconds > 0:
            raise ShardHeldBackError(shard_id, members=record.members, seconds=seconds)
        return record

    async def add(self, death: YoungDeath) -> None:
        """Record a death, once even if several members saw it.

        A death while the shard is held back is not recorded: the shard had no primary, so it killed none. Otherwise a
        cluster whose processes are killed by something else would hold it back ever longer.
        """
        key = self._keys.death(death.item_id)
        for _ in range(_TRIES_MAX):
            try:
                record, revision = await self._read(death.item_id)
            except LaterFormatError:
                # Members of that release see the same death, and count it.
                return
            if self._held_seconds(record) > 0:
                return
            updated = record.plus(
                death,
                now_wall_seconds=self._clock.wall_seconds(),
                # Long enough to remember a shard that is tried again after the longest hold.
                window_seconds=self._hold_seconds * 2.0**10,
            )
            if updated == record:
                return
            put = Put(key, msgspec.json.encode(updated))
            result = await self._etcd.txn((Compare.mod_revision(key, revision),), (put,))
            if result.succeeded:
                _log.warning(
                    "shard.primary_died_young", shard=death.item_id, members=updated.members
                )
                return

    async def clear(self, shard_id: str) -> None:
        """Delete the record because a primary has lived long enough. Retries until etcd answers, because that
        primary stays.
        """
        key = self._keys.death(ItemId(shard_id))
        backoff = Backoff()
        while True:
            try:
                await self._etcd.txn((), (Delete(key),))
                return
            except EtcdError as error:
                _log.warning("shard.deaths_not_cleared", shard=shard_id, cause=str(error))
            await backoff.sleep()

    def _held_seconds(self, record: DeathRecord) -> float:
        """Return for how long from now a shard with this record is held back; 0 if it is not."""
        return record.held_seconds(
            now_wall_seconds=self._clock.wall_seconds(),
            deaths_max=self._deaths_max,
            hold_seconds=self._hold_seconds,
        )

    async def _read(self, item_id: ItemId) -> tuple[DeathRecord, int]:
        result = await self._etcd.get_range(self._keys.death(item_id))
        if not result.kvs:
            return DeathRecord(), 0
        kv = result.kvs[0]
        try:
            return DEATHS.decode_json(kv.value, DeathRecord), kv.mod_revision
        except LaterFormatError:
            raise
        except DocumentError as error:
            _log.warning("shard.death_record_unreadable", key=kv.key.decode(), cause=str(error))
            return DeathRecord(), kv.mod_revision
