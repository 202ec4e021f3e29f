"""`shardctl members progress`: the drains and moves that are under way."""

from __future__ import annotations

import asyncio

import click

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.options import command_options, flag
from broadsheet.cli.output.documents import Output, OutputFormat, print_list
from broadsheet.cli.output.messages import say
from broadsheet.cli.output.operations import OPERATION_COLUMNS, changed_lines, operation_cells
from broadsheet.consumer.client import AllocationClient
from broadsheet.runtime.errors import EndpointError
from broadsheet.wire.allocation_pb2 import ListOperationsResponse
from broadsheet.wire.progress_pb2 import Progress, ProgressKind

LOOK_SECONDS = 1.0
"""Pause between two looks of --watch."""
FAILED_LOOKS_MAX = 30
"""Looks in succession that may reach no member."""


@command_options
class _ProgressOptions:
    output: Output
    watch: bool = flag("Then print each operation that changes, until none is left.", "-w")


@cluster_command("progress", _ProgressOptions)
async def progress(connection: Connection, options: _ProgressOptions) -> None:
    """Show the drains and moves of shards that are under way.

    A drain counts shards, a move the bytes of the log that its new replica has still to play. `?` is not known: nothing
    was handed over or played yet, or nothing is at present. With --watch the command ends when nothing moves any more.

    \b
    Examples:
      shardctl members progress
      shardctl members progress --watch
      shardctl members progress -o json
    """
    if options.watch and options.output is not OutputFormat.TABLE:
        raise click.UsageError("--watch prints rows: expected -o table with it")
    async with connection.allocation() as client:
        found = await client.operations()
        _say_limits(found)
        rows = map(operation_cells, found.operations)
        print_list(options.output, "operations", found.operations, OPERATION_COLUMNS, rows)
        if options.watch:
            await _watch(client, found)


def _say_limits(found: ListOperationsResponse) -> None:
    if found.moves_unknown:
        say("the leader has no plan yet, so its moves are not known")
    listed = sum(each.kind == ProgressKind.PROGRESS_KIND_MOVE for each in found.operations)
    if listed < found.moves:
        say(f"{listed} of {found.moves} moves, the most urgent ones")


async def _watch(client: AllocationClient, found: ListOperationsResponse) -> None:
    shown = {_key(each): operation_cells(each) for each in found.operations}
    failed = 0
    while shown or found.moves_unknown:
        await asyncio.sleep(LOOK_SECONDS)
        try:
            found = await client.operations()
        except EndpointError:
            # The member that was asked, or the leader, may be the one that leaves.
            failed += 1
            if failed == FAILED_LOOKS_MAX:
                raise
            continue
        failed = 0
        now = {_key(each): operation_cells(each) for each in found.operations}
        for line in changed_lines(shown, now):
            click.echo(line)
        shown = now


def _key(operation: Progress) -> tuple[int, str, str]:
    return operation.kind, operation.subject, operation.member
