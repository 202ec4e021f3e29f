"""The view that a caller has of the cluster's shards, from the local mirror: rows, and which of them changed.

Source: gazette/core consumer/shard_api.go (List).
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from google.protobuf.message import Message

from broadsheet.allocator.key_space import KeySpace
from broadsheet.allocator.model import Assignment, ItemId, MemberId
from broadsheet.consumer.registry.key_space import (
    ShardItem,
    ShardKeySpace,
    is_selected,
    process_of,
    shard_of,
    status_of,
)
from broadsheet.consumer.resolver.decision import build_route, replicas_of
from broadsheet.journals.wire import encode_varint
from broadsheet.wire.journal_pb2 import LabelSelector
from broadsheet.wire.labels import LabelMatcher
from broadsheet.wire.shard_pb2 import ListResponse, ShardSpec

HISTORY_SHARDS_MAX = 65_536
"""Changed shards that are remembered; a watcher that was away for longer gets the whole table again."""


ROWS_PER_TURN = 512
"""Rows after which other tasks run, and a caller that gave up is noticed."""


async def list_shards(
    key_space: ShardKeySpace, *, wanted: LabelSelector, allowed: LabelSelector
) -> ListResponse:
    """Return the shards that both selectors match, by id, with routes and statuses; status and header are not set.

    Each row is as of the revision at the call or of a newer one, because others use the event loop meanwhile.

    Args:
        key_space: The mirror.
        wanted: The request's selector.
        allowed: The caller's claims.
    """
    listing = Listing(key_space, selections_of(wanted, allowed))
    parts: list[bytes] = []
    for number, item_id in enumerate(list(key_space.items), 1):
        if number % ROWS_PER_TURN == 0:
            await asyncio.sleep(0)
        row = listing.encoded_row(item_id)
        if row is not None:
            parts += _SHARDS_TAG, encode_varint(len(row)), row
    # Joined encodings are the encoding of the whole. Messages of specs that are stored encoded would be made, copied,
    # and dropped for each row, which takes several times as long and as much memory.
    return ListResponse.FromString(b"".join(parts))


def selections_of(wanted: LabelSelector, allowed: LabelSelector) -> Sequence[LabelMatcher]:
    """Return what a row must match, prepared: a caller that lists again and again keeps it.

    Args:
        wanted: The request's selector.
        allowed: The caller's claims.
    """
    return [LabelMatcher(each) for each in (wanted, allowed) if each.ByteSize()]


class Listing:
    """Shards of a key space as one caller may see them, at one revision."""

    def __init__(self, key_space: ShardKeySpace, selections: Sequence[LabelMatcher]) -> None:
        """Prepare; see `selections_of` for what a row must match."""
        self._key_space = key_space
        self._selections = selections
        self._routes: dict[tuple[tuple[MemberId, int], ...], bytes] = {}
        """Encoded routes by members and slots: many shards have few of them, and making one takes long."""

    def sees(self, spec: ShardSpec) -> bool:
        """Report whether the caller wants and may see a shard."""
        return all(is_selected(spec, each) for each in self._selections)

    def _sees_item(self, shard: ShardItem) -> bool:
        # Without a selector, no spec has to be decoded.
        return not self._selections or self.sees(shard.spec)

    def row(self, item_id: ItemId) -> ListResponse.Shard | None:
        """Return what List says of a shard; None if there is no such shard, or the caller does not see it."""
        encoded = self.encoded_row(item_id)
        return None if encoded is None else ListResponse.Shard.FromString(encoded)

    def encoded_row(self, item_id: ItemId) -> bytes | None:
        """Return the encoding of the row."""
        key_space = self._key_space
        item = key_space.items.get(item_id)
        if item is None:
            return None
        shard = shard_of(item)
        if not self._sees_item(shard):
            return None
        replicas = replicas_of(key_space.assignments_of(item_id))
        parts = [_SPEC_TAG, encode_varint(len(shard.encoded)), shard.encoded]
        parts += _MOD_REVISION_TAG, encode_varint(item.kv.mod_revision)
        route = self._route(replicas)
        parts += _ROUTE_TAG, encode_varint(len(route)), route
        for replica in replicas:
            status = status_of(replica).SerializeToString()
            parts += _STATUS_TAG, encode_varint(len(status)), status
        parts += _CREATE_REVISION_TAG, encode_varint(item.kv.create_revision)
        row = b"".join(parts)
        if refused := shard.standbys_refused:
            row += ListResponse.Shard(standbys_refused=refused).SerializeToString()
        return row

    def _route(self, replicas: Sequence[Assignment]) -> bytes:
        known = tuple((replica.member_id, replica.slot) for replica in replicas)
        route = self._routes.get(known)
        if route is None:
            made = build_route(replicas, self._key_space.members)
            route = self._routes[known] = made.SerializeToString()
        return route


# The wire format of protobuf, as far as rows are written in it.


def _tag(message: type[Message], name: str, wire_type: int) -> bytes:
    return encode_varint(message.DESCRIPTOR.fields_by_name[name].number << 3 | wire_type)


_NUMBER, _BYTES = 0, 2
_SHARDS_TAG = _tag(ListResponse, "shards", _BYTES)
_SPEC_TAG = _tag(ListResponse.Shard, "spec", _BYTES)
_MOD_REVISION_TAG = _tag(ListResponse.Shard, "mod_revision", _NUMBER)
_ROUTE_TAG = _tag(ListResponse.Shard, "route", _BYTES)
_STATUS_TAG = _tag(ListResponse.Shard, "status", _BYTES)
_CREATE_REVISION_TAG = _tag(ListResponse.Shard, "create_revision", _NUMBER)


@dataclass(frozen=True, slots=True)
class _Step:
    """One change of the key space."""

    revision: int
    touched: Mapping[ItemId, ShardItem | None]
    """Shards of which anything changed, with the shard before; None: there was none, or it is the same."""


class ShardChangeLog:
    """Remembers which shards changed at which of the latest revisions; observes the key space."""

    def __init__(self, key_space: KeySpace, *, shards_max: int = HISTORY_SHARDS_MAX) -> None:
        """Start empty.

        Args:
            key_space: Calls `look` after every change.
            shards_max: Bound on remembered changes of one shard each.
        """
        self._key_space = key_space
        self._shards_max = shards_max
        self._steps: deque[_Step] = deque()
        self._remembered = 0
        self._shards: dict[ItemId, ShardItem] = {}
        self._endpoints: dict[MemberId, str] = {}
        self._floor: int | None = None
        """The oldest revision since which all changes are known; None before the key space is loaded."""

    def look(self) -> None:
        """Take note of the key space's latest change."""
        key_space = self._key_space
        touched = self._touched()
        revision = key_space.header.revision
        if self._floor is None:
            # What was there at first is no change.
            self._floor = revision
            return
        if not touched:
            return
        self._steps.append(_Step(revision, touched))
        self._remembered += len(touched)
        while self._remembered > self._shards_max:
            oldest = self._steps.popleft()
            self._remembered -= len(oldest.touched)
            self._floor = oldest.revision

    def since(self, revision: int) -> Mapping[ItemId, Sequence[ShardSpec]] | None:
        """Return the shards that changed after `revision`, with their former specs; None if that was too long ago."""
        if self._floor is None or revision < self._floor:
            return None
        touched: dict[ItemId, list[ShardSpec]] = {}
        for step in reversed(self._steps):
            if step.revision <= revision:
                break
            for item_id, before in step.touched.items():
                specs = touched.setdefault(item_id, [])
                if before is not None:
                    specs.append(before.spec)
        return touched

    def _touched(self) -> dict[ItemId, ShardItem | None]:
        key_space, shards = self._key_space, self._shards
        changes = key_space.changes
        touched: dict[ItemId, ShardItem | None] = {key.item_id: None for key in changes.assignments}
        if moved := self._moved(changes.members):
            # Routes name endpoints.
            for item_id, member_id, _ in key_space.assignments:
                if member_id in moved:
                    touched.setdefault(item_id, None)
        for item_id in changes.items:
            item = key_space.items.get(item_id)
            touched[item_id] = shards.pop(item_id, None)
            if item is not None:
                shards[item.item_id] = shard_of(item)
        return touched

    def _moved(self, changed: Iterable[MemberId]) -> set[MemberId]:
        """Return the members whose endpoint changed."""
        moved = set()
        for member_id in changed:
            member = self._key_space.members.get(member_id)
            endpoint = "" if member is None else process_of(member).process_spec.endpoint
            if self._endpoints.get(member_id, "") != endpoint:
                self._endpoints[member_id] = endpoint
                moved.add(member_id)
            if member is None:
                self._endpoints.pop(member_id, None)
        return moved
