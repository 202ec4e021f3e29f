"""Applications that count orders and publish alerts: a right one, and those that are wrong in one way each."""

from __future__ import annotations

import json
import os
import threading
import uuid
from collections.abc import Collection
from concurrent.futures import Future
from pathlib import Path
from typing import Any, ClassVar

from broadsheet.consumer import Shard
from broadsheet.consumer.stores import JsonFileStore
from broadsheet.journals import (
    NDJSON,
    Envelope,
    JournalSpec,
    JsonType,
    MappedJournal,
    MessageType,
    Publisher,
)
from broadsheet.wire.shard_pb2 import Checkpoint

ALERTS = MappedJournal("alerts", NDJSON)
JSON = JsonType()
CountStore = JsonFileStore[dict[str, int]]


class Alerts:
    """Counts orders by customer, and publishes an alert of each second order. Exactly once."""

    def new_store(self, shard: Shard) -> CountStore:
        """Keep counts in the recovery log."""
        return JsonFileStore(shard, initial={}, state_type=dict[str, int])

    def message_type(self, journal_spec: JournalSpec) -> MessageType:
        """JSON lines."""
        del journal_spec
        return JSON

    def consume_message(
        self, shard: Shard, store: CountStore, envelope: Envelope, publisher: Publisher
    ) -> None:
        """Count an order."""
        del shard
        customer = envelope.message["customer"]
        store.state[customer] = store.state.get(customer, 0) + 1
        if store.state[customer] % 2 == 0:
            publisher.publish_uncommitted(ALERTS, self.alert(store, customer), JSON)

    def alert(self, store: CountStore, customer: str) -> dict[str, Any]:
        """Return the alert of a customer."""
        return {"customer": customer, "orders": store.state[customer]}

    def finalize_txn(self, shard: Shard, store: CountStore, publisher: Publisher) -> None:
        """Nothing is cached."""


class GlobalState(Alerts):
    """Keeps its counts in a global."""

    counts: ClassVar[dict[str, int]] = {}

    def consume_message(
        self, shard: Shard, store: CountStore, envelope: Envelope, publisher: Publisher
    ) -> None:
        """Count in the class."""
        customer = envelope.message["customer"]
        self.counts[customer] = self.counts.get(customer, 0) + 1
        store.state[customer] = self.counts[customer]


class ObjectState(Alerts):
    """Keeps its counts in the application, where they outlive a failed transaction, though not a process."""

    def __init__(self) -> None:
        self.counts: dict[str, int] = {}

    def consume_message(
        self, shard: Shard, store: CountStore, envelope: Envelope, publisher: Publisher
    ) -> None:
        """Count in the object."""
        customer = envelope.message["customer"]
        self.counts[customer] = self.counts.get(customer, 0) + 1
        store.state[customer] = self.counts[customer]


class SendsMail(Alerts):
    """Sends a mail for each order."""

    mails: ClassVar[list[str]] = []

    def consume_message(
        self, shard: Shard, store: CountStore, envelope: Envelope, publisher: Publisher
    ) -> None:
        """Send it at once."""
        super().consume_message(shard, store, envelope, publisher)
        self.mails.append(envelope.message["customer"])


class PublishesCommitted(Alerts):
    """Publishes what is visible whether or not the transaction commits."""

    def consume_message(
        self, shard: Shard, store: CountStore, envelope: Envelope, publisher: Publisher
    ) -> None:
        """Publish outside of the transaction."""
        customer = envelope.message["customer"]
        store.state[customer] = store.state.get(customer, 0) + 1
        publisher.publish_committed(ALERTS, self.alert(store, customer), JSON)


class RandomKey(Alerts):
    """Makes a new key each time."""

    def consume_message(
        self, shard: Shard, store: CountStore, envelope: Envelope, publisher: Publisher
    ) -> None:
        """Store under a key that no other run makes."""
        store.state[str(uuid.uuid4())] = 1


class ForgetfulStore(CountStore):
    """A store with a cache that is written, and not read again."""

    def __init__(self, shard: Shard) -> None:
        super().__init__(shard, initial={}, state_type=dict[str, int])
        self.cache: dict[str, int] = {}

    def restore_checkpoint(self, shard: Shard) -> Checkpoint:
        """Return the checkpoint, and leave the cache empty."""
        return super().restore_checkpoint(shard)


class ForgetsToRestore(Alerts):
    """Counts in a cache of its store that a restore does not fill."""

    def new_store(self, shard: Shard) -> ForgetfulStore:
        """Return the store with the cache."""
        return ForgetfulStore(shard)

    def consume_message(
        self, shard: Shard, store: CountStore, envelope: Envelope, publisher: Publisher
    ) -> None:
        """Count in the cache."""
        assert isinstance(store, ForgetfulStore)
        customer = envelope.message["customer"]
        store.cache[customer] = store.cache.get(customer, 0) + 1

    def finalize_txn(self, shard: Shard, store: CountStore, publisher: Publisher) -> None:
        """Write the cache."""
        assert isinstance(store, ForgetfulStore)
        store.state.update(store.cache)


class FileStore:
    """A store from scratch: one file, and a thread for each commit."""

    waits = True
    """Whether a commit waits for what the transaction published."""

    def __init__(self, shard: Shard) -> None:
        name = shard.id.replace("/", "_")
        self.path = Path(os.environ["BROADSHEET_STATE_DIR"]) / f"{name}.json"
        self.state: dict[str, int] = {}

    def restore_checkpoint(self, shard: Shard) -> Checkpoint:
        """Read both."""
        if not self.path.exists():
            return Checkpoint()
        state, checkpoint = json.loads(self.path.read_text())
        self.state = state
        return Checkpoint.FromString(bytes.fromhex(checkpoint))

    def start_commit(
        self, shard: Shard, checkpoint: Checkpoint, wait_for: Collection[Future[object]]
    ) -> Future[None]:
        """Write both at once."""
        commit: Future[None] = Future()
        content = json.dumps([self.state, checkpoint.SerializeToString().hex()])

        def write() -> None:
            try:
                for each in wait_for if self.waits else ():
                    each.result()
                self.path.write_text(content)
            except BaseException as error:
                commit.set_exception(error)
            else:
                commit.set_result(None)

        threading.Thread(target=write, daemon=True).start()
        return commit

    def destroy(self) -> None:
        """Nothing is open."""


class ImpatientStore(FileStore):
    """Commits before the transaction's messages are in their journals."""

    waits = False


class OwnStore(Alerts):
    """Keeps its counts in a store from scratch, which is right but for its fence."""

    store_class: type[FileStore] = FileStore

    def new_store(self, shard: Shard) -> Any:
        """Return the store."""
        return self.store_class(shard)


class CommitsTooEarly(OwnStore):
    """Loses messages."""

    store_class = ImpatientStore
