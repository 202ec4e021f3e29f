"""Publishes purchases in transactions."""

from __future__ import annotations

import time

import pyarrow as pa

from broadsheet.examples.features.purchases import publish
from broadsheet.journals import JournalClient, MessageClock, Publisher, new_producer_id


async def append_all(broker: str, some: pa.Table) -> dict[str, int]:
    """Publish purchases in one transaction; return where it ends in each journal, bytes."""
    clock = MessageClock()
    clock.update(time.time())
    publisher = Publisher(clock, new_producer_id())
    publish(publisher, some)
    ends = {}
    async with JournalClient(broker) as journals:
        for each in publisher.take_appends():
            await journals.append(each.journal, each.content)
        # Only now, because acknowledged messages must be present.
        for intent in publisher.build_ack_intents():
            done = await journals.append(intent.journal, intent.content)
            ends[intent.journal] = done.commit.end
    return ends
