"""Which shards a caller sees, and how they stand: the answer of List, from the key space.

Source: gazette/core consumer/shard_api.go (List).
"""

from __future__ import annotations

from consumer.core.route import build_route, replicas_of
from consumer.key_space import ShardKeySpace, is_visible, spec_of, standbys_refused_of, status_of
from consumer.protocol.journal_pb2 import LabelSelector
from consumer.protocol.shard_pb2 import ListResponse


def list_shards(
    key_space: ShardKeySpace, *, wanted: LabelSelector, allowed: LabelSelector
) -> list[ListResponse.Shard]:
    """Return the shards that both selectors pick, by id, with routes and statuses.

    Args:
        key_space: The mirror.
        wanted: The request's selector.
        allowed: The caller's claims.
    """
    shards: list[ListResponse.Shard] = []
    for item_id, item in key_space.items.items():
        spec = spec_of(item)
        if not (is_visible(spec, wanted) and is_visible(spec, allowed)):
            continue
        replicas = replicas_of(key_space.assignments_of(item_id))
        shards.append(
            ListResponse.Shard(
                spec=spec,
                mod_revision=item.kv.mod_revision,
                create_revision=item.kv.create_revision,
                route=build_route(replicas, key_space.members),
                status=[status_of(replica) for replica in replicas],
                standbys_refused=standbys_refused_of(item),
            )
        )
    return shards
