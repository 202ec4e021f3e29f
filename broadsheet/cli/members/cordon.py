"""`shardctl members cordon` and `uncordon`: keep new shards from members, or let them come again."""

from __future__ import annotations

from collections.abc import Sequence

import click

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.names import MemberIds
from broadsheet.cli.options import command_options
from broadsheet.cli.output.messages import counted, say
from broadsheet.cli.plan import require_members


@command_options
class _CordonOptions:
    members: MemberIds


@cluster_command("cordon", _CordonOptions)
async def cordon(connection: Connection, options: _CordonOptions) -> None:
    """Keep new shards from each MEMBER (zone#suffix). What it has stays.

    All of them are cordoned, or none. A cordon ends with the member's process.

    \b
    Examples:
      shardctl members cordon zone-a#member-0
    """
    await _mark(connection, options.members, cordoned=True)


@cluster_command("uncordon", _CordonOptions)
async def uncordon(connection: Connection, options: _CordonOptions) -> None:
    """Let new shards come to each MEMBER (zone#suffix) again.

    \b
    Examples:
      shardctl members uncordon zone-a#member-0
    """
    await _mark(connection, options.members, cordoned=False)


async def _mark(connection: Connection, member: Sequence[str], *, cordoned: bool) -> None:
    async with connection.allocation() as client:
        await require_members(client, member)
        done = await client.cordon(member, cordoned=cordoned)
    word = "cordoned" if cordoned else "uncordoned"
    for each in done.changed:
        click.echo(f"{each} {word}")
    unchanged = len(member) - len(done.changed)
    if unchanged:
        say(f"{counted(unchanged, 'member')} unchanged: already {word}")
