"""The rows that every system gets: JSON lines of about 85 bytes, one of `KEYS` keys and a number in each.

    {"_meta":{"uuid":"…"},"k":"key-123","v":1123}

They are made once a run, and given to each system as they are: to Spark in files, to Broadsheet in journals, where
every 10,000 of them are followed by an acknowledgement, as a transactional producer writes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from broadsheet.journals.content.json import JsonType
from broadsheet.journals.message.partitioning import MappedJournal, fnv1a_32
from broadsheet.journals.message.publisher import Publisher
from broadsheet.journals.message.uuid import MessageClock, new_producer_id

KEYS = 1_000
PARTS = 2
"""Of the keys: as many as there are members, and cores."""
CHUNK_ROWS = 10_000


@dataclass(frozen=True, slots=True)
class Row:
    """One row."""

    number: int

    @property
    def key(self) -> str:
        """The key that a row is counted by."""
        return f"key-{self.number % KEYS}"

    @property
    def ordinal(self) -> int:
        """The count of its key once it is counted, if rows come in order from 0."""
        return self.number // KEYS + 1

    def as_message(self) -> dict[str, object]:
        """Return it as it is published."""
        return {"k": self.key, "v": self.number}


@dataclass(frozen=True, slots=True)
class Chunk:
    """Some rows of one part of the keys."""

    part: int
    rows: int
    content: bytes
    """JSON lines."""
    acknowledgement: bytes
    """What commits them in a journal."""


def part_of(key: str) -> int:
    """Return the part that a key is of."""
    return fnv1a_32(key.encode()) % PARTS


def keys_of_part(part: int) -> frozenset[str]:
    """Return the keys of a part."""
    keys = (Row(number).key for number in range(KEYS))
    return frozenset(key for key in keys if part_of(key) == part)


def make_chunks(rows: int) -> list[Chunk]:
    """Make `rows` rows, by part, in chunks."""
    parts = [part_of(Row(number).key) for number in range(KEYS)]
    publishers = [Publisher(MessageClock(), new_producer_id()) for _ in range(PARTS)]
    # What a message says does not depend on the journal it goes to.
    target, json_type = MappedJournal("bench/any", JsonType.content_type), JsonType()
    chunks = []
    for numbers in _runs(rows, CHUNK_ROWS * PARTS):
        for number in numbers:
            publisher = publishers[parts[number % KEYS]]
            publisher.publish_uncommitted(target, Row(number).as_message(), json_type)
        for part, publisher in enumerate(publishers):
            frames = [frame for append in publisher.take_appends() for frame in append.content]
            (intent,) = publisher.build_ack_intents()
            chunks.append(Chunk(part, len(frames), b"".join(frames), intent.content))
    return chunks


def expected_sums(rows: int, *, loads: int = 1) -> dict[str, tuple[int, int]]:
    """Return (n, total) by key of that many rows, loaded so many times."""
    found: dict[str, tuple[int, int]] = {}
    for first in range(min(rows, KEYS)):
        numbers = range(first, rows, KEYS)
        found[Row(first).key] = (loads * len(numbers), loads * sum(numbers))
    return found


def rows_in(chunks: Sequence[Chunk]) -> int:
    """Return how many rows there are."""
    return sum(chunk.rows for chunk in chunks)


def _runs(rows: int, length: int) -> Iterator[range]:
    for begin in range(0, rows, length):
        yield range(begin, min(begin + length, rows))
