"""The simulated application of a family: it records each number whose group its shard owns, and who recorded it.

state     number ─► place in the shard's history × 16 + the shard that recorded it
          the mark of the fork that made the shard
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, Protocol

from broadsheet.consumer.application import Shard
from broadsheet.consumer.elastic.fork import drop_parents_intents
from broadsheet.consumer.recoverylog.local_state import local_state_of
from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.message.batch import Envelope, MessageType
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.journals.message.publisher import Publisher
from broadsheet.runtime.op_future import OpFuture
from broadsheet.testing.shards.cluster import FaultSwitch
from broadsheet.testing.shards.history_checker import BROKEN_ON_PURPOSE, output_of
from broadsheet.testing.shards.stores import RecordedStore, StoreObserver
from broadsheet.wire.journal_pb2 import JournalSpec
from broadsheet.wire.key_range import ALL_KEYS, GROUPS, key_range_of
from broadsheet.wire.shard_pb2 import Checkpoint

SHARDS_MAX: Final = 16
FORK_MARK: Final = "fork"


def group_of_number(number: int) -> int:
    """Return the group of a number: numbers that follow each other are far apart."""
    return number * 997 % GROUPS


def index_of(shard_id: str) -> int:
    """Return the number of a shard, by its name: 1 of the first."""
    return int(shard_id.rpartition("-")[2])


class FamilyWitness(Protocol):
    """The part of the checker that the application and its stores tell."""

    def on_consumed(self, number: int, *, again: bool) -> None:
        """Check an input given to the application; `again` if its state has it already."""
        ...

    def on_intents(self, shard_id: str, intents: Mapping[str, bytes]) -> None:
        """Note the acknowledgements that a shard commits."""
        ...

    def on_restored_intents(self, shard_id: str, intents: Mapping[str, bytes]) -> None:
        """Check the acknowledgements that a shard is about to make again."""
        ...


class DividedStore(RecordedStore):
    """A store in a recovery log that may begin as a copy of another shard's."""

    def __init__(
        self, shard: Shard, *, observer: StoreObserver, witness: FamilyWitness, piecewise: bool
    ) -> None:
        """Take the directory and the recorder of the shard.

        Args:
            shard: Has a recovery log.
            observer: Told the states that this store relies on.
            witness: Told the acknowledgements.
            piecewise: Each commit takes several appends.
        """
        super().__init__(shard, observer=observer, piecewise=piecewise)
        self._fork = local_state_of(shard, None).fork
        self._witness = witness
        self.owned = ALL_KEYS
        """Groups of the running transaction."""

    def restore_checkpoint(self, shard: Shard) -> Checkpoint:
        """Read the state that was played, or committed since."""
        checkpoint = super().restore_checkpoint(shard)
        mark = int(self._fork, 16) if self._fork else None
        if mark is not None and self.state.get(FORK_MARK) != mark:
            drop_parents_intents(checkpoint)
            self.state[FORK_MARK] = mark
        self._witness.on_restored_intents(shard.id, checkpoint.ack_intents)
        return checkpoint

    def start_commit(
        self, shard: Shard, checkpoint: Checkpoint, wait_for: Collection[Future[object]]
    ) -> OpFuture:
        """Replace the file; the log gets it once all of `wait_for` has succeeded."""
        self._witness.on_intents(shard.id, checkpoint.ack_intents)
        return super().start_commit(shard, checkpoint, wait_for)


@dataclass(frozen=True, slots=True)
class DividedKeeper:
    """Records and publishes the numbers of groups that a shard owns. Implements `Application` and `DividedByKey`."""

    open_store: Callable[[Shard], DividedStore]
    witness: FamilyWitness
    whims: FaultSwitch

    def why_indivisible(self) -> str:
        """Say that nothing stands against it."""
        return ""

    def new_store(self, shard: Shard) -> DividedStore:
        """Open the run's store."""
        return self.open_store(shard)

    def message_type(self, journal_spec: JournalSpec) -> MessageType:
        """Return JSON lines."""
        del journal_spec
        return JsonType()

    def begin_txn(self, shard: Shard, store: DividedStore) -> None:
        """Look at what the shard owns."""
        store.owned = key_range_of(shard.spec.labels)

    def finished_txn(self, shard: Shard, store: DividedStore, commit: OpFuture) -> None:
        """Do nothing, because nothing was kept."""

    def consume_message(
        self, shard: Shard, store: DividedStore, envelope: Envelope, publisher: Publisher
    ) -> None:
        """Record the number, and publish it, unless another shard does."""
        if self.whims.application_fails:
            raise RuntimeError(BROKEN_ON_PURPOSE)
        number: int = envelope.message["id"]
        if group_of_number(number) not in store.owned:
            return
        key = str(number)
        self.witness.on_consumed(number, again=key in store.state)
        place = len(store.state) - (FORK_MARK in store.state)
        store.state[key] = place * SHARDS_MAX + index_of(shard.id)
        output = output_of(number)
        if output is not None:
            publisher.publish_uncommitted(MappedJournal(output, NDJSON), {"id": number}, JsonType())

    def finalize_txn(self, shard: Shard, store: DividedStore, publisher: Publisher) -> None:
        """Do nothing, because nothing is buffered."""
