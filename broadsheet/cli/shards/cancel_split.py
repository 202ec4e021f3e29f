"""`shardctl shards cancel-split`: give a split up."""

from __future__ import annotations

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.names import ShardId
from broadsheet.cli.options import command_options
from broadsheet.cli.output.messages import say


@command_options
class _CancelOptions:
    shard: ShardId


@cluster_command("cancel-split", _CancelOptions)
async def cancel_split(connection: Connection, options: _CancelOptions) -> None:
    """Give a split up, as long as the new shard does not serve.

    The old one keeps all of its keys.

    The new shard's recovery log stays; delete the journal if it is not to be split so again.

    \b
    Example:
      shardctl shards cancel-split visits-000-0800
    """
    async with connection.elastic() as client:
        revision = await client.cancel_split(options.shard)
    say(f"cancelled the split of {options.shard} at revision {revision}")
