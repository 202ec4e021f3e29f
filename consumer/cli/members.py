"""`shardctl members`: list members, cordon and uncordon them."""

from __future__ import annotations

from collections.abc import Sequence

import click

from broadsheet.consumer.cli.connection import Connection, connection_options, run_command
from broadsheet.consumer.cli.output import (
    OutputFormat,
    counted,
    format_option,
    print_messages,
    print_table,
    say,
)
from broadsheet.consumer.protocol.allocation_pb2 import ClusterMember

COLUMNS = ["MEMBER", "STATE", "REPLICAS", "PRIMARIES", "LIMIT", "LEADER", "ENDPOINT"]


@click.command("list")
@format_option(OutputFormat.TABLE, OutputFormat.YAML, OutputFormat.JSON)
@connection_options
def list_members(connection: Connection, output: str) -> None:
    """List each member, its replicas, and whether it accepts more.

    STATE is ready, cordoned or leaving.

    \b
    Examples:
      shardctl members list
      shardctl members list -o json
    """

    async def work() -> None:
        async with connection.allocation() as client:
            found = await client.members()
        if output != OutputFormat.TABLE.value:
            print_messages("members", found.members, OutputFormat(output))
            return
        print_table(COLUMNS, [_row(member) for member in found.members])

    run_command(work())


@click.command()
@click.argument("member", nargs=-1, required=True)
@connection_options
def cordon(connection: Connection, member: Sequence[str]) -> None:
    """Keep new shards from each MEMBER (zone#suffix). What it has stays.

    All of them are cordoned, or none. A cordon ends with the member's process.

    \b
    Examples:
      shardctl members cordon zone-a#member-0
    """
    run_command(_mark(connection, member, cordoned=True))


@click.command()
@click.argument("member", nargs=-1, required=True)
@connection_options
def uncordon(connection: Connection, member: Sequence[str]) -> None:
    """Let new shards come to each MEMBER (zone#suffix) again.

    \b
    Examples:
      shardctl members uncordon zone-a#member-0
    """
    run_command(_mark(connection, member, cordoned=False))


async def _mark(connection: Connection, member: Sequence[str], *, cordoned: bool) -> None:
    async with connection.allocation() as client:
        done = await client.cordon(member, cordoned=cordoned)
    word = "cordoned" if cordoned else "uncordoned"
    for each in done.changed:
        click.echo(f"{each} {word}")
    unchanged = len(member) - len(done.changed)
    if unchanged:
        say(f"{counted(unchanged, 'member')} unchanged: already {word}")


def _row(member: ClusterMember) -> list[str]:
    state = "leaving" if member.exiting else "cordoned" if member.cordoned else "ready"
    return [
        member.id,
        state,
        str(member.replicas),
        str(member.primaries),
        str(member.shard_limit),
        "yes" if member.leads else "",
        member.endpoint,
    ]
