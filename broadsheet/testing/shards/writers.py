"""Simulated other producers, which write the inputs, and into the shard's outputs, in transactions of which some are
rolled back or never finished.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.journals.message.publisher import Publisher
from broadsheet.journals.message.rollback import Rollback
from broadsheet.journals.message.uuid import MessageClock, new_producer_id
from broadsheet.runtime.clock import Clock
from broadsheet.testing.shards.broker import MemoryBroker
from broadsheet.testing.shards.history_checker import FOREIGN, INPUTS, OUTPUTS
from broadsheet.wire.journal_pb2 import AppendRequest, Status

OUTSIDE, ENDED, ROLLED_BACK, ABANDONED = 0.2, 0.3, 0.08, 0.04
"""Shares of a writer's steps: a message outside transactions, a commit, a rollback, its death."""
REPEATED = 0.15
"""Share of appends that are repeated, as if their answers were lost."""


@dataclass(slots=True)
class _Writer:
    """A producer, which writes to one journal at a time."""

    publisher: Publisher
    clock: MessageClock
    rollback: Rollback | None = None
    """Rolls its messages back, if it never committed anything."""
    is_open: bool = False


@dataclass
class Writers:
    """All producers except the shard's."""

    broker: MemoryBroker
    random: Random
    clock: Clock
    journals: Sequence[str] = INPUTS
    first_number: int = 0
    message_of: Callable[[int], dict[str, Any]] = lambda number: {"id": number}
    """Makes the message of a number."""
    given_up: set[int] = field(default_factory=set)
    """Producers that never finish their transactions."""
    _writers: list[_Writer] = field(default_factory=list)
    _numbers: int = 0

    def step(self) -> None:
        """Let one of them take a step."""
        if not self._writers or (len(self._writers) < 3 and self.random.random() < 0.1):
            self._writers.append(self._new_writer())
        writer = self.random.choice(self._writers)
        writer.clock.update(self.clock.wall_seconds())
        drawn = self.random.random()
        if not writer.is_open and drawn < OUTSIDE:
            self._publish_outside(writer)
        elif not writer.is_open or drawn >= ENDED:
            self._publish(writer)
        elif drawn >= ROLLED_BACK:
            self._commit(writer)
        else:
            self._give_up(writer, told=drawn >= ABANDONED)

    def finish(self) -> None:
        """Finish all transactions that can be finished."""
        for writer in self._writers:
            if writer.is_open:
                self._commit(writer)

    def _new_writer(self) -> _Writer:
        clock = MessageClock()
        clock.update(self.clock.wall_seconds())
        return _Writer(Publisher(clock, new_producer_id(self.random.randbytes)), clock)

    def _next_message(self) -> dict[str, Any]:
        self._numbers += 1
        return self.message_of(self.first_number + self._numbers)

    def _publish(self, writer: _Writer) -> None:
        for _ in range(self.random.randint(1, 3)):
            mapped = MappedJournal(self.random.choice(self.journals), NDJSON)
            writer.publisher.publish_uncommitted(mapped, self._next_message(), JsonType())
        writer.is_open = True
        self._append_published(writer)

    def _publish_outside(self, writer: _Writer) -> None:
        mapped = MappedJournal(self.random.choice(self.journals), NDJSON)
        writer.publisher.publish_committed(mapped, self._next_message(), JsonType())
        self._append_published(writer)

    def _append_published(self, writer: _Writer) -> None:
        for append in writer.publisher.take_appends():
            self._append(append.journal, b"".join(append.content))

    def _commit(self, writer: _Writer) -> None:
        writer.publisher.take_rollbacks()
        for intent in writer.publisher.build_ack_intents():
            self._append(intent.journal, intent.content)
        writer.is_open = False

    def _give_up(self, writer: _Writer, *, told: bool) -> None:
        """Abandon the transaction; roll it back if the producer never committed there."""
        if told:
            for rollback in writer.publisher.take_rollbacks():
                self._append(rollback.journal, rollback.content)
        self._writers.remove(writer)
        self.given_up.add(writer.publisher.producer_id)

    def _append(self, journal: str, content: bytes) -> None:
        times = 2 if self.random.random() < REPEATED else 1
        for _ in range(times):
            response = self.broker.append(AppendRequest(journal=journal), content)
            assert response.status == Status.OK, "the broker serves no client just now"


def writers_of_outputs(broker: MemoryBroker, random: Random, clock: Clock) -> Writers:
    """Return the producers that write into the shard's outputs beside the shard."""
    return Writers(broker, random, clock, journals=OUTPUTS, first_number=FOREIGN)
