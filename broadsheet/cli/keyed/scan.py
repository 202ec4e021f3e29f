"""`shardctl keyed scan`: keys that begin with some fields."""

from __future__ import annotations

from contextlib import aclosing

import click
from google.protobuf.struct_pb2 import Struct

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.keyed.reads import KeyedReadTerms, KeyFields, columns_of, print_rows, table_in
from broadsheet.cli.names import ShardId
from broadsheet.cli.options import command_options, option
from broadsheet.cli.output.documents import Output
from broadsheet.cli.output.messages import say
from broadsheet.wire.state_pb2 import ScannedState


@command_options
class _ScanOptions:
    shard: ShardId
    fields: KeyFields
    begins: str = option(
        "Only keys whose next field, which is text, begins so.", default="", metavar="TEXT"
    )
    limit: int = option("Keys at most; 0: all.", "-n", type=click.IntRange(min=0), default=100)
    read: KeyedReadTerms
    output: Output


@cluster_command("scan", _ScanOptions)
async def scan_keys(connection: Connection, options: _ScanOptions) -> None:
    """List the keys that begin with some fields, with their state.

    FIELDs are the leading fields of the keys; without any, all keys are listed. They come in no particular order. Each
    page of 1,000 is of one commit.

    \b
    Examples:
      shardctl keyed scan visits-000
      shardctl keyed scan carts-000 alice --columns item,count
      shardctl keyed scan visits-000 --begins al -n 0 -o json | jq .rows
    """
    terms = options.read.terms()
    rows, state, has_more = list[Struct](), ScannedState(), False
    size = min(options.limit, 1_000)
    async with connection.keyed() as client:
        described = await client.describe(options.shard)
        pages = client.scan(
            options.shard,
            options.fields,
            text_prefix=options.begins,
            page_size=size,
            options=terms,
        )
        async with aclosing(pages):
            async for page in pages:
                rows += page.rows
                state = page.state
                has_more = bool(page.cursor) or 0 < options.limit < len(rows)
                if 0 < options.limit <= len(rows):
                    break
    if options.limit:
        rows = rows[: options.limit]
    columns = columns_of(table_in(described, terms.table), terms.columns)
    print_rows(columns, rows, state, options.output)
    if has_more:
        say(f"there may be more than {len(rows)}: -n 0 lists all")
