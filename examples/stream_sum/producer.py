"""A producer that does everything allowed to confuse its readers. Pure: it creates appends, which others perform.

    committed      chunks, then an acknowledgement: they count
    rolled back    forged chunks, then an acknowledgement at the clock of the last commit: they do not
    abandoned      forged chunks, and no acknowledgement ever; the producer goes on under another id
    outside        chunks that each commit by themselves

In each of them, earlier messages of this producer are written again unchanged, as after an append whose answer was
lost. A producer is either one of transactions or one of messages outside of them, see
`journals/message/README.md`.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from random import Random

from broadsheet.examples.stream_sum.messages import CHUNKS, Chunk
from broadsheet.examples.stream_sum.source import StreamSource
from broadsheet.journals import (
    NDJSON,
    Flags,
    MappedJournal,
    MessageClock,
    PendingAppend,
    Publisher,
    build_uuid,
    framing_for,
    json_uuid_of,
    modulo_mapping,
    new_producer_id,
    parse_uuid,
)

CHUNKS_OF_A_ROUND = 12
REMEMBERED = 20
"""Messages of each journal that may be written again."""
ABANDONED_EVERY = 40
"""Rounds; seldom, because a shard remembers for a day what it has of a producer that never comes back."""


class Producer:
    """Makes rounds of appends; each round is performed in order, and whole, before the next one is made."""

    def __init__(
        self,
        random: Random,
        *,
        name: str,
        journals: Sequence[str],
        transactional: bool = True,
    ) -> None:
        """Create a producer of streams of its own.

        Args:
            random: Chooses everything.
            name: What its streams' names start with; no other producer has it.
            journals: Where to; a stream stays in one.
            transactional: Whether its messages are in transactions.
        """
        self.source = StreamSource(random, name=name)
        self.counts: Counter[str] = Counter()
        """What was made, by kind: chunks, forged, repeated, committed, rolled back, abandoned."""
        self._random = random
        self._transactional = transactional
        self._clock = MessageClock()
        targets = [MappedJournal(journal, NDJSON) for journal in journals]
        self._mapping = modulo_mapping(lambda chunk: str(chunk.stream).encode(), lambda: targets)
        self._begin_life()

    def next_round(self, unix_seconds: float) -> list[PendingAppend]:
        """Return the appends of something that the producer does."""
        self._clock.update(unix_seconds)
        if not self._transactional:
            return self._publish_outside(self._some_chunks())
        choice = self._random.random()
        if choice < 1 / ABANDONED_EVERY:
            return self._abandon()
        return self._roll_back() if choice < 0.3 else self._commit(self._some_chunks())

    def end(self, unix_seconds: float) -> list[PendingAppend]:
        """Return the appends that end every open stream."""
        self._clock.update(unix_seconds)
        chunks = [self.source.last_chunk() for _ in range(self.source.open_streams)]
        return self._commit(chunks) if self._transactional else self._publish_outside(chunks)

    def _some_chunks(self) -> list[Chunk]:
        count = self._random.randint(1, CHUNKS_OF_A_ROUND)
        return [self.source.next_chunk() for _ in range(count)]

    def _commit(self, chunks: Sequence[Chunk]) -> list[PendingAppend]:
        self.counts["committed"] += 1
        self.counts["chunks"] += len(chunks)
        appends = list(self._pending(chunks))
        for append in appends:
            self._remember(append)
        for intent in self._publisher.build_ack_intents():
            _, self._acked_clock[intent.journal], _ = parse_uuid(json_uuid_of(intent.content))
            times = 1 + self._chance(
                0.1
            )  # Repeating it changes nothing, because nothing is pending any more.
            appends.append(PendingAppend(intent.journal, [intent.content] * times))
        return appends

    def _roll_back(self) -> list[PendingAppend]:
        self.counts["rolled back"] += 1
        appends = list(self._pending(self._forged_chunks()))
        first_clocks: dict[str, int] = {}
        for append in appends:
            first_clocks.setdefault(append.journal, _clock_of(append.content[0]))
        self._publisher.build_ack_intents()  # Messages outside transactions would commit.
        for journal, first_clock in first_clocks.items():
            clock = self._acked_clock.get(journal, first_clock - 1)
            appends.append(PendingAppend(journal, [self._acknowledgement(journal, clock)]))
        return appends

    def _abandon(self) -> list[PendingAppend]:
        self.counts["abandoned"] += 1
        appends = list(self._pending(self._forged_chunks()))
        self._begin_life()
        return appends

    def _publish_outside(self, chunks: Sequence[Chunk]) -> list[PendingAppend]:
        self.counts["outside"] += len(chunks)
        self.counts["chunks"] += len(chunks)
        for chunk in chunks:
            self._publisher.publish_committed(self._mapping, chunk, CHUNKS)
        appends = self._publisher.take_appends()
        for append in appends:
            self._remember(append)
        return [self._with_repeats(append) for append in appends]

    def _pending(self, chunks: Sequence[Chunk]) -> Iterator[PendingAppend]:
        """Yield appends of messages that await an acknowledgement, in one part or several."""
        for number, chunk in enumerate(chunks, start=1):
            self._publisher.publish_uncommitted(self._mapping, chunk, CHUNKS)
            if number == len(chunks) or self._chance(0.3):
                yield from map(self._with_repeats, self._publisher.take_appends())

    def _forged_chunks(self) -> list[Chunk]:
        chunks = [
            self.source.forged_chunk() for _ in range(self._random.randint(1, CHUNKS_OF_A_ROUND))
        ]
        self.counts["forged"] += len(chunks)
        return chunks

    def _with_repeats(self, append: PendingAppend) -> PendingAppend:
        """Return the append with some of its messages, or earlier ones, once more."""
        if not self._chance(0.25):
            return append
        known = [*self._remembered.get(append.journal, ()), *append.content]
        begin = self._random.randrange(len(known))
        repeats = known[begin : begin + self._random.randint(1, CHUNKS_OF_A_ROUND)]
        self.counts["repeated"] += len(repeats)
        return PendingAppend(append.journal, [*append.content, *repeats])

    def _remember(self, append: PendingAppend) -> None:
        remembered = self._remembered.setdefault(append.journal, deque(maxlen=REMEMBERED))
        remembered.extend(content for content in append.content if content not in remembered)

    def _begin_life(self) -> None:
        """Continue under another producer id, which no reader knows."""
        self._publisher = Publisher(self._clock, new_producer_id(self._random.randbytes))
        self._acked_clock: dict[str, int] = {}
        """Clock of the last commit, by journal."""
        self._remembered: dict[str, deque[bytes]] = {}
        """Committed messages, framed, by journal."""

    def _acknowledgement(self, journal: str, clock: int) -> bytes:
        message = CHUNKS.new_acknowledgement(journal)
        CHUNKS.set_uuid(message, build_uuid(self._publisher.producer_id, clock, Flags.ACK_TXN))
        return framing_for(NDJSON, journal=journal).frame(CHUNKS.encode(message))

    def _chance(self, probability: float) -> bool:
        return self._random.random() < probability


def _clock_of(framed: bytes) -> int:
    _, clock, _ = parse_uuid(json_uuid_of(framed))
    return clock
