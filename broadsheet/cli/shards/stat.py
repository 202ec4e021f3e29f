"""`shardctl shards stat`: the progress of a shard, as its primary reports it."""

from __future__ import annotations

from collections.abc import Sequence

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.names import ShardId
from broadsheet.cli.numbers import Seconds
from broadsheet.cli.options import command_options, option
from broadsheet.cli.output.documents import Output, OutputFormat, print_message
from broadsheet.cli.output.tables import print_table
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.shard_pb2 import StatResponse

PROGRESS_COLUMNS = ["JOURNAL", "PROGRESS", "OFFSET"]


@command_options
class _StatOptions:
    shard: ShardId
    read_through: tuple[str, ...] = option(
        "Wait until the shard has read this far; may be repeated.",
        multiple=True,
        metavar="JOURNAL=OFFSET",
    )
    timeout: float = option(
        "Seconds to wait for that.", type=Seconds(min=0, min_open=True), default=10.0
    )
    output: Output


@cluster_command("stat", _StatOptions)
async def stat_shard(connection: Connection, options: _StatOptions) -> None:
    """Show the progress of a shard, as its primary reports it.

    \b
    Examples:
      shardctl shards stat flights-000
      shardctl shards stat flights-000 --timeout 60 \\
          --read-through flights/departures/part-000=1048576
    """
    shard, timeout = options.shard, options.timeout
    async with connection.shards() as client:
        offsets = _offsets(options.read_through)
        if offsets:
            # Also during a hand-over, or after the death of the primary: the caller waits for
            # the shard, not for a process.
            answer = await client.wait_read_through(shard, offsets, timeout_seconds=timeout)
        else:
            answer = await client.stat(shard, timeout_seconds=timeout)
    if options.output is not OutputFormat.TABLE:
        print_message(answer, options.output)
        return
    print_table(PROGRESS_COLUMNS, progress_cells(answer))


def progress_cells(answer: StatResponse) -> list[list[str]]:
    """Return a row below `PROGRESS_COLUMNS` for each offset of an answer."""
    told = (("read through", answer.read_through), ("published at", answer.publish_at))
    return [
        [journal, progress, str(offset)]
        for progress, offsets_told in told
        for journal, offset in sorted(offsets_told.items())
    ]


def _offsets(texts: Sequence[str]) -> dict[str, int]:
    offsets = {}
    for text in texts:
        journal, separator, offset = text.rpartition("=")
        if not separator or not offset.isdecimal():
            raise ValidationError("--read-through", f"expected JOURNAL=OFFSET, got {text!r}")
        offsets[journal] = int(offset)
    return offsets
