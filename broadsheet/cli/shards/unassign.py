"""`shardctl shards unassign`: restart shards."""

from __future__ import annotations

import click

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.errors import NothingSelectedError
from broadsheet.cli.names import SHARD_ID, complete_shards
from broadsheet.cli.options import (
    SelectorInPlace,
    argument,
    command_options,
    flag,
    require_selection,
)
from broadsheet.cli.output.messages import counted, say
from broadsheet.cli.shards.selection import listed_shards
from broadsheet.cli.shards.state import has_failed


@command_options
class _UnassignOptions:
    shard: tuple[str, ...] = argument(nargs=-1, type=SHARD_ID, shell_complete=complete_shards)
    selector: SelectorInPlace
    failed: bool = flag("Only replicas that FAILED.")
    dry_run: bool = flag("Print which shards would be unassigned, but change nothing.")


@cluster_command("unassign", _UnassignOptions)
async def unassign_shards(connection: Connection, options: _UnassignOptions) -> None:
    """Restart shards.

    Each SHARD, or those that match. They are taken from their members; the allocator assigns them again.

    \b
    Examples:
      shardctl shards unassign flights-000
      shardctl shards unassign -l 'app=flights' --failed --dry-run
    """
    failed, dry_run = options.failed, options.dry_run
    require_selection("shard", options.shard, options.selector, changes=True)
    async with connection.shards() as client:
        listing = await listed_shards(client, options.shard, options.selector)
        if not listing.shards:
            raise NothingSelectedError("--selector", f"no shard matches {options.selector!r}")
        wanted = [each.spec.id for each in listing.shards if not failed or has_failed(each)]
        affected = await client.unassign(wanted, only_failed=failed, dry_run=dry_run)
    for shard_id in affected:
        click.echo(shard_id)
    done = "would unassign" if dry_run else "unassigned"
    say(f"{done} {len(affected)} of {counted(len(wanted), 'shard')}")
