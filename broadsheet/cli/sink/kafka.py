"""`shardctl sink kafka`: carry journals, or a topic, into a topic of Kafka."""

from __future__ import annotations

import click

from broadsheet.cli.command import cluster_command
from broadsheet.cli.connection import Connection
from broadsheet.cli.names import JournalNames
from broadsheet.cli.options import Selector, command_options, option
from broadsheet.cli.sink.sink_specs import (
    RELAY,
    TOPIC_RELAY,
    SinkOptions,
    apply_specs,
    journal_parts,
    parts_of_topic,
    settings_of,
    specs_of,
)
from broadsheet.consumer.relay import Sink, SinkKind
from broadsheet.runtime.errors import ValidationError


@command_options
class _KafkaOptions:
    journals: JournalNames
    selector: Selector
    topic: str = option("The topic that gets the records; it exists.", required=True)
    from_topic: str = option(
        "Read this topic in place of journals.", default="", show_default=False
    )
    parts: int = option(
        "Shards that share the topic that is read.", type=click.IntRange(1), default=1
    )
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
        from_topic=options.from_topic,
        key=options.key,
        settings=settings_of(options.common.settings),
    )
    _check(sink)
    if options.from_topic:
        if options.journals or options.selector:
            raise ValidationError("--from-topic", "expected either a topic or journals")
        parts, relay = parts_of_topic(options.parts), TOPIC_RELAY
    else:
        parts = await journal_parts(connection, options.journals, options.selector)
        relay = RELAY
    specs = specs_of(sink, parts, options.common)
    await apply_specs(connection, specs, options.common, relay=relay)


def _check(sink: Sink) -> None:
    """Refuse what each member would refuse."""
    from broadsheet.consumer.relay.kafka_outlet import check_settings

    check_settings(sink.settings)
