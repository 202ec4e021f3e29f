"""`shardctl plan`: the moves that a change would make."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.errors import NothingSelectedError
from broadsheet.cli.options import command_options, option
from broadsheet.cli.output.documents import Output, OutputFormat, print_message
from broadsheet.cli.output.messages import counted, say
from broadsheet.cli.output.tables import print_table
from broadsheet.cli.shards.space import read_shard_changes
from broadsheet.cli.text_files import read_text
from broadsheet.consumer.client import AllocationClient
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.allocation_pb2 import (
    ChangeKind,
    NewMembers,
    PlanResponse,
    WaitingChange,
    WaitReason,
)

MEMBERS_NAMED_MAX = 5
"""Members that are there, in the error about one that is not; the rest are counted."""
CHANGE_COLUMNS = ["ROUND", "CHANGE", "SHARD", "MEMBER", "FROM"]
LOAD_COLUMNS = ["MEMBER", "LIMIT", "REPLICAS", "PRIMARIES"]
WAIT_COLUMNS = ["WAITS", "FOR", "MEMBER", "DETAIL"]
NUMBER_MAX = 2**32 - 1
"""What the protocol can say; the leader accepts less, and says so."""


@command_options
class _PlanOptions:
    specs: Path | None = option(
        "YAML file of shard specs to apply; - reads standard input.",
        "-f",
        type=click.Path(path_type=Path, allow_dash=True, dir_okay=False),
    )
    drain: tuple[str, ...] = option(
        "A member that leaves; may be repeated.", multiple=True, metavar="ZONE#SUFFIX"
    )
    add: tuple[str, ...] = option(
        "N members that join; may be repeated. Such a plan cannot be applied.",
        multiple=True,
        metavar="ZONE:N[:LIMIT]",
    )
    plan_id: str | None = option("Carry out the plan of this id instead.", "--apply", metavar="ID")
    output: Output


@cluster_command("plan", _PlanOptions)
async def plan(connection: Connection, options: _PlanOptions) -> None:
    """Print what a change would move, without changing anything.

    Without options: what the cluster still has to do. A plan that is applied is carried out exactly as printed, or
    refused if the cluster is not as it was.

    \b
    Examples:
      shardctl plan --drain zone-a#executor-3
      shardctl plan -f shards.yaml -o json
      shardctl plan --add zone-b:2
      shardctl plan --apply 3f9a0c1b2d4e5f60
    """
    async with connection.allocation() as client:
        if options.plan_id is not None:
            if options.specs is not None or options.drain or options.add:
                raise ValidationError("--apply", "expected no other change beside it")
            applied = await client.apply_plan(options.plan_id)
            say(f"plan {options.plan_id} is in force" + _at(applied.revision))
            return
        changes = () if options.specs is None else read_shard_changes(*read_text(options.specs))
        await require_members(client, options.drain)
        made = await client.plan(
            changes=changes,
            drain=options.drain,
            add=[parse_new_members(text) for text in options.add],
        )
    if options.output is not OutputFormat.TABLE:
        print_message(made, options.output)
    else:
        print_plan(made)


async def require_members(client: AllocationClient, names: Sequence[str]) -> None:
    """Check that members are there, as `shardctl members list` names them.

    Raises:
        NothingSelectedError: one is not.
    """
    if not names:
        return
    present = [each.id for each in (await client.members()).members]
    if missing := sorted({*names} - {*present}):
        there = ", ".join(present[:MEMBERS_NAMED_MAX]) or "none"
        left = len(present) - MEMBERS_NAMED_MAX
        problem = f"there is no member {', '.join(missing)}; there are {there}"
        raise NothingSelectedError("MEMBER", problem + (f" and {left} more" if left > 0 else ""))


def parse_new_members(text: str) -> NewMembers:
    """Return the members that `ZONE:N` or `ZONE:N:LIMIT` denotes.

    Raises:
        ValidationError: it is not of that form.
    """
    zone, *numbers = text.split(":")
    if not zone or len(numbers) not in (1, 2) or not all(n.isdecimal() for n in numbers):
        raise ValidationError("--add", f"expected ZONE:N or ZONE:N:LIMIT, got {text!r}")
    count, limit = int(numbers[0]), int(numbers[1]) if len(numbers) > 1 else 0
    if max(count, limit) > NUMBER_MAX:
        raise ValidationError("--add", f"expected numbers up to {NUMBER_MAX}, got {text!r}")
    return NewMembers(zone=zone, count=count, limit=limit)


def _gap(made: PlanResponse) -> str:
    """Return the distance to the best balance, where the plan is not proven optimal."""
    if made.gap <= 0.0:
        return ""
    return f"; the fullest member is at most {made.gap:.2%} above what is proven unavoidable"


def _at(revision: int) -> str:
    return f"; its changes were made at revision {revision}" if revision else ""


def print_plan(made: PlanResponse) -> None:
    """Print a plan's changes, what each member holds before and after, and how to carry it out."""
    if made.changes:
        print_table(CHANGE_COLUMNS, change_cells(made))
        click.echo()
    print_table(LOAD_COLUMNS, load_cells(made))
    print_waits(made.waits)
    say(plan_summary(made))
    if made.can_be_applied:
        say(f"nothing was changed; to carry it out: shardctl plan --apply {made.plan_id}")
    else:
        say("nothing was changed; it cannot be applied, for it supposes members that are not there")


def plan_summary(made: PlanResponse) -> str:
    """Return a plan's id, revision and number of moves."""
    moves = sum(change.kind == ChangeKind.CHANGE_KIND_ADD for change in made.changes)
    return f"plan {made.plan_id} at revision {made.revision}: {counted(moves, 'move')}{_gap(made)}"


def change_cells(made: PlanResponse) -> list[list[str]]:
    """Return a row below `CHANGE_COLUMNS` for each change."""
    return [
        [
            str(change.round),
            _name(ChangeKind.Name(change.kind), "CHANGE_KIND_")
            + (" (cold)" if change.cold else ""),
            change.shard,
            change.member,
            change.from_member,
        ]
        for change in made.changes
    ]


def load_cells(made: PlanResponse) -> list[list[str]]:
    """Return a row below `LOAD_COLUMNS` for each member, before and after the plan."""
    return [
        [
            change.member,
            str(change.limit),
            _before_after(change.replicas_before, change.replicas_after),
            _before_after(change.primaries_before, change.primaries_after),
        ]
        for change in made.members
    ]


def print_waits(waits: Sequence[WaitingChange]) -> None:
    """Print the changes that wait, and for what; nothing if none does."""
    if not waits:
        return
    click.echo()
    print_table(WAIT_COLUMNS, wait_cells(waits))


def wait_cells(waits: Sequence[WaitingChange]) -> list[list[str]]:
    """Return a row below `WAIT_COLUMNS` for each change that waits."""
    return [
        [
            wait.shard,
            _name(WaitReason.Name(wait.reason), "WAIT_REASON_")
            + (" (for ever)" if wait.for_ever else ""),
            wait.member,
            wait.detail,
        ]
        for wait in waits
    ]


def _before_after(before: int, after: int) -> str:
    return str(after) if before == after else f"{before} -> {after}"


def _name(value: str, prefix: str) -> str:
    return value.removeprefix(prefix).lower().replace("_", "-")
