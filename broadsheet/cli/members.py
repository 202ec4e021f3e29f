"""`shardctl members`: list members, cordon, uncordon and drain them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress

import click

from broadsheet.cli.command import run_command
from broadsheet.cli.completion import complete_members
from broadsheet.cli.connection import Connection, connection_options
from broadsheet.cli.output.documents import OutputFormat, format_option, print_messages
from broadsheet.cli.output.messages import confirm, counted, say
from broadsheet.cli.output.tables import print_table
from broadsheet.cli.plan import print_plan, require_members
from broadsheet.consumer.client import AllocationClient
from broadsheet.consumer.errors import PlanNotAppliedError
from broadsheet.runtime.errors import EndpointError
from broadsheet.wire.allocation_pb2 import ClusterMember

PLANS_MAX = 5
"""Plans that are made of one drain, each because the cluster changed after the one before."""
LOOK_SECONDS = 0.2
"""Pause between two looks at who is there."""
COLUMNS = ["MEMBER", "STATE", "REPLICAS", "PRIMARIES", "LIMIT", "LEADER", "ENDPOINT"]


@click.command("list")
@format_option(OutputFormat.TABLE, OutputFormat.YAML, OutputFormat.JSON)
@connection_options
def list_members(connection: Connection, output: OutputFormat) -> None:
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
        if output is not OutputFormat.TABLE:
            print_messages("members", found.members, output)
            return
        print_table(COLUMNS, [_row(member) for member in found.members])

    run_command(work())


@click.command()
@click.argument("member", nargs=-1, required=True, shell_complete=complete_members)
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
@click.argument("member", nargs=-1, required=True, shell_complete=complete_members)
@connection_options
def uncordon(connection: Connection, member: Sequence[str]) -> None:
    """Let new shards come to each MEMBER (zone#suffix) again.

    \b
    Examples:
      shardctl members uncordon zone-a#member-0
    """
    run_command(_mark(connection, member, cordoned=False))


@click.command()
@click.argument("member", nargs=-1, required=True, shell_complete=complete_members)
@click.option("--dry-run", is_flag=True, help="Print the plan; change nothing.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    default=300.0,
    metavar="SECONDS",
    help="How long to wait until they have left; 0: do not wait.",
)
@connection_options
def drain(
    connection: Connection, member: Sequence[str], dry_run: bool, yes: bool, timeout: float
) -> None:
    """Let each MEMBER (zone#suffix) hand its shards over and leave.

    The plan is shown, and refused if the cluster changed in between; with --yes, another is made. A drained member
    ends its process once it holds nothing: what supervises it should not start it again. Ends with status 4 if a member
    is still there when the time is over; it goes on leaving.

    \b
    Examples:
      shardctl members drain zone-a#member-0 --dry-run
      shardctl members drain zone-a#member-0 --yes --timeout 600
    """

    async def work() -> None:
        async with connection.allocation() as client:
            await require_members(client, member)
            if not await _drained(client, member, dry_run=dry_run, yes=yes):
                return
            for each in member:
                click.echo(f"{each} draining")
            if timeout:
                await _until_gone(client, {*member}, timeout)

    run_command(work())


async def _drained(
    client: AllocationClient, member: Sequence[str], *, dry_run: bool, yes: bool
) -> bool:
    """Show the plan of a drain and carry it out; return whether the members leave now.

    Raises:
        PlanNotAppliedError: the cluster changed in between, again and again if nobody has to look at the plan.
    """
    for attempt in range(PLANS_MAX):
        made = await client.plan(drain=member)
        print_plan(made)
        if dry_run:
            return False
        confirm(f"Drain {', '.join(member)}?", yes=yes)
        try:
            await client.apply_plan(made.plan_id)
        except PlanNotAppliedError as error:
            # They leave all the same, if only the leader's plan is another one.
            is_leaving = await _are_leaving(client, {*member})
            if not is_leaving and (not yes or attempt == PLANS_MAX - 1):
                raise
            say(str(error))
            if not is_leaving:
                continue
        return True
    raise AssertionError("the last attempt returns or raises")


async def _are_leaving(client: AllocationClient, asked: set[str]) -> bool:
    found = (await client.members()).members
    return all(each.exiting for each in found if each.id in asked)


async def _until_gone(client: AllocationClient, leaving: set[str], timeout_seconds: float) -> None:
    """Wait until members are no longer there, and say when each is not.

    Raises:
        TimeoutError: one still is.
    """
    deadline = time.monotonic() + timeout_seconds
    held: dict[str, int] = {}
    while leaving:
        # The member that was asked may be the one that leaves.
        with suppress(EndpointError):
            found = (await client.members()).members
            held = {each.id: each.replicas for each in found if each.id in leaving}
            for gone in sorted(leaving - held.keys()):
                click.echo(f"{gone} left")
            leaving = leaving & held.keys()
        if leaving and time.monotonic() >= deadline:
            left = ", ".join(
                f"{each} ({counted(held.get(each, 0), 'replica')})" for each in sorted(leaving)
            )
            raise TimeoutError(f"not within {timeout_seconds:g} s: {left} still there")
        if leaving:
            await asyncio.sleep(LOOK_SECONDS)


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
