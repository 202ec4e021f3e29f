"""`shardctl shards list`: shards with their state."""

from __future__ import annotations

from broadsheet.cli.shards.specs import SHARDS
from broadsheet.cli.specs.list import LIST

list_shards = LIST.command(
    SHARDS,
    """List shards with their state.

    All of them, each SHARD, or those that match.

    \b
    Examples:
      shardctl shards list
      shardctl shards list -l 'id:prefix=flights-' --replicas --lag
      shardctl shards list -l app=flights --watch
      shardctl shards list -o name | xargs -n 1 shardctl shards stat
      shardctl shards list -o jsonpath='{.shards[*].spec.id}'
      shardctl shards list -o yaml > specs.yaml   # edit it, then apply it
    """,
)
