"""`shardctl shards rewind`: make a shard recover from a backup of its hints, or from its whole log."""

from __future__ import annotations

import click

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.names import ShardId
from broadsheet.cli.options import DryRun, command_options, flag, option
from broadsheet.cli.output.documents import Output, OutputFormat, print_message
from broadsheet.cli.output.messages import say
from broadsheet.cli.output.tables import print_table
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.recovery_pb2 import HintsSummary, Rewind


@command_options
class _RewindOptions:
    shard: ShardId
    backup: int | None = option(
        "Which backup of the hints to recover from; 0 is the newest.", type=click.IntRange(min=0)
    )
    whole_log: bool = flag(
        "Instead of --backup: drop all hints, and recover from the beginning of the log, if it is still "
        "there."
    )
    dry_run: DryRun
    force: bool = flag(
        "Also if the shard has a primary: all its replicas are taken away in the same transaction."
    )
    output: Output


@cluster_command("rewind", _RewindOptions)
async def rewind_shard(connection: Connection, options: _RewindOptions) -> None:
    """Make a shard recover from a backup of its hints, or from its whole log.

    For a shard whose primary hints are unusable. The backup and the primary hints change places, so the same command
    again undoes it. Hints that cannot be read are set aside; with --whole-log all are.

    \b
    Examples:
      shardctl shards hints flights-000              # what there is
      shardctl shards rewind flights-000 --backup 0 --dry-run
      shardctl shards rewind flights-000 --backup 0
      shardctl shards rewind flights-000 --whole-log # where no backup can be read
      shardctl shards unassign -l id=flights-000 --failed
    """
    shard, backup, dry_run = options.shard, options.backup, options.dry_run
    if options.whole_log == (backup is not None):
        raise ValidationError("--backup", "expected either --backup or --whole-log")
    async with connection.recovery() as client:
        ask = client.plan_rewind if dry_run else client.rewind
        done = await ask(shard, backup=backup, force=options.force)
    if options.output is not OutputFormat.TABLE:
        print_message(done, options.output)
    else:
        _print_rewind(done, backup)
    if dry_run:
        say(f"dry run: as of revision {done.revision}; nothing was changed")
    else:
        target = "the beginning of its log" if backup is None else f"backup {backup}"
        say(f"rewound shard {shard} to {target} at revision {done.revision}")
    _say_what_next(shard, done, dry_run=dry_run)


def _print_rewind(done: Rewind, backup: int | None) -> None:
    target = ["the whole log", "", "0", ""] if backup is None else None
    rows = [[*(target or [f"backup {backup}", *_summary(done.restored)]), "recovered from next"]]
    if done.HasField("replaced"):
        rows.append(["primary", *_summary(done.replaced), f"kept at {done.kept_at}"])
    rows += [["", "", "", "", f"set aside at {key}"] for key in done.set_aside]
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
            f"{', '.join(done.unassigned)} {verb} unassigned with it; the allocator assigns the shard again "
            "(shardctl shards list)"
        )
    elif done.failed:
        say(f"next: shardctl shards unassign -l id={shard} --failed")
    else:
        say("it is recovered from these hints when it is next assigned")
