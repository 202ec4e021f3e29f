"""Asks a cluster what it has: shards of one member, then each member for how far its replicas have come."""

from __future__ import annotations

import asyncio

from consumer.client import ShardClient, StateClient
from consumer.errors import ConsumerError
from consumer.protocol.selector_text import parse_selector
from consumer.protocol.shard_pb2 import ListResponse
from consumer.protocol.state_pb2 import ReplicaProgress
from spark_bridge.shard_tables.access import ClusterAccess, first_answer
from spark_bridge.shard_tables.shard_rows import ProgressKey, members_of

MEMBERS_AT_ONCE = 32
"""Members asked at the same time."""


async def list_shards(access: ClusterAccess, selector: str) -> ListResponse:
    """Return the selected shards, as the first member tells that answers.

    Raises:
        NoMemberAnsweredError: none does.
        ConsumerError: the token does not allow it.
    """
    auth = access.auth()

    async def ask(address: str) -> ListResponse:
        async with ShardClient(address, auth=auth) as client:
            return await client.list(parse_selector(selector))

    return await first_answer(access.addresses, ask)


async def progress_of(
    access: ClusterAccess, selector: str, listing: ListResponse
) -> dict[ProgressKey, ReplicaProgress]:
    """Return how far the replicas of a listing have come, as far as their members tell.

    Args:
        access: How to reach members.
        selector: Of the listing.
        listing: Says which members there are.
    """
    auth = access.auth()
    wanted = parse_selector(selector)
    at_once = asyncio.Semaphore(MEMBERS_AT_ONCE)

    async def ask(member: str, endpoint: str) -> dict[ProgressKey, ReplicaProgress]:
        async with at_once, StateClient(endpoint, auth=auth) as client:
            try:
                answer = await client.list_replicas(wanted)
            except (ConsumerError, TimeoutError):
                return {}  # It is leaving, or of an older version: its replicas are listed without progress.
            return {(each.shard, member): each for each in answer.replicas}

    found: dict[ProgressKey, ReplicaProgress] = {}
    members = members_of(listing).items()
    for told in await asyncio.gather(*(ask(member, endpoint) for member, endpoint in members)):
        found |= told
    return found
