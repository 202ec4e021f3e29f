"""What a caller may see of the cluster's shards: their specs, routes and statuses, from the local mirror.

Source: gazette/core consumer/shard_api.go (List).
"""

from __future__ import annotations

from collections.abc import Sequence

from broadsheet.allocator.model import Assignment, ItemId, MemberId
from broadsheet.consumer.key_space import (
    ShardKeySpace,
    is_visible,
    spec_of,
    standbys_refused_of,
    status_of,
)
from broadsheet.consumer.protocol.journal_pb2 import LabelSelector, Route
from broadsheet.consumer.protocol.shard_pb2 import ListResponse, ShardSpec
from broadsheet.consumer.resolver.decision import build_route, replicas_of


def list_shards(
    key_space: ShardKeySpace, *, wanted: LabelSelector, allowed: LabelSelector
) -> list[ListResponse.Shard]:
    """Return the shards that both selectors match, by id, with routes and statuses.

    Args:
        key_space: The mirror.
        wanted: The request's selector.
        allowed: The caller's claims.
    """
    listing = Listing(key_space, wanted=wanted, allowed=allowed)
    rows = map(listing.row, key_space.items)
    return [row for row in rows if row is not None]


class Listing:
    """Shards of a key space as one caller may see them, at one revision."""

    def __init__(
        self, key_space: ShardKeySpace, *, wanted: LabelSelector, allowed: LabelSelector
    ) -> None:
        """Prepare; see `list_shards` for the selectors."""
        self._key_space = key_space
        self._selectors = [each for each in (wanted, allowed) if each.ByteSize()]
        self._routes: dict[tuple[tuple[MemberId, int], ...], Route] = {}
        """Routes by members and slots: many shards have few of them, and making one takes long."""

    def sees(self, spec: ShardSpec) -> bool:
        """Report whether the caller wants and may see a shard."""
        return all(is_visible(spec, each) for each in self._selectors)

    def row(self, item_id: ItemId) -> ListResponse.Shard | None:
        """Return what List says of a shard; None if there is no such shard, or the caller does not see it."""
        key_space = self._key_space
        item = key_space.items.get(item_id)
        if item is None or not self.sees(spec_of(item)):
            return None
        replicas = replicas_of(key_space.assignments_of(item_id))
        return ListResponse.Shard(
            spec=spec_of(item),
            mod_revision=item.kv.mod_revision,
            create_revision=item.kv.create_revision,
            route=self._route(replicas),
            status=[status_of(replica) for replica in replicas],
            standbys_refused=standbys_refused_of(item),
        )

    def _route(self, replicas: Sequence[Assignment]) -> Route:
        known = tuple((replica.member_id, replica.slot) for replica in replicas)
        route = self._routes.get(known)
        if route is None:
            route = self._routes[known] = build_route(replicas, self._key_space.members)
        return route
