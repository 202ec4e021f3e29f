"""`shardctl plan` and `shardctl explain`: the moves of a change, and the reasons of a placement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import click

from broadsheet.cli.command import run_command
from broadsheet.cli.completion import complete_shards
from broadsheet.cli.connection import Connection, connection_options
from broadsheet.cli.errors import NothingSelectedError
from broadsheet.cli.output.documents import (
    OutputFormat,
    fields_of,
    format_option,
    print_fields,
    print_message,
)
from broadsheet.cli.output.messages import counted, say
from broadsheet.cli.output.tables import print_table
from broadsheet.cli.shards.selection import shard_of
from broadsheet.cli.shards.space import read_shard_changes
from broadsheet.cli.shards.troubles import print_troubles, troubles_of
from broadsheet.cli.specs.files import read_text
from broadsheet.consumer.client import AllocationClient
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.allocation_pb2 import (
    ChangeKind,
    ExplainedReplica,
    ExplainResponse,
    NewMembers,
    PlanResponse,
    WaitingChange,
    WaitReason,
)

MEMBERS_NAMED_MAX = 5
"""Members that are there, in the error about one that is not; the rest are counted."""
NUMBER_MAX = 2**32 - 1
"""What the protocol can say; the leader accepts less, and says so."""


@click.command("plan")
@click.option(
    "-f",
    "--specs",
    type=click.Path(path_type=Path, allow_dash=True, dir_okay=False),
    help="YAML file of shard specs to apply; - reads standard input.",
)
@click.option(
    "--drain", multiple=True, metavar="ZONE#SUFFIX", help="A member that leaves; may be repeated."
)
@click.option(
    "--add",
    multiple=True,
    metavar="ZONE:N[:LIMIT]",
    help="N members that join; may be repeated. Such a plan cannot be applied.",
)
@click.option("--apply", "plan_id", metavar="ID", help="Carry out the plan of this id instead.")
@format_option(OutputFormat.TABLE, OutputFormat.YAML, OutputFormat.JSON)
@connection_options
def plan(
    connection: Connection,
    specs: Path | None,
    drain: tuple[str, ...],
    add: tuple[str, ...],
    plan_id: str | None,
    output: OutputFormat,
) -> None:
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

    async def work() -> None:
        async with connection.allocation() as client:
            if plan_id is not None:
                if specs is not None or drain or add:
                    raise ValidationError("--apply", "expected no other change beside it")
                applied = await client.apply_plan(plan_id)
                say(f"plan {plan_id} is in force" + _at(applied.revision))
                return
            changes = () if specs is None else read_shard_changes(*read_text(specs))
            await require_members(client, drain)
            made = await client.plan(
                changes=changes, drain=drain, add=[parse_new_members(text) for text in add]
            )
            if output is not OutputFormat.TABLE:
                print_message(made, output)
            else:
                print_plan(made)

    run_command(work())


@click.command("explain")
@click.argument("shard", shell_complete=complete_shards)
@format_option(OutputFormat.TABLE, OutputFormat.YAML, OutputFormat.JSON)
@connection_options
def explain(connection: Connection, shard: str, output: OutputFormat) -> None:
    """Explain a shard's placement, and what it waits for.

    A shard that failed, is stalled, held back or cut off from its broker: that comes first, with the cause, the line
    of the application's code, and what will happen next.

    \b
    Examples:
      shardctl explain flights-000
      shardctl explain flights-000 -o json
    """

    async def work() -> None:
        async with connection.shards() as client:
            troubles = troubles_of(await shard_of(client, shard), datetime.now(UTC))
        if output is OutputFormat.TABLE:
            # Before the leader is asked, which may be what is not there.
            print_troubles(shard, troubles)
        async with connection.allocation() as client:
            explained = await client.explain(shard)
        if output is not OutputFormat.TABLE:
            fields = {"troubles": [asdict(each) for each in troubles], **fields_of(explained)}
            print_fields(fields, output)
        else:
            _print_explanation(shard, explained)

    run_command(work())


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
        rows = [
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
        print_table(["ROUND", "CHANGE", "SHARD", "MEMBER", "FROM"], rows)
        click.echo()
    print_table(
        ["MEMBER", "LIMIT", "REPLICAS", "PRIMARIES"],
        [
            [
                change.member,
                str(change.limit),
                _before_after(change.replicas_before, change.replicas_after),
                _before_after(change.primaries_before, change.primaries_after),
            ]
            for change in made.members
        ],
    )
    _print_waits(made.waits)
    moves = sum(change.kind == ChangeKind.CHANGE_KIND_ADD for change in made.changes)
    say(f"plan {made.plan_id} at revision {made.revision}: {counted(moves, 'move')}{_gap(made)}")
    if made.can_be_applied:
        say(f"nothing was changed; to carry it out: shardctl plan --apply {made.plan_id}")
    else:
        say("nothing was changed; it cannot be applied, for it supposes members that are not there")


def _behind(replica: ExplainedReplica) -> str:
    """Return a standby's backlog, and the time needed to play it."""
    if not replica.behind_bytes:
        return ""
    amount = f"{replica.behind_bytes / (1 << 20):.0f} MiB"
    return amount if replica.behind_seconds < 0 else f"{amount}, {replica.behind_seconds:.0f} s"


def _print_explanation(shard: str, explained: ExplainResponse) -> None:
    print_table(
        ["SLOT", "MEMBER", "CAUGHT UP", "BEHIND", "WANTED", "WHY"],
        [
            [
                str(replica.slot),
                replica.member,
                "yes" if replica.consistent else "no",
                _behind(replica),
                "yes" if replica.desired else "no",
                replica.why,
            ]
            for replica in explained.replicas
        ],
    )
    click.echo()
    primary = explained.planned_primary
    wanted = [
        f"{member} (primary)" if member == primary else member for member in explained.desired
    ]
    where = ", ".join(wanted) or "nowhere"
    click.echo(f"{shard} wants {counted(explained.replication, 'replica')}, planned on: {where}")
    _print_waits(explained.waits)
    for note in explained.notes:
        click.echo(f"note: {note}")
    if not explained.waits:
        click.echo("nothing waits")


def _print_waits(waits: Sequence[WaitingChange]) -> None:
    if not waits:
        return
    click.echo()
    print_table(
        ["WAITS", "FOR", "MEMBER", "DETAIL"],
        [
            [
                wait.shard,
                _name(WaitReason.Name(wait.reason), "WAIT_REASON_")
                + (" (for ever)" if wait.for_ever else ""),
                wait.member,
                wait.detail,
            ]
            for wait in waits
        ],
    )


def _before_after(before: int, after: int) -> str:
    return str(after) if before == after else f"{before} -> {after}"


def _name(value: str, prefix: str) -> str:
    return value.removeprefix(prefix).lower().replace("_", "-")
