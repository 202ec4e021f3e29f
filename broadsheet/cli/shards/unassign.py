"""`shardctl shards unassign`: restart shards."""

from __future__ import annotations

import click

from broadsheet.cli.command import cluster_command, command_options, flag, option
from broadsheet.cli.connection import Connection
from broadsheet.cli.errors import NothingSelectedError
from broadsheet.cli.output.messages import counted, say
from broadsheet.cli.shards.state import has_failed
from broadsheet.wire.labels import parse_selector


@command_options
class UnassignOptions:
    """Options of `unassign`."""

    selector: str = option("Label selector; 'id=...' names one shard.", "-l", required=True)
    failed: bool = flag("Only replicas that FAILED.")
    dry_run: bool = flag("Print which shards would be unassigned, but change nothing.")


@cluster_command("unassign", UnassignOptions)
async def unassign_shards(connection: Connection, options: UnassignOptions) -> None:
    """Restart shards.

    They are taken from their members; the allocator assigns them again.

    \b
    Examples:
      shardctl shards unassign -l id=flights-000
      shardctl shards unassign -l 'app=flights' --failed --dry-run
    """
    failed, dry_run = options.failed, options.dry_run
    async with connection.shards() as client:
        listing = await client.list(parse_selector(options.selector))
        if not listing.shards:
            raise NothingSelectedError("--selector", f"no shard matches {options.selector!r}")
        wanted = [each.spec.id for each in listing.shards if not failed or has_failed(each)]
        affected = await client.unassign(wanted, only_failed=failed, dry_run=dry_run)
    for shard_id in affected:
        click.echo(shard_id)
    done = "would unassign" if dry_run else "unassigned"
    say(f"{done} {len(affected)} of {counted(len(wanted), 'shard')}")
