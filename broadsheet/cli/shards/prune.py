"""`shardctl shards prune`: remove fragments that no recovery needs from recovery logs."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from rich.filesize import decimal

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.durations import parse_duration
from broadsheet.cli.options import command_options, flag, option
from broadsheet.cli.output.documents import Output, OutputFormat, print_messages
from broadsheet.cli.output.messages import counted, say
from broadsheet.cli.output.tables import print_table
from broadsheet.consumer.errors import PruneIncompleteError
from broadsheet.wire.recovery_pb2 import FragmentTally, PrunedLog


@command_options
class _PruneOptions:
    dry_run: bool = flag("Print what would go and what stays; change nothing.")
    delay: str = option(
        "Remove only what a prune found dead at least so long ago, or, where backups of hints stand for it, "
        "what is older by itself; 0s: at once.",
        default="24h",
        metavar="DURATION",
    )
    output: Output


@cluster_command("prune", _PruneOptions)
async def prune_shards(connection: Connection, options: _PruneOptions) -> None:
    """Remove fragments that no recovery needs from recovery logs.

    The hints of all shards of the cluster, backups too, say what is needed; there is nothing to select. What is in
    doubt stays. What a prune finds dead for the first time waits for --delay, so run it regularly; a dry run does not
    start the wait.

    \b
    Examples:
      shardctl shards prune --dry-run
      shardctl shards prune
      shardctl shards prune --delay 1h -o json
    """
    dry_run = options.dry_run
    delay_seconds = parse_duration(options.delay, "--delay").ToNanoseconds() / 1e9
    logs: list[PrunedLog] = []
    try:
        async with connection.recovery() as client:
            ask = client.plan_prune if dry_run else client.prune
            async for log in ask(delay_seconds=delay_seconds):
                logs.append(log)  # noqa: PERF401 - what came before an error counts
    finally:
        # Also after an interrupted prune: the fragments that it removed are gone.
        if options.output is not OutputFormat.TABLE:
            print_messages("logs", logs, options.output)
        else:
            _print_logs(logs, dry_run=dry_run)
        _sum_up(logs, dry_run=dry_run)
    _require_complete(logs)


def _print_logs(logs: Sequence[PrunedLog], *, dry_run: bool) -> None:
    print_table(
        [
            "LOG",
            "NEEDED",
            "UNPERSISTED",
            "QUARANTINED",
            "WOULD GO" if dry_run else "REMOVED",
            "NOTE",
        ],
        [
            [
                log.log,
                *(
                    "" if log.spared else _tally(tally)
                    for tally in (log.needed, log.unpersisted, log.quarantined, log.removed)
                ),
                _note(log),
            ]
            for log in logs
        ],
    )


def _note(log: PrunedLog) -> str:
    if log.spared:
        return f"left alone: {log.spared}"
    notes: list[str] = []
    if log.quarantined_until:
        until = datetime.fromtimestamp(log.quarantined_until, UTC)
        notes.append(f"the first quarantined may go {until:%Y-%m-%d %H:%M:%S}Z")
    if log.elsewhere.fragments:
        notes.append(f"{_tally(log.elsewhere)} dead in a store of the broker's: gazctl removes it")
    if log.failed.fragments:
        notes.append(f"not removed: {_tally(log.failed)}: {log.failure}")
    return "; ".join(notes)


def _sum_up(logs: Sequence[PrunedLog], *, dry_run: bool) -> None:
    removed = _sum([log.removed for log in logs])
    verb = "dry run: would remove" if dry_run else "removed"
    say(
        f"{verb} {counted(removed.fragments, 'fragment')}, {decimal(removed.bytes)}, "
        f"of {counted(len(logs), 'log')}"
    )


def _require_complete(logs: Sequence[PrunedLog]) -> None:
    failed = _sum([log.failed for log in logs])
    if failed.fragments:
        raise PruneIncompleteError(failed.fragments, failed.bytes)


def _sum(tallies: Sequence[FragmentTally]) -> FragmentTally:
    return FragmentTally(
        fragments=sum(tally.fragments for tally in tallies),
        bytes=sum(tally.bytes for tally in tallies),
    )


def _tally(tally: FragmentTally) -> str:
    return f"{tally.fragments} ({decimal(tally.bytes)})" if tally.fragments else "0"
