"""`shardctl journals quarantined`: unknown entries that the broker moved to quarantine."""

from __future__ import annotations

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.options import command_options, option
from broadsheet.cli.output.messages import say
from broadsheet.cli.output.tables import print_table


@command_options
class _QuarantinedOptions:
    purge: str | None = option("Remove this entry for ever instead.", metavar="ID")


@cluster_command("quarantined", _QuarantinedOptions)
async def quarantined(connection: Connection, options: _QuarantinedOptions) -> None:
    """List unknown entries that the broker moved to quarantine.

    To put an entry back, stop the broker and run it once with --restore-quarantined ID.

    \b
    Examples:
      shardctl journals quarantined
      shardctl journals quarantined --purge 20260102T030405Z-0a1b2c3d-NAME
    """
    async with connection.journals() as client:
        if options.purge is not None:
            await client.purge_quarantine(options.purge)
            say(f"removed {options.purge}")
            return
        entries = await client.list_quarantine()
    if not entries:
        say("nothing is quarantined")
        return
    rows = [
        [each.id, str(each.bytes), each.journal or "<none>", each.path, each.why]
        for each in entries
    ]
    print_table(["ID", "BYTES", "JOURNAL", "WAS", "WHY"], rows)
