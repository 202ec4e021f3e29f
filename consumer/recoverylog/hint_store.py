"""A shard's hints in etcd: read as of one revision, written only by whoever holds the assignment.

    primary     of the present recorder: replaced on a timer and by bytes
    backups     of past recoveries: the newest is put first after a restore that succeeded, the oldest falls off

Source: gazette/core consumer/recovery.go (fetchHints, storeRecordedHints, storeRecoveredHints). Unlike the model, a
write whose transaction was refused is an error: the assignment is gone, and so is the right to serve.
"""

from __future__ import annotations

from collections.abc import Sequence

from allocator.errors import KeyDecodeError
from allocator.etcd.api import Etcd
from allocator.model import Assignment
from allocator.ops import Compare, Get, KeyValue, Put
from consumer.core.hint_keys import (
    backup_hints_keys,
    has_recovery_log,
    primary_hints_key,
    recovery_log_of,
)
from consumer.errors import AssignmentLostError, HintsError
from consumer.protocol.recorded_op_pb2 import FSMHints
from consumer.protocol.shard_pb2 import ShardSpec
from consumer.recoverylog.fsm import live_segments
from consumer.recoverylog.hints import StoredHints, decode_hints, encode_hints

BACKUPS_READ_MAX = 127
"""Backups read in one transaction beside the primary hints: etcd takes 128 operations."""
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
        AssignmentLostError: the assignment is gone or was made anew; nothing was written.
        EtcdUnavailableError: etcd did not answer; the old hints are as good, only slower.
    """
    result = await etcd.txn(
        (_still_assigned(assignment),), (Put(primary_hints_key(spec), _encode(hints)),)
    )
    if not result.succeeded:
        raise _lost(assignment)


async def rotate_backup_hints(
    etcd: Etcd, spec: ShardSpec, assignment: Assignment, recovered: FSMHints
) -> None:
    """Put the hints of a recovery that succeeded before the backups, up to the first one that was empty.

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
        if kv is None:
            break
        moving = kv.value
    result = await etcd.txn(tuple(compares), tuple(puts))
    if not result.succeeded:
        raise _lost(assignment)


def _encode(hints: FSMHints) -> bytes:
    """Return JSON, or protobuf, which takes half the room, if they name a great many files."""
    value = encode_hints(hints)
    return value if len(value) <= JSON_BYTES_MAX else hints.SerializeToString()


def _gets(keys: Sequence[bytes]) -> tuple[Get, ...]:
    return tuple(Get(key) for key in keys)


def _still_assigned(assignment: Assignment) -> Compare:
    return Compare.create_revision(assignment.kv.key, assignment.kv.create_revision)


def _lost(assignment: Assignment) -> AssignmentLostError:
    return AssignmentLostError(
        f"assignment {assignment.kv.key.decode()} is gone or was made anew: its hints were not written"
    )


def _decode_or_none(kvs: Sequence[KeyValue], spec: ShardSpec) -> FSMHints | None:
    if not kvs:
        return None
    (kv,) = kvs
    try:
        hints = decode_hints(kv.value)
    except ValueError as error:
        raise KeyDecodeError(kv.key, str(error)) from error
    if hints.log != recovery_log_of(spec):
        raise KeyDecodeError(
            kv.key, f"log: expected {recovery_log_of(spec)!r} as in the spec, got {hints.log!r}"
        )
    try:
        live_segments(hints)
    except HintsError as error:
        raise KeyDecodeError(kv.key, str(error)) from error
    return hints
