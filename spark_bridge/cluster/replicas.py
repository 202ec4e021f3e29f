"""Who serves which shard, read from a listing."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass, field

from allocator.model import MemberId
from consumer.protocol.shard_pb2 import ListResponse, ReplicaStatus


@dataclass(frozen=True, slots=True)
class Replicas:
    """The shards of a listing, by id."""

    primaries: Mapping[str, MemberId] = field(default_factory=dict)
    """Those that serve."""
    statuses: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """What each replica of a shard says, for messages."""

    def describe(self, shard_id: str) -> str:
        """Tell what is known of a shard, on one line."""
        if shard_id not in self.statuses:
            return f"{shard_id} (no such shard)"
        return f"{shard_id} ({', '.join(self.statuses[shard_id]) or 'assigned to nobody'})"


def read_replicas(listing: ListResponse, *, not_on: Container[MemberId] = ()) -> Replicas:
    """Read a listing; replicas on the members `not_on` do not count."""
    primaries: dict[str, MemberId] = {}
    statuses: dict[str, tuple[str, ...]] = {}
    for shard in listing.shards:
        said: list[str] = []
        for process_id, status in zip(shard.route.members, shard.status, strict=True):
            member_id = MemberId(process_id.zone, process_id.suffix)
            errors = f": {'; '.join(status.errors)}" if status.errors else ""
            said.append(f"{ReplicaStatus.Code.Name(status.code)} on {member_id}{errors}")
            if status.code == ReplicaStatus.PRIMARY and member_id not in not_on:
                primaries[shard.spec.id] = member_id
        statuses[shard.spec.id] = tuple(said)
    return Replicas(primaries, statuses)
