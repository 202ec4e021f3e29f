"""`shardctl shards prune` and `shardctl shards rewind`: maintenance of recovery logs and their hints."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

import click
from rich.filesize import decimal

from broadsheet.consumer.cli.connection import Connection, connection_options, run_command
from broadsheet.consumer.cli.durations import parse_duration
from broadsheet.consumer.cli.output import (
    OutputFormat,
    counted,
    format_option,
    print_message,
    print_messages,
    print_table,
    say,
)
from broadsheet.consumer.errors import PruneIncompleteError
from broadsheet.consumer.protocol.recovery_pb2 import FragmentTally, HintsSummary, PrunedLog, Rewind


@click.command("prune")
@click.option("--dry-run", is_flag=True, help="Print what would go and what stays; change nothing.")
@click.option(
    "--delay",
    default="24h",
    show_default=True,
    metavar="DURATION",
    help="Remove only what a prune found dead at least so long ago, or, where backups of hints stand for it, what is "
    "older by itself; 0s: at once.",
)
@format_option(OutputFormat.TABLE, OutputFormat.YAML, OutputFormat.JSON)
@connection_options
def prune_shards(connection: Connection, dry_run: bool, delay: str, output: str) -> None:
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

    async def work() -> None:
        delay_seconds = parse_duration(delay, "--delay").ToNanoseconds() / 1e9
        logs: list[PrunedLog] = []
        try:
            async with connection.recovery() as client:
                ask = client.plan_prune if dry_run else client.prune
                async for log in ask(delay_seconds=delay_seconds):
                    logs.append(log)  # noqa: PERF401 - what came before an error counts
        finally:
            # Also after an interrupted prune: the fragments that it removed are gone.
            if output != OutputFormat.TABLE.value:
                print_messages("logs", logs, OutputFormat(output))
            else:
                _print_logs(logs, dry_run=dry_run)
            _sum_up(logs, dry_run=dry_run)
        _require_complete(logs)

    run_command(work())


@click.command("rewind")
@click.argument("shard")
@click.option(
    "--backup",
    type=click.IntRange(min=0),
    required=True,
    help="Which backup of the hints to recover from; 0 is the newest.",
)
@click.option("--dry-run", is_flag=True, help="Print what would be done; change nothing.")
@click.option(
    "--force",
    is_flag=True,
    help="Also if the shard has a primary: all its replicas are taken away in the same transaction.",
)
@format_option(OutputFormat.TABLE, OutputFormat.YAML, OutputFormat.JSON)
@connection_options
def rewind_shard(
    connection: Connection, shard: str, backup: int, dry_run: bool, force: bool, output: str
) -> None:
    """Make a shard recover from a backup of its hints.

    For a shard whose primary hints are unusable. The backup and the primary hints change places, so the same command
    again undoes it. Hints that cannot be read are set aside.

    \b
    Examples:
      shardctl shards hints flights-000              # what there is
      shardctl shards rewind flights-000 --backup 0 --dry-run
      shardctl shards rewind flights-000 --backup 0
      shardctl shards unassign -l id=flights-000 --failed
    """

    async def work() -> None:
        async with connection.recovery() as client:
            ask = client.plan_rewind if dry_run else client.rewind
            done = await ask(shard, backup=backup, force=force)
        if output != OutputFormat.TABLE.value:
            print_message(done, OutputFormat(output))
        else:
            _print_rewind(done, backup)
        if dry_run:
            say(f"dry run: as of revision {done.revision}; nothing was changed")
        else:
            say(f"rewound shard {shard} to backup {backup} at revision {done.revision}")
        _say_what_next(shard, done, dry_run=dry_run)

    run_command(work())


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


def _print_rewind(done: Rewind, backup: int) -> None:
    rows = [[f"backup {backup}", *_summary(done.restored), "recovered from next"]]
    if done.HasField("replaced"):
        rows.append(["primary", *_summary(done.replaced), f"kept at {done.kept_at}"])
    rows += [["", "", "", "", f"unreadable: set aside at {key}"] for key in done.set_aside]
    print_table(["HINTS", "FILES", "FROM OFFSET", "TO SEQUENCE", "WHAT BECOMES OF THEM"], rows)


def _summary(hints: HintsSummary) -> list[str]:
    if hints.unreadable:
        return ["?", "?", f"? ({hints.unreadable})"]
    return [str(hints.files), str(hints.first_offset), str(hints.last_seq_no)]


def _say_what_next(shard: str, done: Rewind, *, dry_run: bool) -> None:
    if done.standbys:
        say(
            f"{', '.join(done.standbys)} stands by with what it has played: if it takes over, no hints are read; "
            "--force takes standbys away, too"
        )
    if done.unassigned:
        verb = "would be" if dry_run else "were"
        say(
            f"{', '.join(done.unassigned)} {verb} unassigned with it; the allocator assigns the shard anew "
            "(shardctl shards list)"
        )
    elif done.failed:
        say(f"next: shardctl shards unassign -l id={shard} --failed")
    else:
        say("it is recovered from these hints when it is next assigned")
