"""The simulated application, which records each input's number in its state and publishes it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from broadsheet.consumer.application import Shard
from broadsheet.consumer.message.batch import Envelope, MessageType
from broadsheet.consumer.message.framing import NDJSON
from broadsheet.consumer.message.mapping import MappedJournal
from broadsheet.consumer.message.publisher import Publisher
from broadsheet.consumer.message.types import JsonType
from broadsheet.consumer.protocol.journal_pb2 import JournalSpec
from broadsheet.consumer.simulation.history_checker import HistoryChecker, output_of
from broadsheet.consumer.simulation.stores import FencedRowStore, RecordedStore

NumberStore = RecordedStore | FencedRowStore

BROKEN_ON_PURPOSE = "the application is broken on purpose"


class FaultSwitch(Protocol):
    """The switch of an application's injected fault."""

    @property
    def application_fails(self) -> bool:
        """Return whether the application raises at the next message."""
        ...


@dataclass(frozen=True, slots=True)
class NumberKeeper:
    """Records and publishes the numbers of inputs. Implements `broadsheet.consumer.application.Application`."""

    open_store: Callable[[Shard], NumberStore]
    witness: HistoryChecker
    whims: FaultSwitch

    def new_store(self, shard: Shard) -> NumberStore:
        """Open the run's store."""
        return self.open_store(shard)

    def message_type(self, journal_spec: JournalSpec) -> MessageType:
        """Return JSON lines."""
        del journal_spec
        return JsonType()

    def consume_message(
        self, shard: Shard, store: NumberStore, envelope: Envelope, publisher: Publisher
    ) -> None:
        """Record the number, and publish it."""
        del shard
        if self.whims.application_fails:
            raise RuntimeError(BROKEN_ON_PURPOSE)
        number: int = envelope.message["id"]
        key = str(number)
        self.witness.on_consumed(number, again=key in store.state)
        store.state[key] = len(store.state)
        output = output_of(number)
        if output is not None:
            publisher.publish_uncommitted(MappedJournal(output, NDJSON), {"id": number}, JsonType())

    def finalize_txn(self, shard: Shard, store: NumberStore, publisher: Publisher) -> None:
        """Do nothing, because nothing is buffered."""
