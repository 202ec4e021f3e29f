"""`shardctl journals splits`: the divisions of journals that are under way."""

from __future__ import annotations

from collections.abc import Sequence

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.options import command_options, flag
from broadsheet.cli.output.documents import Output, print_list
from broadsheet.cli.output.operations import OperationLook, require_table, watch_operations
from broadsheet.wire.elastic_pb2 import ListJournalSplitsResponse
from broadsheet.wire.key_range import KeyRange

JOURNAL_SPLIT_COLUMNS = ["JOURNAL", "PARTS", "PHASE", "WAITS FOR"]


@command_options
class _ListOptions:
    output: Output
    watch: bool = flag("Then print each division that changes, until none is left.", "-w")


@cluster_command("splits", _ListOptions)
async def list_journal_splits(connection: Connection, options: _ListOptions) -> None:
    """Show the divisions of journals that are under way.

    `preparing`: the parts are made, and readers get them. `leaving`: publishers go on into the parts. `draining`: open
    transactions end. Then the journal is sealed, and the division is over. With --watch the command ends when no
    division is left.

    \b
    Examples:
      shardctl journals splits
      shardctl journals splits --watch
      shardctl journals splits -o json
    """
    require_table(options.output, watch=options.watch)
    async with connection.elastic() as client:
        found = await client.journal_splits()
        print_list(
            options.output, "splits", found, JOURNAL_SPLIT_COLUMNS, map(journal_split_cells, found)
        )
        if options.watch:

            async def look() -> OperationLook:
                return _look(await client.journal_splits())

            await watch_operations(_look(found), look)


def _look(found: Sequence[ListJournalSplitsResponse.JournalSplit]) -> OperationLook:
    return OperationLook({(0, each.journal, ""): journal_split_cells(each) for each in found})


def journal_split_cells(split: ListJournalSplitsResponse.JournalSplit) -> list[str]:
    """Return a division's cells below `JOURNAL_SPLIT_COLUMNS`."""
    parts = [f"{part.journal} {KeyRange(part.begin, part.end)}" for part in split.parts]
    return [split.journal, ", ".join(parts) or "?", split.phase or "?", split.reason]
