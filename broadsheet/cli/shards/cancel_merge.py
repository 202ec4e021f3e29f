"""`shardctl shards cancel-merge`: give a merge up."""

from __future__ import annotations

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.names import ShardId
from broadsheet.cli.options import command_options
from broadsheet.cli.output.messages import say


@command_options
class _CancelOptions:
    shard: ShardId


@cluster_command("cancel-merge", _CancelOptions)
async def cancel_merge(connection: Connection, options: _CancelOptions) -> None:
    """Give a merge up, as long as both shards serve. SHARD is the one that takes the other one in.

    Both keep their keys. The rows that were taken in are removed with the next transactions.

    \b
    Example:
      shardctl shards cancel-merge visits-000
    """
    async with connection.elastic() as client:
        revision = await client.cancel_merge(options.shard)
    say(f"cancelled the merge of {options.shard} at revision {revision}")
