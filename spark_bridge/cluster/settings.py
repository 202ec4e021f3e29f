"""What may be set for every member of a cluster."""

from __future__ import annotations

from typing import TypedDict

from allocator.policy import AllocationPolicy
from consumer.rpc.call_limits import CallBounds
from consumer.shard.environment import ShardConfig


class MemberSettings(TypedDict, total=False):
    """What may be set for every member; see `consumer.config.MemberConfig`."""

    bind_host: str
    state_dir: str
    shard_limit: int
    capacity: int
    hot_standbys_max: int
    lease_ttl_seconds: float
    watch_delay_seconds: float
    auth_keys: str
    broker_auth_keys: str
    allow_unauthenticated: bool
    announce_seconds_max: float
    watch_peers: bool
    suspicion_phi: float
    drain_seconds_max: float
    drain_alone_seconds_max: float
    drain_covered_seconds_max: float
    stop_seconds_max: float
    request_bytes_max: int
    calls: CallBounds
    shards: ShardConfig
    allocation: AllocationPolicy
