"""Reads the hints of every shard of a cluster, as of one revision of etcd."""

from __future__ import annotations

from dataclasses import dataclass

from google.protobuf.message import DecodeError

from allocator.errors import RevisionCompactedError
from allocator.etcd.api import Etcd
from allocator.keys import Keys
from allocator.ops import prefix_range_end
from consumer.core.hint_keys import (
    backup_hints_keys,
    has_recovery_log,
    primary_hints_key,
    recovery_log_of,
)
from consumer.protocol.shard_pb2 import ShardSpec
from consumer.recoverylog.liveness import HintsValue, ShardHints

ATTEMPTS_MAX = 3
"""Reads that start over because etcd compacted the revision in between."""


@dataclass(frozen=True, slots=True)
class ClusterHints:
    """What any recovery in a cluster could begin from."""

    shards: tuple[ShardHints, ...]
    """Of shards with a recovery log, by id."""
    unreadable_specs: tuple[str, ...]
    """Keys of specs that cannot be decoded."""
    revision: int


async def read_cluster_hints(etcd: Etcd, keys: Keys) -> ClusterHints:
    """Read all specs below a root, not a mirror's that may lag, and then each shard's hints.

    Raises:
        EtcdUnavailableError: etcd did not answer.
        RevisionCompactedError: etcd is compacted so often that no read gets through.
    """
    for _ in range(ATTEMPTS_MAX - 1):
        try:
            return await _read(etcd, keys)
        except RevisionCompactedError:
            continue
    return await _read(etcd, keys)


async def _read(etcd: Etcd, keys: Keys) -> ClusterHints:
    prefix = keys.items_prefix
    items = await etcd.get_range(prefix, prefix_range_end(prefix))
    revision = items.header.revision
    shards: list[ShardHints] = []
    unreadable: list[str] = []
    for kv in items.kvs:
        try:
            spec = ShardSpec.FromString(kv.value)
        except DecodeError:
            unreadable.append(kv.key.decode(errors="replace"))
            continue
        if has_recovery_log(spec):
            shards.append(await _read_shard(etcd, spec, revision))
    return ClusterHints(tuple(shards), tuple(unreadable), revision)


async def _read_shard(etcd: Etcd, spec: ShardSpec, revision: int) -> ShardHints:
    """Read a shard's hints in one go: etcd may have others beside them, which no recovery looks at."""
    prefix = f"{spec.hint_prefix}/{spec.id}.".encode()
    held = await etcd.get_range(prefix, prefix_range_end(prefix), revision=revision)
    backups = set(backup_hints_keys(spec))
    wanted = backups | {primary_hints_key(spec)}
    return ShardHints(
        shard=spec.id,
        log=recovery_log_of(spec),
        values=tuple(
            HintsValue(kv.key.decode(), kv.value, is_backup=kv.key in backups)
            for kv in held.kvs
            if kv.key in wanted
        ),
    )
