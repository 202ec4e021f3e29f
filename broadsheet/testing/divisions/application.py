"""The simulated application whose shards publish into a journal by key, and read that journal.

    in/a, in/b ─► owner of the key's publishing group ─► mid, or its parts ─► owner of its recording group ─► out/a, b
                    counts what it publishes of a key                           compares with what it has read of it

A number's key has two groups, so that mostly one shard publishes it and another one reads it. What is published tells
its place among the messages of its key: a reader that finds another place than the next has lost, doubled or overtaken
one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Protocol

from broadsheet.consumer.application import Shard
from broadsheet.journals.content.json import NDJSON, JsonType
from broadsheet.journals.message.batch import Envelope
from broadsheet.journals.message.partitioning import MappedJournal, field_key, modulo_mapping
from broadsheet.journals.message.publisher import Publisher
from broadsheet.testing.families.application import DividedKeeper, DividedStore
from broadsheet.testing.shards.history_checker import BROKEN_ON_PURPOSE, INPUTS
from broadsheet.wire.key_range import GROUPS

MIDDLE: Final = "mid/a"
"""The journal that is divided."""
KEYS: Final = 16
_PUBLISHED, _READ = "published-", "read-"
_BY_KEY: Final = modulo_mapping(field_key("key"), lambda: (MappedJournal(MIDDLE, NDJSON),))


def key_of_number(number: int) -> int:
    """Return the key of a number."""
    return number % KEYS


def publishing_group(number: int) -> int:
    """Return the group whose owner publishes a number."""
    return key_of_number(number) * (GROUPS // KEYS)


def recording_group(number: int) -> int:
    """Return the group whose owner records a number."""
    return (publishing_group(number) + GROUPS // 2) % GROUPS


def group_of_entry(key: str) -> int:
    """Return the group of an entry of the state, by its key: a record, or a count of a key."""
    number = int(key.rpartition("-")[2])
    return publishing_group(number) if key.startswith(_PUBLISHED) else recording_group(number)


class OrderWitness(Protocol):
    """The part of the checker that the application tells what it reads."""

    def on_read(self, shard: str, envelope: Envelope, *, place: int, expected: int) -> None:
        """Check the place of a message among those of its key."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayingKeeper(DividedKeeper):
    """Publishes numbers by key, and records those that it reads there.

    Implements what `DividedKeeper` does.
    """

    order: OrderWitness

    def consume_message(
        self, shard: Shard, store: DividedStore, envelope: Envelope, publisher: Publisher
    ) -> None:
        """Publish an input into the middle, or record what was published there, unless another shard does."""
        # Named, because a slotted dataclass is another class than the one that `super()` finds.
        number: int = envelope.message["id"]
        if envelope.journal in INPUTS:
            if self.whims.application_fails:
                raise RuntimeError(BROKEN_ON_PURPOSE)
            if publishing_group(number) in store.owned:
                key = f"key-{key_of_number(number)}"
                place = self._next_place(store, f"{_PUBLISHED}{key}")
                message = {"id": number, "key": key, "place": place}
                publisher.publish_uncommitted(_BY_KEY, message, JsonType())
            return
        if self.group_of(number) in store.owned:
            DividedKeeper.consume_message(self, shard, store, envelope, publisher)
            expected = self._next_place(store, f"{_READ}{envelope.message['key']}")
            place = envelope.message["place"]
            self.order.on_read(shard.id, envelope, place=place, expected=expected)

    def _next_place(self, store: DividedStore, entry: str) -> int:
        place = store.state[entry] = store.state.get(entry, 0) + 1
        return place
