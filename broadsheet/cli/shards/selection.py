"""Shards that a command line names or selects."""

from __future__ import annotations

from collections.abc import Sequence

from broadsheet.cli.errors import NothingSelectedError
from broadsheet.consumer.client import ShardClient
from broadsheet.consumer.errors import ShardNotFoundError
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire import shard_pb2
from broadsheet.wire.journal_pb2 import LabelSelector
from broadsheet.wire.labels import ID, label_set, parse_selector, selector, selector as selector_of


async def shard_of(client: ShardClient, shard_id: str) -> shard_pb2.ListResponse.Shard:
    """Return one listed shard.

    Raises:
        ShardNotFoundError: there is no such shard.
    """
    listing = await client.list(selector(label_set((ID, shard_id))))
    if not listing.shards:
        raise ShardNotFoundError(shard_id)
    return listing.shards[0]


async def listed_shards(
    client: ShardClient, shard_ids: Sequence[str], selector: str
) -> shard_pb2.ListResponse:
    """Return the shards of these ids, or those that match; all if neither is given.

    Raises:
        ValidationError: both are given, or the selector is malformed.
        NothingSelectedError: there is no shard of one of the ids.
    """
    listing = await client.list(wanted_shards(shard_ids, selector))
    missing = {*shard_ids} - {listed.spec.id for listed in listing.shards}
    if missing:
        raise NothingSelectedError("SHARD", f"there is no shard {', '.join(sorted(missing))}")
    return listing


def wanted_shards(shard_ids: Sequence[str], selector: str) -> LabelSelector:
    """Return the selector of the shards of these ids, or of those that match; of all if neither is given.

    Raises:
        ValidationError: both are given, or the selector is malformed.
    """
    if not shard_ids:
        return parse_selector(selector)
    if selector:
        raise ValidationError("--selector", "expected either SHARD or --selector")
    return selector_of(label_set(*((ID, each) for each in shard_ids)))
