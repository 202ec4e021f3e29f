"""Clients of a member's services.

`ShardClient`, `AllocationClient`, `ElasticClient`, `RecoveryClient`, `StateClient` and `KeyedClient` run on an event
loop. `SyncShardClient` needs none.
"""

from __future__ import annotations

from broadsheet.consumer.client.allocation_client import AllocationClient as AllocationClient
from broadsheet.consumer.client.elastic_client import ElasticClient as ElasticClient
from broadsheet.consumer.client.keyed_client import (
    KeyedClient as KeyedClient,
    KeyedReadOptions as KeyedReadOptions,
)
from broadsheet.consumer.client.recovery_client import RecoveryClient as RecoveryClient
from broadsheet.consumer.client.referenced_journals import (
    verify_referenced_journals as verify_referenced_journals,
)
from broadsheet.consumer.client.shard_client import ShardClient as ShardClient
from broadsheet.consumer.client.state_client import StateClient as StateClient
from broadsheet.consumer.client.sync_client import SyncShardClient as SyncShardClient
