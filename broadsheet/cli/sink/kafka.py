"""`shardctl sink kafka`: carry journals, or a topic, into a topic of Kafka."""

from __future__ import annotations

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.options import command_options, option
from broadsheet.cli.sink.sink_specs import SinkOptions, SourceOptions, apply_sink, settings_of
from broadsheet.consumer.relay import Sink, SinkKind


@command_options
class _KafkaOptions:
    source: SourceOptions
    topic: str = option("The topic that gets the records; it exists.", required=True)
    key: str = option(
        "Field of JSON messages that is the record's key, such as user.id; without, all of a journal goes into one "
        "partition.",
        default="",
        show_default=False,
    )
    common: SinkOptions


@cluster_command("kafka", _KafkaOptions)
async def sink_kafka(connection: Connection, options: _KafkaOptions) -> None:
    """Carry journals, or a topic, into a topic of Kafka.

    Each journal gets a shard. Readers with isolation.level=read_committed see each record once, and records of one key
    in their order. Settings are librdkafka's, at least bootstrap.servers; a secret must be a file on each member.

    \b
    Examples:
      shardctl sink kafka orders/part-000 orders/part-001 --topic orders \\
          --key customer --set bootstrap.servers=broker:9092
      shardctl sink kafka -l app=orders --topic orders \\
          --set bootstrap.servers=broker:9093 --set security.protocol=SASL_SSL \\
          --set sasl.mechanism=SCRAM-SHA-512 --set sasl.username=relay \\
          --set sasl.password=@/etc/broadsheet/kafka-password
      shardctl sink kafka --from-topic raw --parts 4 --topic orders \\
          --set bootstrap.servers=broker:9092
    """
    sink = Sink(
        kind=SinkKind.KAFKA,
        to=options.topic,
        from_topic=options.source.from_topic,
        key=options.key,
        settings=settings_of(options.common.settings),
    )
    await apply_sink(connection, sink, options.source, options.common)
