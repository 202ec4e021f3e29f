"""Simulated programs beside the shards that publish into the journal that is divided, as a `MessageWriter` does.

Each has a key of its own, and publishes in transactions, which stay open for any time. It learns of a division when a
journal refuses the first append of a transaction; in what it has begun, it goes on.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from random import Random
from typing import Final

from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.message.division import UNDIVIDED, DividedJournals
from broadsheet.journals.message.partitioning import MappedJournal
from broadsheet.journals.message.publisher import Publisher
from broadsheet.journals.message.uuid import MessageClock, new_producer_id
from broadsheet.runtime.clock import Clock
from broadsheet.testing.divisions.application import KEYS, MIDDLE
from broadsheet.testing.shards.broker import MemoryBroker
from broadsheet.wire.journal_pb2 import AppendRequest, Status

OUTSIDE: Final = 500_000 // KEYS * KEYS
"""First number of their messages, of key 0."""
WRITERS: Final = 3
BEGUN, COMMITTED = 0.4, 0.7
"""Shares of steps at which a program publishes, and at which it publishes or commits; at others it rolls back."""


@dataclass
class _Program:
    """A program, and its transaction."""

    name: str
    """Its key."""
    next_number: int
    """All its numbers are of one key."""
    clock: MessageClock
    publisher: Publisher
    divided: DividedJournals = field(default_factory=DividedJournals)
    """What it knows of divisions."""
    committed: int = 0
    """Messages that it has committed."""
    numbers: list[int] = field(default_factory=list)
    """Of the transaction."""
    begun: set[str] = field(default_factory=set)
    """Journals in which the transaction has begun."""


class OutsideWriters:
    """All programs beside the shards."""

    def __init__(self, broker: MemoryBroker, random: Random, clock: Clock) -> None:
        """Begin nothing yet.

        Args:
            broker: Serves the journals.
            random: Draws what is done.
            clock: Time.
        """
        self._broker = broker
        self._random = random
        self._clock = clock
        self._programs = [self._new_program(each) for each in range(WRITERS)]

    def step(self) -> None:
        """Let one of them take a step."""
        program = self._random.choice(self._programs)
        program.clock.update(self._clock.wall_seconds())
        drawn = self._random.random()
        if not program.numbers or drawn < BEGUN:
            self._publish(program)
        elif drawn < COMMITTED:
            self._commit(program)
        else:
            self._roll_back(program)

    def finish(self) -> None:
        """Commit what is open."""
        for program in self._programs:
            program.clock.update(self._clock.wall_seconds())
            if program.numbers:
                self._commit(program)

    def _new_program(self, key: int) -> _Program:
        clock = MessageClock()
        clock.update(self._clock.wall_seconds())
        return _Program(f"outside-{key}", OUTSIDE + key, clock, self._new_publisher(clock))

    def _new_publisher(self, clock: MessageClock) -> Publisher:
        return Publisher(clock, new_producer_id(self._random.randbytes))

    def _publish(self, program: _Program) -> None:
        for _ in range(self._random.randint(1, 3)):
            number, program.next_number = program.next_number, program.next_number + KEYS
            program.numbers.append(number)
            self._publish_one(program, number, program.committed + len(program.numbers))

    def _publish_one(self, program: _Program, number: int, place: int) -> None:
        journal = program.divided.part_of(MIDDLE, program.name.encode())
        message = {"id": number, "key": program.name, "place": place}
        program.publisher.publish_uncommitted(MappedJournal(journal, NDJSON), message, JsonType())
        for append in program.publisher.take_appends():
            request = AppendRequest(journal=append.journal)
            if append.journal not in program.begun:
                request.check_registers.CopyFrom(UNDIVIDED)
            response = self._broker.append(request, b"".join(append.content))
            if response.status == Status.REGISTER_MISMATCH:
                specs = [each.spec for each in self._broker.journals.values()]
                program.divided.learn(specs, divided=append.journal)
                self._publish_one(program, number, place)
                return
            assert response.status == Status.OK, "the broker serves no client just now"
            program.begun.add(append.journal)

    def _commit(self, program: _Program) -> None:
        for intent in program.publisher.build_ack_intents():
            self._append(intent.journal, intent.content, program)
        program.committed += len(program.numbers)
        self._end(program)

    def _roll_back(self, program: _Program) -> None:
        for rollback in program.publisher.take_rollbacks():
            self._append(rollback.journal, rollback.content, program)
        self._end(program)

    def _append(self, journal: str, content: bytes, program: _Program) -> None:
        # The first append may have been refused: then nothing is there to be acknowledged.
        if journal in program.begun:
            response = self._broker.append(AppendRequest(journal=journal), content)
            assert response.status == Status.OK, "the broker serves no client just now"

    def _end(self, program: _Program) -> None:
        program.publisher = self._new_publisher(program.clock)
        program.numbers, program.begun = [], set()
