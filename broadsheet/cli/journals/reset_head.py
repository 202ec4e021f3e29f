"""`shardctl journals reset-head`: accept that the end of journals was lost."""

from __future__ import annotations

import click

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.journals.selection import selected_names
from broadsheet.cli.names import JournalNames
from broadsheet.cli.options import SelectorInPlace, command_options
from broadsheet.journals.errors import WrongAppendOffsetError


@command_options
class _ResetHeadOptions:
    journals: JournalNames
    selector: SelectorInPlace


@cluster_command("reset-head", _ResetHeadOptions)
async def reset_head(connection: Connection, options: _ResetHeadOptions) -> None:
    """Accept that the end of journals was lost.

    For journals whose appends are refused because of "a fragment index beyond its write head": they continue at the
    end of the index, and the lost bytes become a hole, which readers skip. Journals that lost nothing are left alone.

    \b
    Examples:
      shardctl journals reset-head flights/part-000
      shardctl journals reset-head -l 'name:prefix=flights/'
    """
    async with connection.journals() as client:
        for name in await selected_names(client, options.journals, options.selector):
            try:
                head = await client.reset_head(name)
            except WrongAppendOffsetError:
                click.echo(f"{name} in use: it needs no reset")
            else:
                click.echo(f"{name} continues at {head}")
