"""The rows of the format "shards": a listing of shards, and the progress that each member tells of its replicas."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from broadsheet.consumer.client import ShardClient, StateClient
from broadsheet.consumer.registry.key_space import member_id_of
from broadsheet.runtime.errors import ServiceError
from broadsheet.spark_bridge.shard_tables.access import ClusterAccess, answer_of
from broadsheet.spark_bridge.shard_tables.columns import batches_of
from broadsheet.wire.labels import values_of
from broadsheet.wire.selector_text import parse_selector
from broadsheet.wire.shard_pb2 import ListResponse, ReplicaStatus, ShardSpec
from broadsheet.wire.state_pb2 import ReplicaProgress


@dataclass
class ListedPartition(InputPartition):
    """A listing, as the driver got it."""

    listing: bytes


class ShardsReader(DataSourceReader):
    """Reads the table in one task."""

    def __init__(
        self, access: ClusterAccess, selector: str, schema: StructType, *, progress: bool
    ) -> None:
        self._access = access
        self._selector = selector
        self._progress = progress
        self._schema = schema

    def partitions(self) -> list[InputPartition]:
        """List the shards, on the driver, because a task that fails would be retried."""
        listing = asyncio.run(list_shards(self._access, self._selector))
        return [ListedPartition(listing.SerializeToString())]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        """Ask members, and yield batches."""
        assert isinstance(partition, ListedPartition), "as planned"
        listing = ListResponse.FromString(partition.listing)
        progress = (
            asyncio.run(progress_of(self._access, self._selector, listing))
            if self._progress
            else {}
        )
        rows = list(shard_rows(listing, progress))
        return batches_of(rows, self._schema)


ProgressKey = tuple[str, str]
"""(shard id, member as `zone#suffix`)."""


def shard_rows(
    listing: ListResponse, progress: Mapping[ProgressKey, ReplicaProgress]
) -> Iterator[dict[str, Any]]:
    """Yield a row for each replica, in order of shards and members; pure.

    A shard without a replica has one row, with the replica's columns empty, because unserved shards must appear too.

    Args:
        listing: Of shards.
        progress: Of replicas whose members answered.
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
    """Return the endpoints of members with replicas, by `zone#suffix`, without those that are leaving."""
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
    # Known without asking the member; other slots only it tells.
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


MEMBERS_AT_ONCE = 32
"""Members asked at the same time."""


async def list_shards(access: ClusterAccess, selector: str) -> ListResponse:
    """Return the selected shards, from the first member that answers.

    Raises:
        NoMemberAnsweredError: none answers.
        ServiceError: the token does not allow it.
    """
    auth, tls = access.auth(), access.tls.config()

    async def ask(address: str) -> ListResponse:
        async with ShardClient(address, auth=auth, tls=tls) as client:
            return await client.list(parse_selector(selector))

    return await answer_of(access, ask)


async def progress_of(
    access: ClusterAccess, selector: str, listing: ListResponse
) -> dict[ProgressKey, ReplicaProgress]:
    """Return the progress of a listing's replicas, from the members that answer.

    Args:
        access: Access to members.
        selector: Of the listing.
        listing: Has the members.
    """
    auth, tls = access.auth(), access.tls.config()
    wanted = parse_selector(selector)
    at_once = asyncio.Semaphore(MEMBERS_AT_ONCE)

    async def ask(member: str, endpoint: str) -> dict[ProgressKey, ReplicaProgress]:
        async with at_once, StateClient(endpoint, auth=auth, tls=tls) as client:
            try:
                answer = await client.list_replicas(wanted)
            except (ServiceError, TimeoutError):
                return {}  # leaving, or of an older version: listed without progress
            return {(each.shard, member): each for each in answer.replicas}

    found: dict[ProgressKey, ReplicaProgress] = {}
    members = [
        (member, endpoint)
        for member, endpoint in members_of(listing).items()
        if access.permits(endpoint)
    ]
    for told in await asyncio.gather(*(ask(member, endpoint) for member, endpoint in members)):
        found |= told
    return found
