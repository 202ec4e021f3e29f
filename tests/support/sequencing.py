"""Journals of made-up messages, and a naive sequencer that takes one message at a time.

The naive one follows the classification table to the letter and remembers whole journals, so that "read again" is a
look into a list. It is slow and obvious: what it delivers is what is right.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from broadsheet.journals.content.json import JsonType
from broadsheet.journals.message.batch import MessageBatch
from broadsheet.journals.message.sequencer import Sequencer
from broadsheet.journals.message.uuid import CLOCK_UNITS_PER_SECOND, Flags
from broadsheet.wire import shard_pb2

JSON_TYPE = JsonType()


class Message(NamedTuple):
    """One message of a journal."""

    begin: int
    end: int
    producer: int
    clock: int
    flags: int
    payload: bytes


@dataclass
class Log:
    """One journal's messages, in order."""

    journal: str = "a/journal"
    messages: list[Message] = field(default_factory=list)

    def append(
        self, producer: int, clock: int, flags: int, payload: bytes = b"", *, size: int = 10
    ) -> Message:
        """Add a message of `size` framed bytes."""
        begin = self.messages[-1].end if self.messages else 0
        message = Message(begin, begin + size, producer, clock, flags, payload or b"%d" % begin)
        self.messages.append(message)
        return message

    def batch(self, start: int = 0, stop: int | None = None) -> MessageBatch:
        """Return messages [start, stop) by index."""
        return batch_of_messages(self.journal, self.messages[start:stop])

    def between(self, begin: int, end: int) -> MessageBatch:
        """Return the messages in bytes [begin, end)."""
        return batch_of_messages(
            self.journal, [m for m in self.messages if m.begin >= begin and m.end <= end]
        )


def batch_of_messages(journal: str, messages: Sequence[Message]) -> MessageBatch:
    """Return messages as a batch."""
    return MessageBatch(
        journal,
        [m.begin for m in messages],
        [m.end for m in messages],
        [m.producer for m in messages],
        [m.clock for m in messages],
        [m.flags for m in messages],
        [m.payload for m in messages],
        JSON_TYPE,
    )


def messages_of(batch: MessageBatch) -> list[Message]:
    """Return a batch as messages."""
    return [
        Message(*columns)
        for columns in zip(
            batch.begins.tolist(),
            batch.ends.tolist(),
            batch.producers.tolist(),
            batch.clocks.tolist(),
            batch.flags.tolist(),
            batch.payloads,
            strict=True,
        )
    ]


def replay(sequencer: Sequencer, log: Log) -> None:
    """Read again what the sequencer asks for."""
    wanted = sequencer.replay_range()
    assert wanted is not None
    sequencer.feed_replay(log.between(wanted.begin, wanted.end))
    sequencer.end_replay()


def deliver_all(sequencer: Sequencer, log: Log, batch: MessageBatch | None = None) -> list[Message]:
    """Sequence a batch (the whole log by default), consume all that is emitted, and return it."""
    batch = log.batch() if batch is None else batch
    delivered: list[Message] = []
    index = 0
    while index < len(batch):
        index = sequencer.queue(batch, index).next_index
        while sequencer.emitting:
            run = sequencer.peek(3)
            if run is None:
                replay(sequencer, log)
                continue
            delivered += messages_of(run)
            sequencer.consume(len(run))
    return delivered


@dataclass
class _Partial:
    min_clock: int
    max_clock: int
    begin: int


