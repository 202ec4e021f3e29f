"""`shardctl shards splits`: the splits that are under way."""

from __future__ import annotations

from collections.abc import Sequence

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.options import command_options
from broadsheet.cli.output.tables import print_table
from broadsheet.wire.elastic_pb2 import ListSplitsResponse
from broadsheet.wire.key_range import KeyRange


@command_options
class _ListOptions:
    pass


@cluster_command("splits", _ListOptions)
async def list_splits(connection: Connection, options: _ListOptions) -> None:
    """Show the splits that are under way.

    `following`: the new shard plays the old one's log. `holding`: the old one rests. `purging`: both serve, and remove
    the rows of the other's keys.

    \b
    Example:
      shardctl shards splits
    """
    del options
    async with connection.elastic() as client:
        _print_splits(await client.splits())


def _print_splits(splits: Sequence[ListSplitsResponse.Split]) -> None:
    rows = [
        [
            each.child,
            each.parent,
            str(KeyRange(each.given_begin, each.given_end)) if each.given_end else "?",
            each.progress.phase,
            str(each.progress.to_do) if each.HasField("progress") else "?",
            each.reason,
        ]
        for each in splits
    ]
    print_table(["NEW SHARD", "OF", "KEYS", "PHASE", "LEFT", "DELAYED BECAUSE"], rows)
