"""`shardctl journals suspend`: suspend journals without appends."""

from __future__ import annotations

import click

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.journals.selection import selected_names
from broadsheet.cli.names import JournalNames
from broadsheet.cli.options import SelectorInPlace, command_options, flag


@command_options
class _SuspendOptions:
    journals: JournalNames
    selector: SelectorInPlace
    force: bool = flag("Also those whose content was stored too short a time ago.")


@cluster_command("suspend", _SuspendOptions)
async def suspend_journals(connection: Connection, options: _SuspendOptions) -> None:
    """Suspend journals that receive no appends.

    An empty journal is suspended fully; any other can still be read. The next append resumes it. Without --force, only
    journals whose content has been in fragments for their flush interval (a day, if they have none) are suspended.

    \b
    Examples:
      shardctl journals suspend flights/part-000
      shardctl journals suspend -l 'name:prefix=old/' --force
    """
    async with connection.journals() as client:
        for name in await selected_names(client, options.journals, options.selector):
            suspended = await client.suspend(name, force=options.force)
            click.echo(f"{name} {'suspended' if suspended else 'in use'}")
