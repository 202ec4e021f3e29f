"""An application that runs record processors as shards of members, exactly once, in place of lease workers.

    def new_processor(context): return MyProcessor(context.store)

    application = RecordProcessorApplication(new_engine=..., new_processor=new_processor, message_type=JsonType())

Each source journal of a shard has a processor and a lease record. `checkpoint()` writes the record in the shard's
transaction: with the tables that the processor changed, and with how far the journal was read. All of it is committed
together, or nothing. So a processor that checkpoints in the call in which it writes counts every record once, over any
fail-over; a processor that checkpoints later receives the records since its checkpoint again.
"""

from __future__ import annotations

from collections.abc import Callable

from sqlalchemy.engine import Engine

from broadsheet.consumer.application import Shard
from broadsheet.journals.message.batch import Envelope, MessageBatch, MessageType
from broadsheet.journals.message.publisher import Publisher
from broadsheet.leases.record_processor.processor_store import NewProcessor, ProcessorStore
from broadsheet.wire.journal_pb2 import JournalSpec


class RecordProcessorApplication:
    """Implements `broadsheet.consumer.application.Application` and `BatchConsumer`."""

    def __init__(
        self,
        *,
        new_engine: Callable[[Shard], Engine],
        new_processor: NewProcessor,
        message_type: MessageType,
    ) -> None:
        """Describe the application.

        Args:
            new_engine: Returns the database of a shard; shards on SQLite need a file each.
            new_processor: Returns a processor whose calls block; called for each journal of a shard in each life.
            message_type: How journals are framed. Processors get payloads as they are.
        """
        self._new_engine = new_engine
        self._new_processor = new_processor
        self._message_type = message_type

    def new_store(self, shard: Shard) -> ProcessorStore:
        """Return the shard's store."""
        return ProcessorStore(shard, self._new_engine(shard))

    def message_type(self, journal_spec: JournalSpec) -> MessageType:
        """Return the message type of every journal."""
        del journal_spec
        return self._message_type

    def consume_message(
        self, shard: Shard, store: ProcessorStore, envelope: Envelope, publisher: Publisher
    ) -> None:
        """Give one message to the processor of its journal."""
        batch = MessageBatch(
            journal=envelope.journal,
            begins=[envelope.begin],
            ends=[envelope.end],
            producers=[envelope.producer],
            clocks=[envelope.clock],
            flags=[envelope.flags],
            payloads=[self._message_type.encode(envelope.message)],
            message_type=self._message_type,
        )
        self.consume_batch(shard, store, batch, publisher)

    def consume_batch(
        self, shard: Shard, store: ProcessorStore, batch: MessageBatch, publisher: Publisher
    ) -> None:
        """Give a run of messages to the processor of its journal."""
        del shard
        store.assignment(batch.journal, self._new_processor, publisher).process(batch)

    def finalize_txn(self, shard: Shard, store: ProcessorStore, publisher: Publisher) -> None:
        """Retain the records that processors have not checkpointed."""
        del shard, publisher
        store.settle()
