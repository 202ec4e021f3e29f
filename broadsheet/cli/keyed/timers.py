"""`shardctl keyed timers`: the next timers of a shard, or of one key."""

from __future__ import annotations

from contextlib import aclosing
from datetime import UTC, datetime

import click
from google.protobuf.struct_pb2 import Struct

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.keyed.reads import KeyFields, offsets_of, print_rows, table_in
from broadsheet.cli.names import ShardId
from broadsheet.cli.options import command_options, option
from broadsheet.cli.output.documents import Output
from broadsheet.consumer.client import KeyedReadOptions
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.state_pb2 import ScannedState


@command_options
class _TimersOptions:
    shard: ShardId
    fields: KeyFields
    first: str = option(
        "Only timers that are due then or later: Unix milliseconds, or an ISO 8601 time.",
        "--from",
        default="",
        metavar="TIME",
    )
    last: str = option(
        "Only timers that are due then or earlier.", "--until", default="", metavar="TIME"
    )
    limit: int = option("Timers at most; 0: all.", "-n", type=click.IntRange(min=0), default=100)
    table: str = option("Table of the shard's state; its only one if absent.", default="")
    read_through: tuple[str, ...] = option(
        "Wait until the shard has read this far; may be repeated.",
        multiple=True,
        metavar="JOURNAL=OFFSET",
    )
    output: Output


@cluster_command("timers", _TimersOptions)
async def list_timers(connection: Connection, options: _TimersOptions) -> None:
    """List the next timers of a shard, or of one key.

    Of a stream, what its operators close next: the ends of windows and sessions. FIELDs are the fields of a key.

    \b
    Examples:
      shardctl keyed timers visits-000
      shardctl keyed timers visits-000 alice
      shardctl keyed timers visits-000 --until 2030-01-31T12:00:00+00:00 -o json
    """
    terms = KeyedReadOptions(table=options.table, read_through=offsets_of(options.read_through))
    rows, state = list[Struct](), ScannedState()
    async with connection.keyed() as client:
        described = await client.describe(options.shard)
        pages = client.timers(
            options.shard,
            options.fields or None,
            from_ms=_time("--from", options.first),
            until_ms=_time("--until", options.last),
            page_size=min(options.limit, 1_000),
            options=terms,
        )
        async with aclosing(pages):
            async for page in pages:
                rows += page.rows
                state = page.state
                if 0 < options.limit <= len(rows):
                    break
    if options.limit:
        rows = rows[: options.limit]
    table = table_in(described, options.table)
    key = [] if table is None else [each.name for each in table.key]
    watermark = described.watermark_ms
    print_rows(["due_ms", *key], rows, state, options.output, watermark_ms=watermark)


def _time(name: str, text: str) -> int | None:
    if not text:
        return None
    if text.removeprefix("-").isdecimal():
        return int(text)
    try:
        time = datetime.fromisoformat(text)
    except ValueError as error:
        raise ValidationError(
            name, f"expected Unix milliseconds or an ISO 8601 time, got {text!r}"
        ) from error
    aware = time if time.tzinfo is not None else time.replace(tzinfo=UTC)
    return int(aware.timestamp() * 1000)
