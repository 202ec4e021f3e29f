"""`shardctl sink iceberg`: carry journals, or a topic, into an Iceberg table."""

from __future__ import annotations

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.options import command_options, option
from broadsheet.cli.sink.sink_specs import SinkOptions, SourceOptions, apply_sink, settings_of
from broadsheet.consumer.relay import Sink, SinkKind


@command_options
class _IcebergOptions:
    source: SourceOptions
    table: str = option(
        "Its name with its namespace, such as lake.orders; made if there is none.", required=True
    )
    common: SinkOptions


@cluster_command("iceberg", _IcebergOptions)
async def sink_iceberg(connection: Connection, options: _IcebergOptions) -> None:
    """Carry journals, or a topic, into an Iceberg table.

    Each journal gets a shard. A commit of the table is a transaction of the shard: its rows are there once, with the
    journal and the offset of each. Columns that the table lacks are added to it. Settings are those of
    pyiceberg's catalog; a secret must be a file on each member. Each commit makes files: let transactions last 10
    seconds or longer.

    \b
    Examples:
      shardctl sink iceberg orders/part-000 --table lake.orders \\
          --min-txn 10s --max-txn 30s --set uri=https://catalog:8181 \\
          --set credential=@/etc/broadsheet/catalog
    """
    sink = Sink(
        kind=SinkKind.ICEBERG,
        to=options.table,
        from_topic=options.source.from_topic,
        settings=settings_of(options.common.settings),
    )
    await apply_sink(connection, sink, options.source, options.common)
