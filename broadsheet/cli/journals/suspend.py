"""`shardctl journals suspend`: suspend journals without appends."""

from __future__ import annotations

import click

from broadsheet.cli.command import Selector, cluster_command, command_options, flag
from broadsheet.cli.connection import Connection
from broadsheet.cli.journals.selection import selected_names
from broadsheet.cli.names import JournalNames


@command_options
class SuspendOptions:
    """Options of `suspend`."""

    journals: JournalNames
    selector: Selector
    force: bool = flag("Also those whose content was stored too short a time ago.")


@cluster_command("suspend", SuspendOptions)
async def suspend_journals(connection: Connection, options: SuspendOptions) -> None:
    """Suspend journals that nobody appends to.

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
