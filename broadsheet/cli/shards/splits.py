"""`shardctl shards splits`: the splits that are under way, and how long they take."""

from __future__ import annotations

from collections.abc import Sequence

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.options import command_options, flag
from broadsheet.cli.output.documents import Output, print_list
from broadsheet.cli.output.operations import (
    OperationKey,
    OperationLook,
    amount_text,
    require_table,
    time_left,
    watch_operations,
)
from broadsheet.wire.elastic_pb2 import ListSplitsResponse
from broadsheet.wire.key_range import KeyRange

SPLIT_COLUMNS = ["NEW SHARD", "OF", "KEYS", "PHASE", "DONE", "LEFT", "TIME LEFT", "DELAYED BECAUSE"]


@command_options
class _ListOptions:
    output: Output
    watch: bool = flag("Then print each split that changes, until none is left.", "-w")


@cluster_command("splits", _ListOptions)
async def list_splits(connection: Connection, options: _ListOptions) -> None:
    """Show the splits that are under way.

    `following`: the new shard plays the old one's log. `holding`: the old one rests. `purging`: both serve, and remove
    the rows of the other's keys, by groups. `?` is not known. With --watch the command ends when no split is left.

    \b
    Examples:
      shardctl shards splits
      shardctl shards splits --watch
      shardctl shards splits -o json
    """
    require_table(options.output, watch=options.watch)
    async with connection.elastic() as client:
        found = await client.splits()
        print_list(options.output, "splits", found, SPLIT_COLUMNS, map(split_cells, found))
        if options.watch:

            async def look() -> OperationLook:
                return _look(await client.splits())

            await watch_operations(_look(found), look)


def _look(found: Sequence[ListSplitsResponse.Split]) -> OperationLook:
    return OperationLook({_key(each): split_cells(each) for each in found})


def _key(split: ListSplitsResponse.Split) -> OperationKey:
    return split.progress.kind, split.child, split.parent


def split_cells(split: ListSplitsResponse.Split) -> list[str]:
    """Return a split's cells below `SPLIT_COLUMNS`."""
    is_known, progress = split.HasField("progress"), split.progress
    return [
        split.child,
        split.parent,
        str(KeyRange(split.given_begin, split.given_end)) if split.given_end else "?",
        progress.phase,
        amount_text(progress.done, progress.unit) if is_known else "?",
        amount_text(progress.to_do, progress.unit) if is_known else "?",
        time_left(progress) if is_known else "?",
        split.reason,
    ]
