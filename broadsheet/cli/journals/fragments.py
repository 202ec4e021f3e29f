"""`shardctl journals fragments`: the fragments of a journal."""

from __future__ import annotations

from datetime import UTC, datetime

from rich.filesize import decimal

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.durations import instant_before
from broadsheet.cli.names import JournalName
from broadsheet.cli.options import command_options, flag, option
from broadsheet.cli.output.documents import Output, print_list
from broadsheet.wire import journal_pb2

SIGNED_SECONDS = 3600.0
"""Life of the URLs of fragments."""


@command_options
class _FragmentsOptions:
    journal: JournalName
    since: str = option(
        "Only those stored in the last 90s, 2h, ...", default="", show_default=False
    )
    signed_urls: bool = flag(
        "Also the URLs to fetch stored fragments with, for an hour; brokers of Gazette have them."
    )
    output: Output


@cluster_command("fragments", _FragmentsOptions)
async def list_fragments(connection: Connection, options: _FragmentsOptions) -> None:
    """List the fragments of a journal.

    \b
    Examples:
      shardctl journals fragments flights/part-000
      shardctl journals fragments flights/part-000 --since 24h -o json
    """
    signed_urls = options.signed_urls
    since = instant_before(options.since, "--since").timestamp() if options.since else 0
    async with connection.journals() as client:
        found = await client.list_fragments(
            options.journal,
            begin_mod_time=int(since),
            signature_ttl_seconds=SIGNED_SECONDS if signed_urls else 0.0,
        )
    columns = ["BEGIN", "END", "BYTES", "CODEC", "STORED", "STORE"]
    columns += ["URL"] if signed_urls else []
    rows = [_fragment_row(each, signed_urls=signed_urls) for each in found]
    print_list(options.output, "fragments", found, columns, rows)


def _fragment_row(
    listed: journal_pb2.FragmentsResponse.ListedFragment, *, signed_urls: bool
) -> list[str]:
    spec = listed.spec
    stored = (
        datetime.fromtimestamp(spec.mod_time, UTC).isoformat() if spec.mod_time else "<not yet>"
    )
    row = [
        str(spec.begin),
        str(spec.end),
        decimal(spec.end - spec.begin),
        journal_pb2.CompressionCodec.Name(spec.compression_codec),
        stored,
        spec.backing_store or "<broker>",
    ]
    return [*row, listed.signed_url] if signed_urls else row
