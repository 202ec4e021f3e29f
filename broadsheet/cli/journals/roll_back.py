"""`shardctl journals roll-back`: end a transaction whose program is dead."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.names import JournalName
from broadsheet.cli.options import DryRun, command_options, option
from broadsheet.cli.output.documents import Output, OutputFormat, print_message
from broadsheet.cli.output.messages import say
from broadsheet.cli.output.tables import print_table
from broadsheet.runtime.errors import ValidationError

_PRODUCER: Final = re.compile(r"[0-9A-Fa-f]{12}")


@command_options
class _RollBackOptions:
    journal: JournalName
    producer: str = option(
        "Who published it: 12 hexadecimal digits, as `shardctl journals splits` tells.",
        required=True,
        metavar="HEX",
    )
    dry_run: DryRun
    output: Output


@cluster_command("roll-back", _RollBackOptions)
async def roll_back_transaction(connection: Connection, options: _RollBackOptions) -> None:
    """Roll back a transaction that a dead program left open.

    Readers of the journal drop its messages, for whose end a division of the journal waits. Refused if the producer is
    a shard's, which does this itself, or published within the last minute. A program that is alive nevertheless gets an
    error at its next append of the transaction, also at its commit. Journals need the label
    broadsheet.dev/publishers=checked.

    \b
    Examples:
      shardctl journals splits                                   # names it
      shardctl journals roll-back clicks/000 --producer 0b5e71c2a9d4 --dry-run
      shardctl journals roll-back clicks/000 --producer 0b5e71c2a9d4
    """
    # Not what `int` takes besides: signs, spaces, `0x`, and more digits than a producer has.
    if not _PRODUCER.fullmatch(options.producer):
        raise ValidationError(
            "--producer", f"expected 12 hexadecimal digits, got {options.producer!r}"
        )
    producer = int(options.producer, 16)
    async with connection.elastic() as client:
        found = await client.roll_back_transaction(
            options.journal, producer, dry_run=options.dry_run
        )
    if options.output is not OutputFormat.TABLE:
        print_message(found, options.output)
    else:
        row = [f"{producer:012x}", str(found.begin)]
        times = found.began_unix_seconds, found.latest_unix_seconds
        row += [datetime.fromtimestamp(each, UTC).isoformat("T", "seconds") for each in times]
        print_table(["PRODUCER", "SINCE OFFSET", "FIRST MESSAGE", "LAST MESSAGE"], [row])
    if options.dry_run:
        say("dry run: nothing was changed")
    else:
        say(f"rolled back by {options.journal} [.., {found.end}): readers drop its messages")
