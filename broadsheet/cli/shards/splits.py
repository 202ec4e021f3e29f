"""`shardctl shards splits`: the splits that are under way, and how long they take."""

from __future__ import annotations

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.options import command_options, flag
from broadsheet.cli.output.documents import Output
from broadsheet.cli.output.operations import (
    OperationKey,
    amount_text,
    require_table,
    show_operations,
    time_left,
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
        await show_operations(
            options.output, "splits", SPLIT_COLUMNS, client.splits, _row, watch=options.watch
        )


def _row(split: ListSplitsResponse.Split) -> tuple[OperationKey, list[str]]:
    return (split.progress.kind, split.child, split.parent), split_cells(split)


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
