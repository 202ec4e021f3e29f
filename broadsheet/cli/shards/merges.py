"""`shardctl shards merges`: the merges that are under way."""

from __future__ import annotations

from collections.abc import Sequence

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.options import command_options
from broadsheet.cli.output.documents import Output, OutputFormat, print_messages
from broadsheet.cli.output.tables import print_table
from broadsheet.wire.elastic_pb2 import ListMergesResponse
from broadsheet.wire.key_range import KeyRange


@command_options
class _MergesOptions:
    output: Output


@cluster_command("merges", _MergesOptions)
async def list_merges(connection: Connection, options: _MergesOptions) -> None:
    """Show the merges that are under way.

    `copying`: the survivor takes the other shard's rows in, and both serve. `holding`: both rest, and the survivor
    commits. A merge that is over is not listed.

    \b
    Examples:
      shardctl shards merges
      shardctl shards merges -o json
    """
    async with connection.elastic() as client:
        merges = await client.merges()
    if options.output is not OutputFormat.TABLE:
        print_messages("merges", merges, options.output)
        return
    _print_merges(merges)


def _print_merges(merges: Sequence[ListMergesResponse.Merge]) -> None:
    rows = [
        [
            each.survivor,
            each.absorbed,
            str(KeyRange(each.given_begin, each.given_end)) if each.given_end else "?",
            each.progress.phase,
            str(each.progress.done),
            "?" if each.progress.to_do < 0 else str(each.progress.to_do),
            "?" if each.progress.eta_s < 0 else f"{each.progress.eta_s:.0f} s",
            each.reason,
        ]
        for each in merges
    ]
    print_table(
        ["SHARD", "TAKES IN", "KEYS", "PHASE", "ROWS", "LEFT", "ETA", "DELAYED BECAUSE"], rows
    )
