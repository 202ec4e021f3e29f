"""`shardctl shards moves`: the history of replicas: when each moved, why, and for whom."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import click

from broadsheet.consumer.cli.connection import Connection, connection_options, run_command
from broadsheet.consumer.cli.durations import parse_duration
from broadsheet.consumer.cli.output import (
    OutputFormat,
    format_option,
    print_messages,
    print_table,
    say,
)
from broadsheet.consumer.move_messages import KIND_NAMES
from broadsheet.consumer.protocol.allocation_pb2 import ShardMove

COLUMNS = ["TIME", "SHARD", "MOVE", "MEMBER", "SLOT", "REASON", "PLAN", "ACTOR"]


@click.command("moves")
@click.argument("shard", default="")
@click.option("--member", default="", show_default=False, help="Only this member's, zone#suffix.")
@click.option("--since", default="", show_default=False, help="Only the last 90s, 2h, ...")
@click.option(
    "-n",
    "--last",
    type=click.IntRange(min=0),
    default=100,
    help="Only so many of the newest; 0: all.",
)
@format_option(OutputFormat.TABLE, OutputFormat.YAML, OutputFormat.JSON)
@connection_options
def list_moves(
    connection: Connection, shard: str, member: str, since: str, last: int, output: str
) -> None:
    """Show the moves of replicas: of SHARD, or of all.

    Oldest first, from the beginning of the move log. A replica that ended with its member's lease is not in it; what
    followed from that is.

    \b
    Examples:
      shardctl shards moves flights-000
      shardctl shards moves --member zone-a#member-0 --since 2h
      shardctl shards moves --last 0 -o json
    """

    async def work() -> None:
        async with connection.allocation() as client:
            moves = [
                move
                async for move in client.moves(
                    shard_id=shard, member=member, since=_beginning(since)
                )
            ]
        shown = moves[-last:] if last else moves
        if output != OutputFormat.TABLE.value:
            print_messages("moves", shown, OutputFormat(output))
            return
        print_table(COLUMNS, [_row(move) for move in shown])
        if len(shown) < len(moves):
            say(f"{len(moves) - len(shown)} older ones are not shown: --last 0 shows all")

    run_command(work())


def _beginning(since: str) -> datetime | None:
    if not since:
        return None
    duration = parse_duration(since, "--since")
    return datetime.now(UTC) - timedelta(seconds=duration.ToTimedelta().total_seconds())


def _row(move: ShardMove) -> list[str]:
    slots = str(move.slot)
    if move.from_slot >= 0 and move.from_slot != move.slot:
        slots = f"{move.from_slot} > {move.slot}"
    at = move.time.ToDatetime(UTC).isoformat(timespec="milliseconds")
    kind = KIND_NAMES.get(move.kind, str(move.kind))
    return [at, move.shard, kind, move.member, slots, move.reason, move.plan_id, move.actor]
