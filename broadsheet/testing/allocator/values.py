"""Values of simulated items, members and replicas in etcd: small JSON objects, and words.

item        {"R": replication}
member      {"R": limit, "E": exiting, "C": cordoned}
assignment  nothing yet, `consistent`, or `failed`
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from broadsheet.allocator.errors import KeyDecodeError
from broadsheet.allocator.model import Assignment, Item, ItemId, MemberId
from broadsheet.allocator.ops import KeyValue

CONSISTENT = b"consistent"
FAILED = b"failed"


@dataclass(frozen=True, slots=True)
class SimulatedItem:
    """An item's value."""

    replication: int

    def desired_replication(self) -> int:
        """Return how many replicas the item should have."""
        return self.replication

    def encoded(self) -> bytes:
        """Return the value for etcd."""
        return json.dumps({"R": self.replication}).encode()


@dataclass(frozen=True, slots=True)
class SimulatedMemberValue:
    """A member's value."""

    limit: int
    exiting: bool = False
    cordoned: bool = False
    is_outdated: bool = False

    def item_limit(self) -> int:
        """Return the most replicas that the member takes."""
        return self.limit

    def is_exiting(self) -> bool:
        """Return whether the member wants to leave."""
        return self.exiting

    def is_cordoned(self) -> bool:
        """Return whether the member keeps its replicas but must get no new ones."""
        return self.cordoned

    def encoded(self) -> bytes:
        """Return the value for etcd."""
        return json.dumps({"R": self.limit, "E": self.exiting, "C": self.cordoned}).encode()


class SimulatedDecoder:
    """Decodes these values."""

    def decode_item(self, item_id: ItemId, kv: KeyValue) -> SimulatedItem:
        """Return an item's value."""
        return SimulatedItem(_fields(kv)["R"])

    def decode_member(self, member_id: MemberId, kv: KeyValue) -> SimulatedMemberValue:
        """Return a member's value."""
        fields = _fields(kv)
        return SimulatedMemberValue(fields["R"], bool(fields["E"]), bool(fields.get("C")))

    def decode_assignment(
        self, item_id: ItemId, member_id: MemberId, slot: int, kv: KeyValue
    ) -> bytes:
        """Return a replica's word."""
        return kv.value


class SimulatedConsistency:
    """A rule by which a replica is consistent if its value says so."""

    def is_consistent(
        self, item: Item, assignment: Assignment, all_assignments: Sequence[Assignment]
    ) -> bool:
        """Return whether the replica's value says that it is consistent."""
        return assignment.kv.value == CONSISTENT

    def standby_value(self, primary: Assignment) -> bytes:
        """Return the value unchanged, because a simulated replica does not start over."""
        return primary.kv.value


def is_failed(assignment: Assignment) -> bool:
    """Return whether a replica's value says that it has failed."""
    return assignment.kv.value == FAILED


def _fields(kv: KeyValue) -> dict[str, int]:
    try:
        fields: dict[str, int] = json.loads(kv.value)
    except ValueError as error:
        raise KeyDecodeError(kv.key, f"expected JSON, got {kv.value!r}") from error
    return fields
