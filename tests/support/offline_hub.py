"""An event hub in memory: Azure's own consumer client and event processors run on it, with no network below them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from azure.eventhub import EventData, LoadBalancingStrategy
from azure.eventhub.aio import CheckpointStore, EventHubConsumerClient, EventHubSharedKeyCredential

NAMESPACE, HUB, GROUP = "offline.servicebus.windows.net", "clicks", "$Default"
START = "-1"
"""Azure's name for the beginning of a partition, as an offset."""


class OfflineHub:
    """Partitions of events; the offset of one is a text, as it is for brokers that copy to other regions."""

    def __init__(self, partitions: int) -> None:
        self.partition_ids = [str(number) for number in range(partitions)]
        self.events: dict[str, list[EventData]] = {name: [] for name in self.partition_ids}
        self.arrived = asyncio.Event()

    def send(self, partition: str, count: int) -> None:
        """Append events."""
        events = self.events[partition]
        for _ in range(count):
            event = EventData(f"{partition}/{len(events)}")
            event.raw_amqp_message.annotations = {
                b"x-opt-sequence-number": len(events),
                b"x-opt-offset": f"1:{len(events)}".encode(),
            }
            events.append(event)
        self.arrived.set()

    def index_after(self, partition: str, offset: str) -> int:
        """Return the index of the first event after an offset."""
        if offset == START:
            return 0
        offsets = [event.offset for event in self.events[partition]]
        return offsets.index(offset) + 1


class _Consumer:
    """Receives from a partition."""

    def __init__(
        self,
        hub: OfflineHub,
        partition: str,
        offset: str,
        on_event: Callable[[EventData], Awaitable[None]],
    ) -> None:
        self._hub = hub
        self._partition = partition
        self._next = hub.index_after(partition, offset)
        self._on_event = on_event

    async def receive(self, *_: object) -> None:
        """Deliver the next event, or wait for one."""
        events = self._hub.events[self._partition]
        if self._next == len(events):
            self._hub.arrived.clear()
            await self._hub.arrived.wait()
            return
        event = events[self._next]
        self._next += 1
        await self._on_event(event)

    async def close(self) -> None:
        """Do nothing: there is no connection."""


class OfflineConsumerClient(EventHubConsumerClient):
    """Azure's client, but for its two ways to the network."""

    def __init__(
        self,
        hub: OfflineHub,
        checkpoints: CheckpointStore,
        *,
        balancing_seconds: float = 0.05,
        expiry_seconds: float = 2.0,
    ) -> None:
        """Receive nothing yet.

        Args:
            hub: What it receives from.
            checkpoints: Of its processors.
            balancing_seconds: Between two rounds of claims.
            expiry_seconds: How old the last claim of a processor may be. One that is closed while it claims gives
                back what it had before, which its store refuses; so this is how long others may have to wait.
        """
        super().__init__(
            NAMESPACE,
            HUB,
            GROUP,
            EventHubSharedKeyCredential("name", "key"),
            checkpoint_store=checkpoints,
            load_balancing_interval=balancing_seconds,
            partition_ownership_expiration_interval=expiry_seconds,
            load_balancing_strategy=LoadBalancingStrategy.GREEDY,
        )
        self._hub = hub

    async def get_partition_ids(self) -> list[str]:
        """Return the hub's."""
        return self._hub.partition_ids

    def _create_consumer(  # type: ignore[override]  # Returns no connection.
        self,
        consumer_group: str,
        partition_id: str,
        event_position: Any,  # Azure's: an offset here.
        on_event_received: Callable[[EventData], Awaitable[None]],
        **_: Any,
    ) -> _Consumer:
        del consumer_group
        return _Consumer(self._hub, partition_id, str(event_position), on_event_received)
