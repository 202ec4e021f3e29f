"""What tests of members' lives ask: who the primary is, whether it is assigned, what a member ended with."""

from __future__ import annotations

from broadsheet.consumer.client import ShardClient
from broadsheet.consumer.member.service import Service
from broadsheet.runtime.errors import BroadsheetError
from tests.support.members import statuses


async def primary_is(client: ShardClient, suffix: str) -> bool:
    """Return whether shard-1 has that primary, and it serves."""
    return (await statuses(client))["shard-1"][0] == (suffix, "PRIMARY")


async def error_of(service: Service) -> BaseException | None:
    """Run a member to its end, and return what ended it."""
    try:
        await service.run()
    except BroadsheetError as error:
        return error
    return None


async def is_assigned(client: ShardClient) -> bool:
    """Return whether the only shard has a member."""
    return bool((await client.list()).shards[0].route.members)
