"""What a replica says of itself in etcd: how statuses combine, and how long their errors may be.

Source: gazette/core consumer/shard.go (updateStatus), consumer/protocol (Reduce).
"""

from __future__ import annotations

from collections.abc import Iterable

from consumer.protocol.shard_pb2 import ReplicaStatus

ERROR_LENGTH_MAX = 2048
"""Code points of one error: the key space holds every status of every replica in each member's memory."""

TRUNCATED = " ...[truncated]"

ERRORS_MAX = 8
"""Errors kept in one status, newest first, for the same reason."""


def truncated(text: str) -> str:
    """Return `text`, cut and marked if it is too long for a status."""
    return text if len(text) <= ERROR_LENGTH_MAX else text[:ERROR_LENGTH_MAX] + TRUNCATED


def failed_status(errors: Iterable[str]) -> ReplicaStatus:
    """Return a FAILED status with its errors, each cut to length."""
    return ReplicaStatus(
        code=ReplicaStatus.FAILED, errors=[truncated(error) for error in errors][:ERRORS_MAX]
    )


def reduced(existing: ReplicaStatus, new: ReplicaStatus) -> ReplicaStatus:
    """Return the status that says both: the further code, and the new errors before the existing ones.

    A late STANDBY therefore never hides a PRIMARY, and a promotion that carries a status over never loses it.
    """
    errors = list(dict.fromkeys((*new.errors, *existing.errors)))[:ERRORS_MAX]
    return ReplicaStatus(code=max(existing.code, new.code), errors=errors)
