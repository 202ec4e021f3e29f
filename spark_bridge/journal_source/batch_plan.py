"""Plans a read that is no stream. Driver only."""

from __future__ import annotations

from spark_bridge.brokers import open_client
from spark_bridge.format_options import OptionError
from spark_bridge.journal_source.journals import selected_journals, states_at
from spark_bridge.journal_source.options import ReadOptions
from spark_bridge.journal_source.partition_reader import JournalPartition
from spark_bridge.journal_source.planner import Planner, batch_span


async def batch_partitions(options: ReadOptions) -> list[JournalPartition]:
    """Return the partitions of all messages that are committed between the options' start and end.

    Raises:
        OptionError: no journal is selected, or start or end names another one, or an offset that is not reached.
        FramingError: content is no messages.
        ConsumerError: the journals cannot be listed or read.
    """
    async with open_client(options.access) as client:
        content_types = await selected_journals(client, options)
        if not content_types:
            raise OptionError(
                "selector", "a selector of at least one journal", got=options.selector
            )
        start = await states_at(client, options.start, content_types=content_types, options=options)
        planner = Planner(client, options)
        planner.select(content_types)
        partitions = await planner.partitions(await batch_span(client, start, options))
        return [JournalPartition(each, content_types[each.journal]) for each in partitions]
