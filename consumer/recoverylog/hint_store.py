"""A shard's hints in etcd: read at one revision, written only by the holder of the assignment.

    primary     of the current recorder: replaced on a timer and by bytes
    backups     of past recoveries: the newest is put first after a successful restore, the oldest is dropped

Source: gazette/core consumer/recovery.go (fetchHints, storeRecordedHints, storeRecoveredHints). Unlike there, a write
whose transaction was refused is an error, because the assignment is gone, and with it the right to serve.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from broadsheet.allocator.errors import KeyDecodeError, RevisionCompactedError
from broadsheet.allocator.etcd.api import Etcd
from broadsheet.allocator.keys import Keys
from broadsheet.allocator.model import Assignment
from broadsheet.allocator.ops import Compare, Get, KeyValue, Put, prefix_range_end
from broadsheet.consumer.errors import AssignmentLostError, HintsError
from broadsheet.consumer.recoverylog.fsm import live_segments
from broadsheet.consumer.recoverylog.hints import (
    StoredHints,
    backup_hints_keys,
    decode_hints,
    encode_hints,
    has_recovery_log,
    primary_hints_key,
    recovery_log_of,
)
from broadsheet.consumer.recoverylog.liveness import HintsValue, ShardHints
from broadsheet.wire.recorded_op_pb2 import FSMHints
from broadsheet.wire.shard_pb2 import ShardSpec

BACKUPS_READ_MAX = 127
"""Backups read in one transaction with the primary hints: etcd takes 128 operations."""
_WAY_OUT = "recover from a backup of the hints, or from the whole log (shardctl shards rewind)"
JSON_BYTES_MAX = 512 << 10
"""Hints longer than this are stored as protobuf: etcd takes 1.5 MiB in one request."""


async def fetch_hints(etcd: Etcd, spec: ShardSpec) -> StoredHints:
    """Read a shard's hints. A shard without a recovery log has none.

    Raises:
        KeyDecodeError: a value is malformed, or of another recovery log than the spec names.
        EtcdUnavailableError: etcd did not answer.
    """
    if not has_recovery_log(spec):
        return StoredHints()
    keys = (primary_hints_key(spec), *backup_hints_keys(spec)[:BACKUPS_READ_MAX])
    result = await etcd.txn((), tuple(Get(key) for key in keys))
    hints = [_decode_or_none(kvs, spec) for kvs in result.gets]
    return StoredHints(primary=hints[0], backups=tuple(hints[1:]))


async def store_recorded_hints(
    etcd: Etcd, spec: ShardSpec, assignment: Assignment, hints: FSMHints
) -> None:
    """Replace the primary hints.

    Raises:
        AssignmentLostError: the assignment is gone or was created again; nothing was written.
        EtcdUnavailableError: etcd did not answer; the old hints are still valid, only slower to recover from.
    """
    result = await etcd.txn(
        (_still_assigned(assignment),), (Put(primary_hints_key(spec), _encode(hints)),)
    )
    if not result.succeeded:
        raise _lost(assignment)


async def rotate_backup_hints(
    etcd: Etcd, spec: ShardSpec, assignment: Assignment, recovered: FSMHints
) -> None:
    """Insert the hints of a successful recovery as the first backup; the others shift up to the first empty one.

    Raises:
        AssignmentLostError: the assignment is gone, or another process rotated at the same time; nothing was written.
        EtcdUnavailableError: etcd did not answer.
    """
    keys = backup_hints_keys(spec)[:BACKUPS_READ_MAX]
    if not keys:
        return
    held = [kvs[0] if kvs else None for kvs in (await etcd.txn((), _gets(keys))).gets]
    compares = [_still_assigned(assignment)]
    puts: list[Put] = []
    moving = _encode(recovered)
    for key, kv in zip(keys, held, strict=True):
        compares.append(Compare.mod_revision(key, kv.mod_revision if kv else 0))
        puts.append(Put(key, moving))
        # The first empty backup takes the last shifted value, so no hints are dropped.
        if kv is None:
            break
        moving = kv.value
    result = await etcd.txn(tuple(compares), tuple(puts))
    if not result.succeeded:
        raise _lost(assignment)


def _encode(hints: FSMHints) -> bytes:
    """Return hints as JSON, or as protobuf, which is half as long, if they exceed `JSON_BYTES_MAX`."""
    value = encode_hints(hints)
    return value if len(value) <= JSON_BYTES_MAX else hints.SerializeToString()


def _gets(keys: Sequence[bytes]) -> tuple[Get, ...]:
    return tuple(Get(key) for key in keys)


def _still_assigned(assignment: Assignment) -> Compare:
    return Compare.create_revision(assignment.kv.key, assignment.kv.create_revision)


def _lost(assignment: Assignment) -> AssignmentLostError:
    return AssignmentLostError(
        f"assignment {assignment.kv.key.decode()} is gone or was created again: its hints were not written"
    )


def _decode_or_none(kvs: Sequence[KeyValue], spec: ShardSpec) -> FSMHints | None:
    if not kvs:
        return None
    (kv,) = kvs
    try:
        hints = decode_hints(kv.value)
    except ValueError as error:
        raise KeyDecodeError(kv.key, f"{error}; {_WAY_OUT}") from error
    if hints.log != recovery_log_of(spec):
        raise KeyDecodeError(
            kv.key,
            f"log: expected {recovery_log_of(spec)!r} as in the spec, got {hints.log!r}; {_WAY_OUT}",
        )
    try:
        live_segments(hints)
    except HintsError as error:
        raise KeyDecodeError(kv.key, f"{error}; {_WAY_OUT}") from error
    return hints


ATTEMPTS_MAX = 3
"""Attempts to read all shards at one revision: a read starts over if etcd compacted its revision meanwhile."""


@dataclass(frozen=True, slots=True)
class ClusterHints:
    """The hints of every shard of a cluster, as of one revision of etcd."""

    shards: tuple[ShardHints, ...]
    """Hints of the shards with a recovery log, by id."""
    unreadable_specs: tuple[str, ...]
    """Keys of specs that cannot be decoded."""
    revision: int


async def read_cluster_hints(etcd: Etcd, keys: Keys) -> ClusterHints:
    """Read all specs below a root from etcd, because a mirror may lag, and then each shard's hints.

    Raises:
        EtcdUnavailableError: etcd did not answer.
        RevisionCompactedError: etcd is compacted so often that no read completes.
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
    """Read the hints that the spec names; other hints in etcd are left out, because no recovery reads them."""
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
