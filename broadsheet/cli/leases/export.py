"""`shardctl leases export`: all leases as JSON lines."""

from __future__ import annotations

import click

from broadsheet.cli.leases.command import store_command
from broadsheet.cli.names import store_named
from broadsheet.cli.options import argument, command_options
from broadsheet.cli.output.messages import counted, say
from broadsheet.leases.migration.export_file import export_lines
from broadsheet.leases.migration.plan import records_of
from broadsheet.leases.opening import existing_store


@command_options
class _ExportOptions:
    store: str = argument()


@store_command("export", _ExportOptions)
async def export_leases(options: _ExportOptions) -> None:
    """Print all leases as JSON lines, for `shardctl leases import`.

    Nothing is changed. What workers commit meanwhile may be in it or not, lease by lease.

    \b
    Examples:
      shardctl leases export 'dynamodb:orders?layout=kcl-java' > orders.jsonl
      shardctl leases export etcd:/my-application | jq .record.checkpoint
    """
    address = store_named(options.store)
    async with existing_store(address) as opened:
        records = [found.record for found in await records_of(opened)]
    for line in export_lines(records, origin=address.text):
        click.echo(line, nl=False)
    say(f"exported {counted(len(records), 'lease')}")
