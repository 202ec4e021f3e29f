"""`shardctl shards splits`: the splits that are under way, and how long they take."""

from __future__ import annotations

import asyncio

import click

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.options import command_options, flag
from broadsheet.cli.output.documents import Output, OutputFormat, print_list
from broadsheet.cli.output.operations import OperationKey, amount_text, changed_lines, time_left
from broadsheet.consumer.client import ElasticClient
from broadsheet.runtime.errors import EndpointError
from broadsheet.wire.elastic_pb2 import ListSplitsResponse
from broadsheet.wire.key_range import KeyRange

SPLIT_COLUMNS = ["NEW SHARD", "OF", "KEYS", "PHASE", "DONE", "LEFT", "TIME LEFT", "DELAYED BECAUSE"]
LOOK_SECONDS = 1.0
"""Pause between two looks of --watch."""
FAILED_LOOKS_MAX = 30
"""Looks in succession that may reach no member."""


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
    if options.watch and options.output is not OutputFormat.TABLE:
        raise click.UsageError("--watch prints rows: expected -o table with it")
    async with connection.elastic() as client:
        found = await client.splits()
        print_list(options.output, "splits", found, SPLIT_COLUMNS, map(split_cells, found))
        if options.watch:
            await _watch(client, {_key(each): split_cells(each) for each in found})


async def _watch(client: ElasticClient, shown: dict[OperationKey, list[str]]) -> None:
    failed = 0
    while shown:
        await asyncio.sleep(LOOK_SECONDS)
        try:
            found = await client.splits()
        except EndpointError:
            # The member that was asked may have left.
            failed += 1
            if failed == FAILED_LOOKS_MAX:
                raise
            continue
        failed = 0
        now = {_key(each): split_cells(each) for each in found}
        for line in changed_lines(shown, now):
            click.echo(line)
        shown = now


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
