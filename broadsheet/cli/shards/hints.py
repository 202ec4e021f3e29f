"""`shardctl shards hints`: a shard's recovery hints."""

from __future__ import annotations

from typing import Annotated

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.names import ShardId
from broadsheet.cli.options import command_options
from broadsheet.cli.output.documents import OutputFormat, format_option, print_message


@command_options
class _HintsOptions:
    shard: ShardId
    output: Annotated[OutputFormat, format_option(OutputFormat.JSON, OutputFormat.YAML)]


@cluster_command("hints", _HintsOptions)
async def shard_hints(connection: Connection, options: _HintsOptions) -> None:
    """Print a shard's recovery hints.

    A shard without a recovery log has none.

    \b
    Examples:
      shardctl shards hints flights-000
      shardctl shards hints flights-000 -o yaml
    """
    async with connection.shards() as client:
        print_message(await client.get_hints(options.shard), options.output)
