"""The state in etcd of the shards that an Apply names: present specs, and the hints of their logs.

A call for each of ten thousand keys takes longer than the whole apply. So the mirror proposes what is there, and one
call confirms it for many keys (`broadsheet.allocator.etcd.reads.read_expected`); only what differs is read. A lagging
mirror costs calls, and decides nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from google.protobuf.message import DecodeError

from broadsheet.allocator.etcd.api import Etcd
from broadsheet.allocator.etcd.reads import read_expected
from broadsheet.allocator.keys import Keys
from broadsheet.allocator.model import ItemId
from broadsheet.allocator.ops import KeyValue
from broadsheet.consumer.recoverylog.hints import has_recovery_log, primary_hints_key
from broadsheet.consumer.recoverylog.log_claims import StoredLog
from broadsheet.consumer.registry.key_space import ShardKeySpace
from broadsheet.consumer.rpc.shard_changes import StoredSpec
from broadsheet.wire.shard_pb2 import ApplyRequest, ShardSpec


class StoredShards:
    """Reads the specs and hints of shards that are to be changed."""

    def __init__(self, etcd: Etcd, key_space: ShardKeySpace, keys: Keys) -> None:
        """Read nothing yet.

        Args:
            etcd: Where specs and hints are.
            key_space: The mirror of the specs, which may lag.
            keys: Of the specs.
        """
        self._etcd = etcd
        self._key_space = key_space
        self._keys = keys

    async def specs(self, shard_ids: Iterable[str]) -> dict[str, StoredSpec]:
        """Return the present specs of those shards that exist."""
        by_key = {self._keys.item(ItemId(each)): each for each in shard_ids}
        found = await read_expected(
            self._etcd, {key: self._mirrored(shard_id) for key, shard_id in by_key.items()}
        )
        return {
            by_key[key]: StoredSpec(
                spec=_spec_or_bare(kv.value, by_key[key]), mod_revision=kv.mod_revision
            )
            for key, kv in found.items()
            if kv is not None
        }

    async def logs(
        self, changes: Sequence[ApplyRequest.Change], known: Mapping[str, StoredSpec] | None
    ) -> dict[str, StoredLog]:
        """Return what there is of the recovery logs of upserted shards, by shard id.

        Args:
            changes: Of one apply, whose transaction compares the revisions that they expect.
            known: The present specs; None: they were not read.
        """
        upserts = [change for change in changes if change.HasField("upsert")]
        specs = await self._specs_of(upserts) if known is None else known
        wanted = {
            change.upsert.id: primary_hints_key(change.upsert)
            for change in upserts
            # Without a log there are no hints, and hints that come with the change replace what is there.
            if has_recovery_log(change.upsert) and not change.HasField("primary_hints")
        }
        hints = await read_expected(self._etcd, dict.fromkeys(wanted.values()))
        logs: dict[str, StoredLog] = {}
        for change in upserts:
            shard_id = change.upsert.id
            held = specs.get(shard_id)
            kv = hints[wanted[shard_id]] if shard_id in wanted else None
            logs[shard_id] = StoredLog(
                spec=held.spec if held else None, hints=kv.value if kv else None
            )
        return logs

    async def present(self, changes: Sequence[ApplyRequest.Change]) -> dict[str, StoredSpec]:
        """Return the present specs of the shards that changes name, as far as they exist.

        Args:
            changes: Of one apply, whose transaction compares the revisions that they expect.
        """
        return await self._specs_of(changes)

    async def _specs_of(self, changes: Sequence[ApplyRequest.Change]) -> dict[str, StoredSpec]:
        specs: dict[str, StoredSpec] = {}
        unsettled: list[str] = []
        for change in changes:
            shard_id = change.upsert.id or change.delete
            kv = self._mirrored(shard_id)
            if change.expect_mod_revision != (kv.mod_revision if kv else 0):
                unsettled.append(shard_id)
            elif kv is not None:
                # The transaction compares this revision, so it is the present one, or nothing is written.
                specs[shard_id] = StoredSpec(
                    spec=_spec_or_bare(kv.value, shard_id), mod_revision=kv.mod_revision
                )
        return specs | await self.specs(unsettled)

    def _mirrored(self, shard_id: str) -> KeyValue | None:
        item = self._key_space.items.get(ItemId(shard_id))
        return None if item is None else item.kv


def _spec_or_bare(value: bytes, shard_id: str) -> ShardSpec:
    """Return a stored spec; if it cannot be decoded, one with only its id, which claims can still match."""
    try:
        return ShardSpec.FromString(value)
    except DecodeError:
        return ShardSpec(id=shard_id)
