"""A decoder of text for tests of the engine alone: items `R=2`, members `limit=5`, `limit=5,cordoned,exiting`."""

from __future__ import annotations

from dataclasses import dataclass

from broadsheet.allocator.errors import KeyDecodeError
from broadsheet.allocator.model import ItemId, MemberId
from broadsheet.allocator.ops import KeyValue
from broadsheet.runtime.errors import ValidationError


@dataclass(frozen=True, slots=True)
class PlainItem:
    """Wants `replication` replicas."""

    replication: int

    def desired_replication(self) -> int:
        """Return how many replicas the item wants."""
        return self.replication


@dataclass(frozen=True, slots=True)
class PlainMember:
    """Takes `limit` assignments."""

    limit: int
    exiting: bool = False
    cordoned: bool = False
    is_outdated: bool = False

    def item_limit(self) -> int:
        """Return the most assignments the member takes."""
        return self.limit

    def is_exiting(self) -> bool:
        """Return whether the member wants to leave."""
        return self.exiting

    def is_cordoned(self) -> bool:
        """Return whether it keeps what it holds and is to get nothing new."""
        return self.cordoned


class PlainDecoder:
    """Decodes text; refuses anything else in both ways a decoder may."""

    def decode_item(self, item_id: ItemId, kv: KeyValue) -> PlainItem:
        """Decode `R=2`."""
        name, _, number = kv.value.decode().partition("=")
        if name != "R" or not number.isdigit():
            raise KeyDecodeError(kv.key, f"expected R=number, got {kv.value!r}")
        return PlainItem(int(number))

    def decode_member(self, member_id: MemberId, kv: KeyValue) -> PlainMember:
        """Decode `limit=5`, with `exiting`, `cordoned` or both behind it."""
        limit, *flags = kv.value.decode().split(",")
        number = limit.removeprefix("limit=")
        if not number.isdigit():
            raise ValidationError("limit", f"expected a number, got {number!r}")
        return PlainMember(int(number), exiting="exiting" in flags, cordoned="cordoned" in flags)

    def decode_assignment(
        self, item_id: ItemId, member_id: MemberId, slot: int, kv: KeyValue
    ) -> str:
        """Decode any text but `bad`."""
        if kv.value == b"bad":
            raise KeyDecodeError(kv.key, "expected anything but bad")
        return kv.value.decode()
