"""`shardctl explain`: the reasons of a shard's placement, and what it waits for."""

from __future__ import annotations

from dataclasses import asdict
from datetime import UTC, datetime

import click

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.names import ShardId
from broadsheet.cli.options import command_options
from broadsheet.cli.output.documents import Output, OutputFormat, fields_of, print_fields
from broadsheet.cli.output.messages import counted
from broadsheet.cli.output.tables import print_table
from broadsheet.cli.plan import print_waits
from broadsheet.cli.shards.selection import shard_of
from broadsheet.cli.shards.troubles import print_troubles, troubles_of
from broadsheet.wire.allocation_pb2 import ExplainedReplica, ExplainResponse


@command_options
class _ExplainOptions:
    shard: ShardId
    output: Output


@cluster_command("explain", _ExplainOptions)
async def explain(connection: Connection, options: _ExplainOptions) -> None:
    """Explain a shard's placement, and what it waits for.

    A shard that failed, is stalled, held back or cut off from its broker: that comes first, with the cause, the line
    of the application's code, and what will happen next.

    \b
    Examples:
      shardctl explain flights-000
      shardctl explain flights-000 -o json
    """
    shard, is_table = options.shard, options.output is OutputFormat.TABLE
    async with connection.shards() as client:
        troubles = troubles_of(await shard_of(client, shard), datetime.now(UTC))
    if is_table:
        # Before the leader is asked, which may be what is not there.
        print_troubles(shard, troubles)
    async with connection.allocation() as allocation:
        explained = await allocation.explain(shard)
    if is_table:
        _print_explanation(shard, explained)
    else:
        fields = {"troubles": [asdict(each) for each in troubles], **fields_of(explained)}
        print_fields(fields, options.output)


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
    print_waits(explained.waits)
    for note in explained.notes:
        click.echo(f"note: {note}")
    if not explained.waits:
        click.echo("nothing waits")


def _behind(replica: ExplainedReplica) -> str:
    """Return a standby's backlog, and the time needed to play it."""
    if not replica.behind_bytes:
        return ""
    amount = f"{replica.behind_bytes / (1 << 20):.0f} MiB"
    return amount if replica.behind_seconds < 0 else f"{amount}, {replica.behind_seconds:.0f} s"
