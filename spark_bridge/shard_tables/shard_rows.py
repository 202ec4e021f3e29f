"""Shards as a table: one row a replica. Pure: from a listing, and from what members told of their replicas.

A shard without a replica has one row, with nothing of a replica in it: what is not served must not be missing.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from consumer.key_space import member_id_of
from consumer.protocol.labels import values_of
from consumer.protocol.shard_pb2 import ListResponse, ReplicaStatus, ShardSpec
from consumer.protocol.state_pb2 import ReplicaProgress

ProgressKey = tuple[str, str]
"""(shard id, member as `zone#suffix`)."""


def shard_rows(
    listing: ListResponse, progress: Mapping[ProgressKey, ReplicaProgress]
) -> Iterator[dict[str, Any]]:
    """Yield a row for each replica, in order of shards and members.

    Args:
        listing: Of shards.
        progress: Of replicas, as far as their members told.
    """
    revision = listing.header.etcd.revision
    for listed in listing.shards:
        shard = {
            **_spec_columns(listed.spec),
            "create_revision": listed.create_revision,
            "mod_revision": listed.mod_revision,
            "revision": revision,
        }
        if not listed.route.members:
            yield shard
        for index in range(len(listed.route.members)):
            yield shard | _replica_columns(listed, index, progress)


def members_of(listing: ListResponse) -> dict[str, str]:
    """Return where the members with replicas listen, by `zone#suffix`; those that are leaving are left out."""
    return {
        str(member_id_of(member)): endpoint
        for listed in listing.shards
        for member, endpoint in zip(listed.route.members, listed.route.endpoints, strict=True)
        if endpoint
    }


def _spec_columns(spec: ShardSpec) -> dict[str, Any]:
    return {
        "shard_id": spec.id,
        "disable": spec.disable,
        "hot_standbys": spec.hot_standbys,
        "sources": [
            {"journal": source.journal, "min_offset": source.min_offset} for source in spec.sources
        ],
        "labels": [
            (name, values_of(spec.labels, name))
            for name in sorted({label.name for label in spec.labels.labels})
        ],
        "recovery_log_prefix": spec.recovery_log_prefix,
        "hint_prefix": spec.hint_prefix,
        "hint_backups": spec.hint_backups,
        "min_txn_seconds": spec.min_txn_duration.ToTimedelta().total_seconds(),
        "max_txn_seconds": spec.max_txn_duration.ToTimedelta().total_seconds(),
    }


def _replica_columns(
    listed: ListResponse.Shard, index: int, progress: Mapping[ProgressKey, ReplicaProgress]
) -> dict[str, Any]:
    member = member_id_of(listed.route.members[index])
    status = listed.status[index]
    columns: dict[str, Any] = {
        "zone": member.zone,
        "member": str(member),
        "endpoint": listed.route.endpoints[index] or None,
        "status": ReplicaStatus.Code.Name(status.code),
        "last_error": status.errors[0] if status.errors else None,
        "errors": list(status.errors),
    }
    if index == listed.route.primary:
        columns["slot"] = 0
    told = progress.get((listed.spec.id, str(member)))
    if told is not None:
        columns |= {
            "slot": told.slot,
            "lag_seconds": told.behind_seconds if told.behind_seconds >= 0 else None,
            "bytes_behind": told.behind_bytes if told.behind_bytes >= 0 else None,
            "read_through": sorted(told.read_through.items()),
            "publish_at": sorted(told.publish_at.items()),
        }
    return columns
