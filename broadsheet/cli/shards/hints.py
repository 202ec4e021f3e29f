"""`shardctl shards hints`: a shard's recovery hints."""

from __future__ import annotations

from typing import Annotated

from broadsheet.cli.command import cluster_command, command_options
from broadsheet.cli.connection import Connection
from broadsheet.cli.names import ShardId
from broadsheet.cli.output.documents import OutputFormat, format_option, print_message


@command_options
class HintsOptions:
    """Options of `hints`."""

    shard: ShardId
    output: Annotated[OutputFormat, format_option(OutputFormat.JSON, OutputFormat.YAML)]


@cluster_command("hints", HintsOptions)
async def shard_hints(connection: Connection, options: HintsOptions) -> None:
    """Print a shard's recovery hints.

    A shard without a recovery log has none.

    \b
    Examples:
      shardctl shards hints flights-000
      shardctl shards hints flights-000 -o yaml
    """
    async with connection.shards() as client:
        print_message(await client.get_hints(options.shard), options.output)
