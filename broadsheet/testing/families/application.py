"""The simulated application of a family: it records each number whose group its shard owns.

state     number ─► number of its record: each call of the application makes another one
          the mark of the fork that made the shard

A child begins with its parent's records, and the survivor of a merge takes those of the other shard in, a few with each
transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import msgspec

from broadsheet.consumer.application import Shard
from broadsheet.consumer.elastic.fork import drop_parents_intents
from broadsheet.consumer.recoverylog.local_state import local_state_of
from broadsheet.consumer.stores.json_file import decode_documents
from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.message.batch import Envelope, MessageType
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.journals.message.publisher import Publisher
from broadsheet.runtime.op_future import OpFuture
from broadsheet.testing.shards.cluster import FaultSwitch
from broadsheet.testing.shards.history_checker import BROKEN_ON_PURPOSE, output_of
from broadsheet.testing.shards.stores import RecordedStore, State, StoreObserver
from broadsheet.wire.journal_pb2 import JournalSpec
from broadsheet.wire.key_range import ALL_KEYS, GROUPS, KeyRange, key_range_of
from broadsheet.wire.shard_pb2 import Checkpoint

FORK_MARK: Final = "fork"
TAKEN_MAX: Final = 4
"""Records that a survivor takes in with one transaction, until the other shard rests."""
_STATE: Final = "state.json"


def group_of_number(number: int) -> int:
    """Return the group of a number: numbers that follow each other are far apart."""
    return number * 997 % GROUPS


def group_of_record(key: str) -> int:
    """Return the group of a record, by its key."""
    return group_of_number(int(key))


class FamilyWitness(Protocol):
    """The part of the checker that the application and its stores tell."""

    def on_consumed(self, number: int, *, again: bool) -> None:
        """Check an input given to the application; `again` if its state has it already."""
        ...

    def new_record(self) -> int:
        """Return a number that no other record has."""
        ...

    def on_intents(self, life: str, intents: Mapping[str, bytes]) -> None:
        """Note the acknowledgements that a shard commits."""
        ...

    def on_restored_intents(self, life: str, intents: Mapping[str, bytes]) -> None:
        """Check the acknowledgements that a shard is about to make again."""
        ...


class FollowedRecords:
    """The records of another shard, as far as its files show them.

    Implements `StandbyFollower` and `EndingFollower`.
    """

    def __init__(self) -> None:
        """Show nothing yet."""
        self.records: State | None = None
        """None: nothing was followed."""

    def follow(self, files: Path) -> None:
        """Read the file of the last commit."""
        path, found = files / _STATE, State()
        if path.exists():
            document, _ = decode_documents(path.read_bytes())
            found = msgspec.json.decode(document, type=State)
        self.records = {key: record for key, record in found.items() if key != FORK_MARK}

    def follow_to_end(self, files: Path) -> None:
        """Read the file of the last commit of all."""
        self.follow(files)

    def reset(self) -> None:
        """Forget what was read."""
        self.records = None

    def stop(self) -> None:
        """Do nothing, because reading takes no time."""

    def discard(self) -> None:
        """Forget what was read."""
        self.records = None


class TakenRecords:
    """Another shard's records on their way into a store; implements `TakenRows`."""

    refusal = ""

    def __init__(
        self, follower: FollowedRecords, given: KeyRange, *, group_of: Callable[[str], int]
    ) -> None:
        """Take nothing in yet.

        Args:
            follower: Of the other shard.
            given: Its groups.
            group_of: Returns the group of an entry, by its key.
        """
        self.taken_rows = 0
        self._follower = follower
        self._given = given
        self._group_of = group_of
        self._left: int | None = None
        self._ends = False
        self._is_complete = False

    @property
    def is_near(self) -> bool:
        """Report whether no more is left than a transaction takes in."""
        return self._left is not None and self._left <= TAKEN_MAX

    def left_rows(self) -> int:
        """Return how many are left."""
        return -1 if self._left is None else self._left

    def are_all_taken(self) -> bool:
        """Report whether all are taken in."""
        return self._is_complete

    def finish(self) -> None:
        """Take in all that is left with the next step."""
        self._ends = True

    def step(self, state: State) -> None:
        """Make some records in a state what they are elsewhere."""
        theirs = self._follower.records
        if theirs is None or self._is_complete:
            return
        given = {key: each for key, each in theirs.items() if self._group_of(key) in self._given}
        differ = [key for key, each in given.items() if state.get(key) != each]
        taken = differ if self._ends else differ[:TAKEN_MAX]
        state.update((key, given[key]) for key in taken)
        self.taken_rows += len(taken)
        self._left = len(differ) - len(taken)
        if self._ends:
            gone = [
                key
                for key in state
                if key != FORK_MARK and key not in given and self._group_of(key) in self._given
            ]
            for key in gone:
                del state[key]
            self._is_complete = True


