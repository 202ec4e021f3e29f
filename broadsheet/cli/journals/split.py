"""`shardctl journals split`: divide the keys of a journal among new ones, while it is written and read."""

from __future__ import annotations

import click

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.names import JournalName
from broadsheet.cli.options import UTF8, DryRun, command_options, option
from broadsheet.cli.output.documents import Output, OutputFormat, print_messages
from broadsheet.cli.output.messages import say
from broadsheet.cli.output.tables import print_table
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.key_range import GROUPS, KeyRange, group_of


@command_options
class _SplitOptions:
    journal: JournalName
    at: str | None = option(
        "Give the second part this key and those of all groups behind its group.", type=UTF8
    )
    at_group: int | None = option(
        f"First group of keys that the second part gets, 1 to {GROUPS - 1}; default: the middle.",
        type=click.IntRange(1, GROUPS - 1),
    )
    dry_run: DryRun
    output: Output


@cluster_command("split", _SplitOptions)
async def split_journal(connection: Connection, options: _SplitOptions) -> None:
    """Divide the keys of a journal among two new ones, while it is written and read.

    Publishers go on into the new ones, its parts; shards that read the journal read the parts behind its seal, so each
    key keeps its order. All publishers must look whether a journal is divided: say so by the label
    broadsheet.dev/publishers=checked. A division that has begun cannot be taken back.

    \b
    Examples:
      shardctl journals label clicks/000 broadsheet.dev/publishers=checked
      shardctl journals split clicks/000 --dry-run   # what would come of it
      shardctl journals split clicks/000             # in the middle of its keys
      shardctl journals split clicks/000 --at alice
    """
    if options.at is not None and options.at_group is not None:
        raise ValidationError("--at-group", "expected none beside --at")
    at_group = options.at_group if options.at is None else group_of(options.at.encode())
    async with connection.elastic() as client:
        plan = await client.split_journal(
            options.journal, at_group=at_group, dry_run=options.dry_run
        )
    if options.output is not OutputFormat.TABLE:
        print_messages("splits", [plan], options.output)
        return
    rows = [
        [part.journal, str(KeyRange(part.begin, part.end)), str(part.end - part.begin)]
        for part in plan.parts
    ]
    print_table(["PART", "KEYS", "GROUPS"], rows)
    say(f"read by {', '.join(plan.readers) or 'no shard'}")
    if options.dry_run:
        say("dry run: nothing was changed")
    else:
        say("it is sealed soon: shardctl journals splits")
