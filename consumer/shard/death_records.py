"""Keeps, in etcd, which primaries died young: of a shard that has none there is no key.

/broadsheet.v1{root}/deaths/{shard id}    JSON: members, last_wall_seconds, lives
"""

from __future__ import annotations

import msgspec
import structlog

from allocator.documents import DocumentError, decode_json
from allocator.errors import EtcdError
from allocator.etcd.api import Etcd
from allocator.keys import AuxiliaryKeys
from allocator.model import ItemId
from allocator.ops import Compare, Delete, Put
from allocator.runtime.backoff import Backoff
from allocator.runtime.clock import Clock
from consumer.core.young_deaths import DeathRecord, YoungDeath
from consumer.errors import ShardHeldBackError

_TRIES_MAX = 5
"""Other members may write the same record; each try starts from what they wrote."""

_log = structlog.get_logger()


class DeathRecords:
    """Reads and writes the records of one root."""

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
        record, _ = await self._read(ItemId(shard_id))
        seconds = self._held_seconds(record)
        if seconds > 0:
            raise ShardHeldBackError(shard_id, members=record.members, seconds=seconds)
        return record

    async def add(self, death: YoungDeath) -> None:
        """Record a death, once however many members saw it.

        Not one of a shard that is held back: nobody served it, so it killed nobody. Else a cluster whose processes are
        killed by something else would hold it back ever longer.
        """
        key = self._keys.death(death.item_id)
        for _ in range(_TRIES_MAX):
            record, revision = await self._read(death.item_id)
            if self._held_seconds(record) > 0:
                return
            updated = record.plus(
                death,
                now_wall_seconds=self._clock.wall_seconds(),
                # Long enough that a shard which is tried again after the longest hold is still known.
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
        """Forget the deaths: a primary has lived long enough. Tries until etcd answers: that primary is to live on."""
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
            return decode_json(kv.value, DeathRecord), kv.mod_revision
        except DocumentError as error:
            _log.warning("shard.death_record_unreadable", key=kv.key.decode(), cause=str(error))
            return DeathRecord(), kv.mod_revision