class DividedStore(RecordedStore):
    """A store in a recovery log that may begin as a copy of another shard's, and take another's records in.

    Implements `AbsorbingStore`.
    """

    def __init__(
        self,
        shard: Shard,
        life: str,
        *,
        observer: StoreObserver,
        witness: FamilyWitness,
        piecewise: bool,
        group_of: Callable[[str], int] = group_of_record,
    ) -> None:
        """Take the directory and the recorder of the shard.

        Args:
            shard: Has a recovery log.
            life: Names the shard among all that ever had its id.
            observer: Told the states that this store relies on.
            witness: Told the acknowledgements.
            piecewise: Each commit takes several appends.
            group_of: Returns the group of an entry of the state, by its key.
        """
        super().__init__(shard, observer=observer, piecewise=piecewise)
        self._fork = local_state_of(shard, None).fork
        self._life = life
        self._witness = witness
        self._group_of = group_of
        self.owned = ALL_KEYS
        """Groups of the running transaction."""
        self.taken: TakenRecords | None = None
        """What is taken in of another shard."""

    def absorb(self, follower: FollowedRecords, given: KeyRange) -> TakenRecords:
        """Begin to take in another shard's records, a part with each transaction."""
        self.taken = TakenRecords(follower, given, group_of=self._group_of)
        return self.taken

    def stop_absorbing(self) -> None:
        """Take in no more."""
        self.taken = None

    def restore_checkpoint(self, shard: Shard) -> Checkpoint:
        """Read the state that was played, or committed since."""
        checkpoint = super().restore_checkpoint(shard)
        mark = int(self._fork, 16) if self._fork else None
        if mark is not None and self.state.get(FORK_MARK) != mark:
            drop_parents_intents(checkpoint)
            self.state[FORK_MARK] = mark
        self._witness.on_restored_intents(self._life, checkpoint.ack_intents)
        return checkpoint

    def start_commit(
        self, shard: Shard, checkpoint: Checkpoint, wait_for: Collection[Future[object]]
    ) -> OpFuture:
        """Replace the file; the log gets it once all of `wait_for` has succeeded."""
        self._witness.on_intents(self._life, checkpoint.ack_intents)
        return super().start_commit(shard, checkpoint, wait_for)


@dataclass(frozen=True, slots=True)
class DividedKeeper:
    """Records and publishes the numbers of groups that a shard owns.

    Implements `Application`, `DividedByKey` and `FollowingApplication`.
    """

    open_store: Callable[[Shard], DividedStore]
    witness: FamilyWitness
    whims: FaultSwitch
    group_of: Callable[[int], int] = group_of_number
    """Returns the group whose owner records a number."""

    def why_indivisible(self) -> str:
        """Say that nothing stands against it."""
        return ""

    def new_store(self, shard: Shard) -> DividedStore:
        """Open the run's store."""
        return self.open_store(shard)

    def new_follower(self, shard: Shard, directory: Path) -> FollowedRecords:
        """Return what follows a shard's files."""
        del shard, directory
        return FollowedRecords()

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
        if self.group_of(number) not in store.owned:
            return
        key = str(number)
        self.witness.on_consumed(number, again=key in store.state)
        store.state[key] = self.witness.new_record()
        output = output_of(number)
        if output is not None:
            publisher.publish_uncommitted(MappedJournal(output, NDJSON), {"id": number}, JsonType())

    def finalize_txn(self, shard: Shard, store: DividedStore, publisher: Publisher) -> None:
        """Take in records of a shard that is absorbed."""
        if store.taken is not None:
            store.taken.step(store.state)
