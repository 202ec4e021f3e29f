"""`shardctl members drain`: let members hand their shards over and leave."""

from __future__ import annotations

import asyncio
import time
from contextlib import suppress

import click

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.names import MemberIds
from broadsheet.cli.numbers import Seconds
from broadsheet.cli.options import Yes, command_options, flag, option
from broadsheet.cli.output.messages import confirm, counted, say
from broadsheet.cli.output.operations import time_left
from broadsheet.cli.plan import print_plan, require_members
from broadsheet.consumer.client import AllocationClient
from broadsheet.consumer.errors import PlanNotAppliedError
from broadsheet.runtime.errors import EndpointError
from broadsheet.wire.allocation_pb2 import ClusterMember

PLANS_MAX = 5
"""Plans that are made of one drain, each because the cluster changed after the one before."""
LOOK_SECONDS = 0.2
"""Pause between two looks at who is there."""


@command_options
class _DrainOptions:
    members: MemberIds
    dry_run: bool = flag("Print the plan; change nothing.")
    yes: Yes
    timeout: float = option(
        "How long to wait until they have left; 0: do not wait.",
        type=Seconds(min=0),
        default=300.0,
        metavar="SECONDS",
    )


@cluster_command("drain", _DrainOptions)
async def drain(connection: Connection, options: _DrainOptions) -> None:
    """Let each MEMBER (zone#suffix) hand its shards over and leave.

    The plan is shown, and refused if the cluster changed in between; with --yes, another is made. A drained member
    ends its process once it holds nothing: what supervises it should not start it again. Ends with status 4 if a member
    is still there when the time is over; it goes on leaving. Meanwhile stderr says how many shards are left and how
    long they take (`?`: not known yet).

    \b
    Examples:
      shardctl members drain zone-a#member-0 --dry-run
      shardctl members drain zone-a#member-0 --yes --timeout 600
    """
    async with connection.allocation() as client:
        await require_members(client, options.members)
        if not await _drained(client, options):
            return
        for each in options.members:
            click.echo(f"{each} draining")
        if options.timeout:
            await _until_gone(client, {*options.members}, options.timeout)


async def _drained(client: AllocationClient, options: _DrainOptions) -> bool:
    """Show the plan of a drain and carry it out; return whether the members leave now.

    Raises:
        PlanNotAppliedError: the cluster changed in between, again and again with --yes.
    """
    for attempt in range(PLANS_MAX):
        made = await client.plan(drain=options.members)
        print_plan(made)
        if options.dry_run:
            return False
        confirm(f"Drain {', '.join(options.members)}?", yes=options.yes)
        try:
            await client.apply_plan(made.plan_id)
        except PlanNotAppliedError as error:
            # They leave all the same, if only the leader's plan is another one.
            is_leaving = await _are_leaving(client, {*options.members})
            if not is_leaving and (not options.yes or attempt == PLANS_MAX - 1):
                raise
            say(str(error))
            if not is_leaving:
                continue
        return True
    raise AssertionError("the last attempt returns or raises")


def _say_left(member: ClusterMember, said: dict[str, int]) -> None:
    """Say how far a member's drain is, if that changed; `said` is what was left at the last time, by member."""
    drain = member.drain
    if said.get(member.id) != drain.to_do:
        said[member.id] = drain.to_do
        say(f"{member.id}: {counted(drain.to_do, 'shard')} left, {time_left(drain)}")


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
    said: dict[str, int] = {}
    while leaving:
        # The member that was asked may be the one that leaves.
        with suppress(EndpointError):
            found = (await client.members()).members
            held = {each.id: each.replicas for each in found if each.id in leaving}
            for gone in sorted(leaving - held.keys()):
                click.echo(f"{gone} left")
            leaving = leaving & held.keys()
            for each in found:
                if each.id in leaving and each.HasField("drain"):
                    _say_left(each, said)
        if leaving and time.monotonic() >= deadline:
            left = ", ".join(
                f"{each} ({counted(held.get(each, 0), 'replica')})" for each in sorted(leaving)
            )
            raise TimeoutError(f"not within {timeout_seconds:g} s: {left} still there")
        if leaving:
            await asyncio.sleep(LOOK_SECONDS)
