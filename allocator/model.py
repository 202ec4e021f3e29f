"""The allocator's vocabulary: items, members and the assignments between them.

Values are opaque to the allocator. Their owner (the consumer) decodes them into objects with the few methods below.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, NewType, Protocol

from broadsheet.allocator.ops import KeyValue

ItemId = NewType("ItemId", str)
"""The id of an item: for a consumer, of a shard."""


class MemberId(NamedTuple):
    """A process: unique by (zone, suffix). A tuple, because it is hashed and compared more than anything else."""

    zone: str
    suffix: str

    def __str__(self) -> str:
        return f"{self.zone}#{self.suffix}"


class ItemValue(Protocol):
    """The interface of a decoded item."""

    def desired_replication(self) -> int:
        """Return how many replicas the item should have, from 0."""
        ...


class MemberValue(Protocol):
    """The interface of a decoded member."""

    def item_limit(self) -> int:
        """Return the most assignments the member takes, from 0."""
        ...

    def is_exiting(self) -> bool:
        """Return whether the member wants to leave."""
        ...

    def is_cordoned(self) -> bool:
        """Return whether the member keeps its replicas but must get no new ones."""
        ...

    @property
    def is_outdated(self) -> bool:
        """True if the member cannot read what the cluster has stored: it holds nothing, and does not lead."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """An item to assign."""

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
