"""`shardctl shards moves`: the history of replicas, when each moved, why, and for whom; and what was decided."""

from __future__ import annotations

from datetime import UTC

import click

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.durations import instant_before
from broadsheet.cli.names import SHARD_ID, complete_shards
from broadsheet.cli.options import argument, command_options, option
from broadsheet.cli.output.documents import Output, OutputFormat, print_messages
from broadsheet.cli.output.messages import say
from broadsheet.cli.output.tables import print_table
from broadsheet.cli.shards.selection import shard_of
from broadsheet.consumer.registry.move_messages import move_name, move_reason
from broadsheet.wire.allocation_pb2 import ShardMove

MOVE_COLUMNS = ["TIME", "SHARD", "MOVE", "MEMBER", "SLOT", "REASON", "PLAN", "ACTOR"]


@command_options
class _MovesOptions:
    shard: str = argument(default="", type=SHARD_ID, shell_complete=complete_shards)
    member: str = option("Only this member's, zone#suffix.", default="", show_default=False)
    since: str = option("Only the last 90s, 2h, ...", default="", show_default=False)
    last: int = option(
        "Only so many of the newest; 0: all.", "-n", type=click.IntRange(min=0), default=100
    )
    output: Output


@cluster_command("moves", _MovesOptions)
async def list_moves(connection: Connection, options: _MovesOptions) -> None:
    """Show the moves of replicas: of SHARD, or of all.

    Oldest first, from the beginning of the move log. A replica that ended with its member's lease is not in it; what
    followed from that is. Decisions of the autoscaler are, with their rules and inputs: also those that were only
    observed, or refused.

    \b
    Examples:
      shardctl shards moves flights-000
      shardctl shards moves --member zone-a#member-0 --since 2h
      shardctl shards moves --last 0 -o json
    """
    since = instant_before(options.since, "--since") if options.since else None
    async with connection.allocation() as client:
        found = client.moves(shard_id=options.shard, member=options.member, since=since)
        moves = [move async for move in found]
    shown = moves[-options.last :] if options.last else moves
    if options.output is not OutputFormat.TABLE:
        print_messages("moves", shown, options.output)
        return
    if options.shard and not moves:
        # A shard that is deleted may have moved; one that never was is a name mistyped.
        async with connection.shards() as shards:
            await shard_of(shards, options.shard)
    print_table(MOVE_COLUMNS, [_move_row(move) for move in shown])
    if len(shown) < len(moves):
        say(f"{len(moves) - len(shown)} older ones are not shown: --last 0 shows all")


def _move_row(move: ShardMove) -> list[str]:
    slots = str(move.slot) if move.slot >= 0 else ""
    if move.from_slot >= 0 and move.from_slot != move.slot:
        slots = f"{move.from_slot} > {move.slot}"
    at = move.time.ToDatetime(UTC).isoformat(timespec="milliseconds")
    kind, reason = move_name(move), move_reason(move)
    return [at, move.shard, kind, move.member, slots, reason, move.plan_id, move.actor]
