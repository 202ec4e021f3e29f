"""`shardctl kafka assume`: say whether Kafka has a shard's last records, where it has forgotten."""

from __future__ import annotations

import asyncio
from typing import Final

import click

from broadsheet.cli.command import async_command
from broadsheet.cli.options import argument, command_options, option
from broadsheet.cli.output.messages import say
from broadsheet.cli.sink.sink_specs import settings_of
from broadsheet.consumer.stores.kafka.settings import CHECKPOINTS_TOPIC
from broadsheet.runtime.libraries import needing

PRODUCED: Final = "produced"


@command_options
class _AssumeOptions:
    shard: str = argument(metavar="GROUP")
    what: str = argument(
        type=click.Choice([PRODUCED, "not-produced"]), metavar="produced|not-produced"
    )
    number: int = option(
        "The transaction in doubt, as the shard's error names it.",
        required=True,
        type=click.IntRange(2),
    )
    settings: tuple[str, ...] = option(
        "A setting NAME=VALUE of Kafka's client, at least bootstrap.servers; NAME=@/PATH reads a file. May be "
        "repeated.",
        "--set",
        multiple=True,
        required=True,
    )
    checkpoints_topic: str = option(
        "The topic whose committed offsets say what was sent.", default=CHECKPOINTS_TOPIC
    )


@async_command("assume", _AssumeOptions)
async def assume_sent(options: _AssumeOptions) -> None:
    """Say whether Kafka has the last records of a shard, where Kafka has forgotten.

    Kafka forgets committed offsets of a group after offsets.retention.minutes. A shard that sends straight into Kafka
    then does not know whether its last records are there, and fails with an error that names GROUP and the number of
    the transaction. Look for the records, then say what you found: produced, and they are not sent again;
    not-produced, and they are. The shard goes on within half a minute.

    \b
    Examples:
      shardctl kafka assume /broadsheet/orders/totals-000 produced --number 4711 \\
          --set bootstrap.servers=broker:9092
    """
    with needing("shardctl kafka", extra="kafka"):
        from broadsheet.consumer.direct.assumption import assume

    marker = await asyncio.to_thread(
        assume,
        settings_of(options.settings),
        options.shard,
        number=options.number,
        produced=options.what == PRODUCED,
        checkpoints_topic=options.checkpoints_topic,
    )
    say(f"group {options.shard} is at transaction {marker}")
