"""`shardctl members progress`: the drains and moves that are under way."""

from __future__ import annotations

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.options import command_options, flag
from broadsheet.cli.output.documents import Output, print_list
from broadsheet.cli.output.messages import say
from broadsheet.cli.output.operations import (
    OPERATION_COLUMNS,
    OperationKey,
    OperationLook,
    operation_cells,
    require_table,
    watch_operations,
)
from broadsheet.wire.allocation_pb2 import ListOperationsResponse
from broadsheet.wire.progress_pb2 import Progress, ProgressKind


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
    require_table(options.output, watch=options.watch)
    async with connection.allocation() as client:
        found = await client.operations()
        _say_limits(found)
        rows = map(operation_cells, found.operations)
        print_list(options.output, "operations", found.operations, OPERATION_COLUMNS, rows)
        if options.watch:

            async def look() -> OperationLook:
                return _look(await client.operations())

            await watch_operations(_look(found), look)


def _say_limits(found: ListOperationsResponse) -> None:
    if found.moves_unknown:
        say("the leader has no plan yet, so its moves are not known")
    listed = sum(each.kind == ProgressKind.PROGRESS_KIND_MOVE for each in found.operations)
    if listed < found.moves:
        say(f"{listed} of {found.moves} moves, the most urgent ones")


def _look(found: ListOperationsResponse) -> OperationLook:
    rows = {_key(each): operation_cells(each) for each in found.operations}
    return OperationLook(rows, is_all=not found.moves_unknown)


def _key(operation: Progress) -> OperationKey:
    return operation.kind, operation.subject, operation.member
