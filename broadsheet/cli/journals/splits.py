"""`shardctl journals splits`: the divisions of journals that are under way."""

from __future__ import annotations

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.options import command_options, flag
from broadsheet.cli.output.documents import Output
from broadsheet.cli.output.operations import OperationKey, require_table, show_operations
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
    transactions end. `sealed`: shards read the journal to its seal, and then its parts; once all have committed that,
    it is taken out of their sources, and the division is over. With --watch the command ends when no division is left.

    \b
    Examples:
      shardctl journals splits
      shardctl journals splits --watch
      shardctl journals splits -o json
    """
    require_table(options.output, watch=options.watch)
    async with connection.elastic() as client:
        await show_operations(
            options.output,
            "splits",
            JOURNAL_SPLIT_COLUMNS,
            client.journal_splits,
            _row,
            watch=options.watch,
        )


def _row(split: ListJournalSplitsResponse.JournalSplit) -> tuple[OperationKey, list[str]]:
    return (0, split.journal, ""), journal_split_cells(split)


def journal_split_cells(split: ListJournalSplitsResponse.JournalSplit) -> list[str]:
    """Return a division's cells below `JOURNAL_SPLIT_COLUMNS`."""
    parts = [f"{part.journal} {KeyRange(part.begin, part.end)}" for part in split.parts]
    return [split.journal, ", ".join(parts) or "?", split.phase or "?", split.reason]
