"""`shardctl journals prune`: remove fragments that are older than their journal's retention."""

from __future__ import annotations

from datetime import UTC, datetime
from itertools import takewhile

from rich.filesize import decimal

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.durations import format_duration
from broadsheet.cli.journals.selection import listed_journals
from broadsheet.cli.names import JournalNames
from broadsheet.cli.options import Selector, command_options, flag
from broadsheet.cli.output.tables import print_table
from broadsheet.journals.client import JournalClient
from broadsheet.wire import journal_pb2


@command_options
class _PruneOptions:
    journals: JournalNames
    selector: Selector
    dry_run: bool = flag("Print what would go; change nothing.")


@cluster_command("prune", _PruneOptions)
async def prune_journals(connection: Connection, options: _PruneOptions) -> None:
    """Remove fragments that are older than their journal's retention.

    A journal without a retention keeps everything, and the newest fragment always stays. Only this project's brokers
    remove fragments, from their store first, and with --retention they do so by themselves; for Gazette's, use gazctl
    journals prune.

    \b
    Examples:
      shardctl journals prune --dry-run
      shardctl journals prune -l 'name:prefix=flights/'
    """
    dry_run = options.dry_run
    async with connection.journals() as client:
        listed = (await listed_journals(client, options.journals, options.selector)).journals
        rows = [await _pruned(client, each.spec, dry_run=dry_run) for each in listed]
    removed = "WOULD GO" if dry_run else "REMOVED"
    print_table(["NAME", "RETENTION", "FRAGMENTS", removed, "BYTES"], rows)


async def _pruned(
    client: JournalClient, spec: journal_pb2.JournalSpec, *, dry_run: bool
) -> list[str]:
    retention = spec.fragment.retention.ToTimedelta()
    if not retention:
        return [spec.name, "<for ever>", "", "0", ""]
    fragments = [each.spec for each in await client.list_fragments(spec.name)]
    horizon = (datetime.now(UTC) - retention).timestamp()
    # From the beginning, so that no hole is left; those without a time are not stored yet.
    expired = list(takewhile(lambda each: 0 < each.mod_time <= horizon, fragments[:-1]))
    gone = expired if dry_run or not expired else await client.delete_fragments(spec.name, expired)
    return [
        spec.name,
        format_duration(spec.fragment.retention),
        str(len(fragments)),
        str(len(gone)),
        decimal(sum(each.end - each.begin for each in gone)),
    ]
