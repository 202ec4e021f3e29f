"""Where a shard's recovery hints are kept in etcd.

    {hint_prefix}/{shard id}.primary       of the present recorder
    {hint_prefix}/{shard id}.backup.{n}    of past recoveries, newest first

Source: gazette/core consumer/protocol/shard_spec_extensions.go (HintPrimaryKey, HintBackupKeys).
"""

from __future__ import annotations

from consumer.protocol.shard_pb2 import ShardSpec


def has_recovery_log(spec: ShardSpec) -> bool:
    """Tell whether the shard keeps its state in a recovery log; without one it has no hints."""
    return bool(spec.recovery_log_prefix)


def recovery_log_of(spec: ShardSpec) -> str:
    """Return the journal of the shard's recovery log, or "" if it has none."""
    return f"{spec.recovery_log_prefix}/{spec.id}" if has_recovery_log(spec) else ""


def primary_hints_key(spec: ShardSpec) -> bytes:
    """Return the key of the primary hints."""
    return f"{spec.hint_prefix}/{spec.id}.primary".encode()


def backup_hints_keys(spec: ShardSpec) -> tuple[bytes, ...]:
    """Return the keys of the backup hints, newest first."""
    return tuple(
        f"{spec.hint_prefix}/{spec.id}.backup.{index}".encode()
        for index in range(spec.hint_backups)
    )
