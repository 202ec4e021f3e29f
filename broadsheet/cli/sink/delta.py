"""`shardctl sink delta`: carry journals, or a topic, into a Delta table."""

from __future__ import annotations

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.options import command_options, option
from broadsheet.cli.sink.sink_specs import SinkOptions, SourceOptions, apply_sink, settings_of
from broadsheet.consumer.relay import Sink, SinkKind


@command_options
class _DeltaOptions:
    source: SourceOptions
    table: str = option(
        "The address of the table, such as s3://lake/orders; made if there is none.", required=True
    )
    common: SinkOptions


@cluster_command("delta", _DeltaOptions)
async def sink_delta(connection: Connection, options: _DeltaOptions) -> None:
    """Carry journals, or a topic, into a Delta table.

    Each journal gets a shard. A commit of the table is a transaction of the shard: its rows are there once, with the
    journal and the offset of each. Columns that the table lacks are added to it. Settings are those of delta-rs for
    its storage; a secret must be a file on each member. Each commit makes files: let transactions last
    10 seconds or longer.

    \b
    Examples:
      shardctl sink delta orders/part-000 --table s3://lake/orders \\
          --min-txn 10s --max-txn 30s --set AWS_REGION=eu-central-1
    """
    sink = Sink(
        kind=SinkKind.DELTA,
        to=options.table,
        from_topic=options.source.from_topic,
        settings=settings_of(options.common.settings),
    )
    await apply_sink(connection, sink, options.source, options.common)
