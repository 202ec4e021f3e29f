"""States of shards and of their replicas, as lists show them."""

from __future__ import annotations

from broadsheet.wire import shard_pb2
from broadsheet.wire.shard_pb2 import ReplicaStatus

UNAVAILABLE = "UNAVAILABLE"
"""Shown in place of the code of a primary that is cut off from its brokers."""


def status_of(shard: shard_pb2.ListResponse.Shard) -> str:
    """Return the state of a shard: that of its most advanced replica, FAILED before all."""
    if shard.spec.disable:
        return "DISABLED"
    code = max((status.code for status in shard.status), default=None)
    if code is None:
        return "UNASSIGNED"
    if code != ReplicaStatus.FAILED and any(each.unavailable for each in shard.status):
        return UNAVAILABLE
    return ReplicaStatus.Code.Name(code)


def replica_state(status: ReplicaStatus) -> str:
    """Return the state of a replica."""
    if status.unavailable and status.code != ReplicaStatus.FAILED:
        return UNAVAILABLE
    return ReplicaStatus.Code.Name(status.code)


def has_primary(shard: shard_pb2.ListResponse.Shard) -> bool:
    """Report whether a replica serves as the shard's primary."""
    return any(status.code == shard_pb2.ReplicaStatus.PRIMARY for status in shard.status)


def has_failed(shard: shard_pb2.ListResponse.Shard) -> bool:
    """Report whether a replica failed."""
    return any(status.code == ReplicaStatus.FAILED for status in shard.status)
