"""The engine's vocabulary: items, members and the assignments that join them.

Values are opaque to the engine. Their owner (the consumer) decodes them into objects that answer a few questions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, NewType, Protocol

from broadsheet.allocator.ops import KeyValue

ItemId = NewType("ItemId", str)
"""What is assigned: for a consumer, the id of a shard."""


class MemberId(NamedTuple):
    """A process: unique by (zone, suffix). A tuple, for nothing else is hashed and compared as often."""

    zone: str
    suffix: str

    def __str__(self) -> str:
        return f"{self.zone}#{self.suffix}"


class ItemValue(Protocol):
    """What the engine asks of a decoded item."""

    def desired_replication(self) -> int:
        """Return how many replicas the item wants, from 0."""
        ...


class MemberValue(Protocol):
    """What the engine asks of a decoded member."""

    def item_limit(self) -> int:
        """Return the most assignments the member takes, from 0."""
        ...

    def is_exiting(self) -> bool:
        """Return whether the member wants to leave."""
        ...

    def is_cordoned(self) -> bool:
        """Return whether the member keeps what it holds and is to get nothing new."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """Something to assign."""

    item_id: ItemId
    value: ItemValue
    kv: KeyValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A live process."""

    member_id: MemberId
    value: MemberValue
    kv: KeyValue


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One replica of an item on a member. Slot 0 is the primary."""

    item_id: ItemId
    member_id: MemberId
    slot: int
    value: object
    kv: KeyValue
