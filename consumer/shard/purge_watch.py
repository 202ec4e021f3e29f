"""The end of a split: the shards that divided keys say that they have removed the rows of the others' keys.

The store removes them in its own transactions. How far each shard is stands in the split's record; the second one that
is done deletes the record. A store that is none of `PurgingStore` has nothing to remove.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import msgspec
import structlog

from broadsheet.allocator.errors import EtcdError
from broadsheet.allocator.ops import prefix_range_end
from broadsheet.consumer.elastic.family import is_of_family
from broadsheet.consumer.elastic.flip import HeldKey, progress_txn
from broadsheet.consumer.elastic.fork import (
    ForkPhase,
    ForkRecord,
    PurgeProgress,
    forks_prefix,
    read_forks,
)
from broadsheet.consumer.elastic.progress import purge_progress
from broadsheet.consumer.errors import StoreClosedError
from broadsheet.consumer.shard.environment import ShardEnvironment
from broadsheet.consumer.shard.replica_status import AssignedShard
from broadsheet.runtime.documents import DocumentError
from broadsheet.wire.key_range import KeyRange, key_range_of
from broadsheet.wire.progress_pb2 import Progress

LOOK_SECONDS = 1.0
_WEIGHT = 0.3
"""Of the newest rate in the smoothed one."""

_log = structlog.get_logger()


@runtime_checkable
class PurgingStore(Protocol):
    """A store that removes the rows of keys that its shard has given away."""

    def purged_groups(self, owned: KeyRange) -> tuple[int, int]:
        """Return of how many other groups no rows are left, and how many are to do, as of the last durable commit.

        On any thread.

        Raises:
            StoreClosedError: the store is not restored, or is destroyed.
        """
        ...


@dataclass(frozen=True, slots=True)
class _Look:
    at_monotonic_seconds: float
    progress: PurgeProgress


class PurgeWatch:
    """Watches one attempt. `run` it beside the transactions."""

    def __init__(self, shard: AssignedShard, environment: ShardEnvironment) -> None:
        """Bind to an attempt's shard.

        Args:
            shard: The shard.
            environment: The services of this process.
        """
        self._shard = shard
        self._environment = environment
        self._changed = asyncio.Event()
        self._before: _Look | None = None

    @property
    def progress(self) -> Progress | None:
        """Progress of removing others' rows; None: there are none as far as was looked."""
        if self._before is None or not self._before.progress.left:
            return None
        return purge_progress(self._shard.id, self._before.progress)

    def on_spec_changed(self) -> None:
        """Look again: a split may have been committed."""
        self._changed.set()

    async def run(self, store: object) -> None:
        """Tell the splits of this shard that its part is done, until cancelled."""
        while True:
            self._changed.clear()
            # Most shards are never split, and cost nothing.
            if is_of_family(self._shard.spec):
                await self._tell_all(store)
            await self._changed.wait()

    async def _tell_all(self, store: object) -> None:
        while True:
            if await self._is_told(store):
                return
            await asyncio.sleep(LOOK_SECONDS)

    async def _is_told(self, store: object) -> bool:
        """Tell, if all is removed; return whether no split waits for this shard."""
        try:
            progress = None
            if isinstance(store, PurgingStore):
                owned = key_range_of(self._shard.spec.labels)
                progress = self._observed(*store.purged_groups(owned))
            return await self._tell(progress)
        except EtcdError as error:
            _log.info("split.purge_not_told", shard=self._shard.id, cause=str(error))
        except StoreClosedError:
            pass  # The attempt ends.
        return False

    def _observed(self, done: int, left: int) -> PurgeProgress | None:
        """Return how far the removal is; None: it is over."""
        now, before = self._environment.clock.monotonic_seconds(), self._before
        rate = 0.0
        if before is not None and done >= before.progress.done:
            elapsed = now - before.at_monotonic_seconds
            measured = (done - before.progress.done) / elapsed if elapsed > 0 else 0.0
            smoothed = before.progress.groups_per_second or measured
            rate = smoothed + _WEIGHT * (measured - smoothed)
        progress = PurgeProgress(done, left, round(rate, 3))
        self._before = _Look(now, progress)
        return progress if left else None

    async def _tell(self, progress: PurgeProgress | None) -> bool:
        """Tell all splits that wait for this shard how far it is; return whether none waits any more."""
        keys, shard_id, told = self._environment.keys, self._shard.id, progress is None
        prefix = forks_prefix(keys.root)
        found = await self._environment.etcd.get_range(prefix, prefix_range_end(prefix))
        for child, kv, record in read_forks(found.kvs, keys.root):
            if isinstance(record, DocumentError):
                _log.warning("split.record_unreadable", shard=child, cause=str(record))
                told = told and child != shard_id
                continue
            is_ours = shard_id in (child, record.parent) and shard_id not in record.purged
            if not is_ours or record.phase is not ForkPhase.PURGING:
                continue
            after = _after(record, shard_id, progress)
            if after == record:
                continue
            checkpoint = progress_txn(keys, child, kv, after, HeldKey.of(self._shard.assignment.kv))
            result = await self._environment.etcd.txn(checkpoint.compares, checkpoint.operations)
            # Another shard may have written the record meanwhile.
            told = told and result.succeeded
        return told


def _after(record: ForkRecord, shard_id: str, progress: PurgeProgress | None) -> ForkRecord:
    if progress is None:
        return msgspec.structs.replace(record, purged=(*record.purged, shard_id))
    return msgspec.structs.replace(record, purging={**record.purging, shard_id: progress})
