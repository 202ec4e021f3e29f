"""`shardctl shards merges`: the merges that are under way, and how long they take."""

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
from broadsheet.wire.elastic_pb2 import ListMergesResponse
from broadsheet.wire.key_range import KeyRange

MERGE_COLUMNS = [
    "SHARD",
    "TAKES IN",
    "KEYS",
    "PHASE",
    "DONE",
    "LEFT",
    "TIME LEFT",
    "DELAYED BECAUSE",
]


@command_options
class _MergesOptions:
    output: Output
    watch: bool = flag("Then print each merge that changes, until none is left.", "-w")


@cluster_command("merges", _MergesOptions)
async def list_merges(connection: Connection, options: _MergesOptions) -> None:
    """Show the merges that are under way.

    `copying`: the survivor takes the other shard's rows in, and both serve. `holding`: both rest, and the survivor
    commits. `?` is not known. A merge that is over is not listed; with --watch the command ends when none is left.

    \b
    Examples:
      shardctl shards merges
      shardctl shards merges --watch
      shardctl shards merges -o json
    """
    require_table(options.output, watch=options.watch)
    async with connection.elastic() as client:
        await show_operations(
            options.output, "merges", MERGE_COLUMNS, client.merges, _row, watch=options.watch
        )


def _row(merge: ListMergesResponse.Merge) -> tuple[OperationKey, list[str]]:
    return (merge.progress.kind, merge.survivor, merge.absorbed), merge_cells(merge)


def merge_cells(merge: ListMergesResponse.Merge) -> list[str]:
    """Return a merge's cells below `MERGE_COLUMNS`."""
    is_known, progress = merge.HasField("progress"), merge.progress
    return [
        merge.survivor,
        merge.absorbed or "?",
        str(KeyRange(merge.given_begin, merge.given_end)) if merge.given_end else "?",
        progress.phase or "?",
        amount_text(progress.done, progress.unit) if is_known else "?",
        amount_text(progress.to_do, progress.unit) if is_known else "?",
        time_left(progress) if is_known else "?",
        merge.reason,
    ]