class NaiveSequencer:
    """The specification, one message at a time."""

    def __init__(
        self,
        sources: Mapping[str, shard_pb2.Checkpoint.Source],
        *,
        logs: Iterable[Log],
        ring_messages: int,
        ring_bytes: int,
    ) -> None:
        self.logs = {log.journal: log for log in logs}
        self.ring_messages = ring_messages
        self.ring_bytes = ring_bytes
        self.ring: list[tuple[tuple[str, int], Message]] = []
        self.offsets: dict[str, int] = {}
        self.partials: dict[tuple[str, int], _Partial] = {}
        self.pending: set[tuple[str, int]] = set()
        self.emitting: list[Message] = []
        self.emit_key: tuple[str, int] | None = None
        self.emit_end = 0
        self.read_seconds: dict[str, float] = {}
        """By journal; pauses are all short here."""
        self.heard_seconds: dict[tuple[str, int], float] = {}
        for journal, source in sources.items():
            self.offsets[journal] = source.read_through
            for entry in source.producers:
                clock = entry.state.last_ack
                key = (journal, int.from_bytes(entry.id, "big"))
                self.partials[key] = _Partial(clock, clock, entry.state.begin)

    def pass_time(self, journal: str, seconds: float) -> None:
        """Let reading time pass."""
        self.read_seconds[journal] = self.read_seconds.get(journal, 0.0) + seconds

    def commits_by_itself(self, journal: str, message: Message) -> bool:
        """Return whether a message outside of transactions would be emitted."""
        partial = self.partials.get((journal, message.producer))
        return message.clock == 0 or (
            message.flags not in (Flags.CONTINUE_TXN, Flags.ACK_TXN)
            and (partial is None or message.clock > partial.min_clock)
        )

    def queue(self, journal: str, message: Message) -> None:
        """Sequence one message; `emitting` then holds what it commits."""
        assert not self.emitting
        if message.clock == 0:
            # Whatever its flags: it is of no transaction.
            self._emit(None, journal, message, [message._replace(flags=Flags.OUTSIDE_TXN)])
            return
        key = (journal, message.producer)
        self.heard_seconds[key] = self.read_seconds.get(journal, 0.0)
        partial = self.partials.get(key)
        if partial is None:
            partial = _Partial(message.clock - 1, message.clock - 1, -1)
        if message.flags == Flags.CONTINUE_TXN:
            self.partials[key] = partial
            self._queue_continue(key, partial, message)
        elif message.flags == Flags.ACK_TXN:
            self.partials[key] = partial
            self._queue_ack(key, partial, message)
        elif message.clock <= partial.min_clock:
            self.offsets[journal] = message.end
        else:
            self.partials[key] = partial
            self._drop_from_ring(key)
            partial.begin, partial.max_clock = message.begin, message.clock
            self._emit(key, journal, message, [message])

    def _queue_continue(self, key: tuple[str, int], partial: _Partial, message: Message) -> None:
        self.offsets[key[0]] = message.end
        if message.clock <= partial.max_clock:
            return
        if partial.begin == -1:
            partial.begin = message.begin
            self.pending.add(key)
        partial.max_clock = message.clock
        size = message.end - message.begin
        while self.ring and (
            len(self.ring) >= self.ring_messages
            or sum(m.end - m.begin for _, m in self.ring) + size > self.ring_bytes
        ):
            self.ring.pop(0)
        self.ring.append((key, message))

    def _queue_ack(self, key: tuple[str, int], partial: _Partial, message: Message) -> None:
        if message.clock <= partial.min_clock:
            self._drop_from_ring(key)
            self.pending.discard(key)
            self.partials[key] = _Partial(message.clock, message.clock, -1)
            self.offsets[key[0]] = message.end
            return
        if partial.begin == -1:
            partial.begin = message.begin
        partial.max_clock = message.clock
        kept = [m for k, m in self.ring if k == key] + [message]
        self._drop_from_ring(key)
        reread = [
            m
            for m in self.logs[key[0]].messages
            if m.producer == key[1] and partial.begin <= m.begin and m.end <= kept[0].begin
        ]
        passed, last, greatest = [], partial.min_clock, partial.min_clock
        for candidate in reread + kept[:-1]:
            if candidate.clock > greatest:
                greatest = candidate.clock
                if candidate.clock <= message.clock:
                    passed.append(candidate)
                    last = candidate.clock
        if message.clock > last:
            passed.append(message)
        self._emit(key, key[0], message, passed)

    def _drop_from_ring(self, key: tuple[str, int]) -> None:
        self.ring = [(k, m) for k, m in self.ring if k != key]

    def _emit(
        self, key: tuple[str, int] | None, journal: str, last: Message, messages: list[Message]
    ) -> None:
        self.emitting, self.emit_key, self.emit_end = messages, key, last.end
        self.emit_journal, self.emit_clock = journal, last.clock
        if key is not None:
            self.partials[key].begin = messages[0].begin

    def step(self) -> Message:
        """Consume one message."""
        message = self.emitting.pop(0)
        partial = self.partials[self.emit_key] if self.emit_key else None
        if partial is not None:
            partial.min_clock = message.clock
            if self.emitting:
                partial.begin = self.emitting[0].begin
        if not self.emitting:
            self.offsets[self.emit_journal] = self.emit_end
            if partial is not None and self.emit_key is not None:
                partial.min_clock = partial.max_clock = self.emit_clock
                partial.begin = -1
                self.pending.discard(self.emit_key)
            self.emit_key = None
        return message

    def take_checkpoint(
        self, horizon_seconds: float
    ) -> dict[str, tuple[int, dict[int, tuple[int, int]]]]:
        """Return offset and {producer: (last_ack, begin)} by journal."""
        self.pending.clear()
        for journal in self.offsets:
            here = {key: p for key, p in self.partials.items() if key[0] == journal}
            heard_cut = self.read_seconds.get(journal, 0.0) - horizon_seconds
            for key, partial in here.items():
                others = [p.min_clock for other, p in here.items() if other != key]
                younger = partial.max_clock + int(horizon_seconds * CLOCK_UNITS_PER_SECOND)
                if (
                    horizon_seconds
                    and sum(clock > younger for clock in others) > 1
                    and self.heard_seconds.get(key, 0.0) < heard_cut
                    and partial.begin == -1
                    and key != self.emit_key
                ):
                    del self.partials[key]
        return {
            journal: (
                offset,
                {k[1]: (p.min_clock, p.begin) for k, p in self.partials.items() if k[0] == journal},
            )
            for journal, offset in self.offsets.items()
        }


def plain(
    sources: Mapping[str, shard_pb2.Checkpoint.Source],
) -> dict[str, tuple[int, dict[int, tuple[int, int]]]]:
    """Return a checkpoint's sources in the naive sequencer's form."""
    return {
        journal: (
            source.read_through,
            {
                int.from_bytes(entry.id, "big"): (entry.state.last_ack, entry.state.begin)
                for entry in source.producers
            },
        )
        for journal, source in sources.items()
    }
