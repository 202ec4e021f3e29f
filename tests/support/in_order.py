"""An application that reads a source of another system, and notices whatever is lost, doubled or out of order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from broadsheet.consumer.application import Shard
from broadsheet.consumer.errors import ShardStoppedError
from broadsheet.consumer.shard.live_shard import LiveShard
from broadsheet.consumer.sources.received import Received
from broadsheet.consumer.stores.json_file import JsonFileStore
from broadsheet.journals.message.batch import Envelope
from broadsheet.journals.message.publisher import Publisher
from broadsheet.wire.shard_pb2 import ShardSpec
from tests.support.eventually import eventually
from tests.support.live_shards import SHARD, Counting, Counts, ShardHost, counts, spec_of


class InOrder(Counting):
    """Counts messages {"key": key, "n": number} by key, and refuses one that is not the next of its key."""

    def __init__(
        self, directory: Path, source: Any
    ) -> None:  # Any: sources look alike, and no more
        super().__init__(directory)
        self.source = source
        self.read_messages = source.read_messages
        self.replay_range = source.replay_range
        self.read_through = source.read_through
        self.meet: Callable[[str, int], None] = lambda key, number: None
        """Called with each message; may raise."""
        self.received: list[Received] = []

    def consume_message(
        self, shard: Shard, store: JsonFileStore[Counts], envelope: Envelope, publisher: Publisher
    ) -> None:
        """Count."""
        del shard, publisher
        message = envelope.message
        if isinstance(message, Received):
            self.received.append(message)
            if message.content is None:
                return
            message = message.content
        key, number = message["key"], message["n"]
        self.meet(key, number)
        expected = store.state.get(key, 0) + 1
        assert number == expected, f"{key}: {number} instead of {expected}"
        store.state[key] = number


async def reach(live: LiveShard, wanted: Counts) -> None:
    """Wait until the shard has committed these counts, no more and no less."""

    async def has_counted() -> bool:
        try:
            return await counts(live) == wanted
        except ShardStoppedError:
            return False  # Between two attempts.

    await eventually(has_counted)


async def serve(host: ShardHost, application: InOrder, spec: ShardSpec | None = None) -> LiveShard:
    """Start a shard."""
    spec = spec or spec_of(SHARD)
    await host.assign(spec)
    return host.start(spec, application)


def numbers(first: int, last: int) -> range:
    """Return first to last."""
    return range(first, last + 1)
