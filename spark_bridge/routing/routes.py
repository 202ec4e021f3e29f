"""A task's knowledge of the routes to shards: pure bookkeeping, with time as an argument.

A route is of one etcd revision, and any of a later revision replaces it. Routes come from listings, from a watch, and
from the headers of members that answer that they are not the primary.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from threading import Lock

from broadsheet.consumer.registry.key_space import member_id_of
from broadsheet.wire.journal_pb2 import Header, Route as WireRoute
from broadsheet.wire.shard_pb2 import ListResponse
from broadsheet.wire.watch_pb2 import WatchShardsResponse

ROUTE_SECONDS = 30.0
"""Time for which a route is believed after a member told or confirmed it, unless its own member refuses. It is bounded,
because a member that forwards never tells that the route is old.
"""
HEARD_LATELY_SECONDS = 1.0
"""Time for which a member named primary is taken for it, whatever it answers; this bounds look-ups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardRoute:
    """The members that served a shard at one revision of etcd."""

    shard_id: str
    revision: int
    primary: str
    """The member, `zone#suffix`; empty if there was none."""
    endpoint: str
    """The primary's endpoint; empty if there was none, or it was leaving."""
    replicas: tuple[str, ...]
    """Endpoints of all replicas, where routes can be looked up."""
    sources: tuple[str, ...]
    """Journals that the shard reads."""


def routes_of(listing: ListResponse | WatchShardsResponse) -> tuple[ShardRoute, ...]:
    """Return the routes of a listing, or of a part of a watch."""
    return tuple(
        _route(
            listed.spec.id,
            listed.route,
            revision=listing.header.etcd.revision,
            sources=tuple(source.journal for source in listed.spec.sources),
        )
        for listed in listing.shards
    )


def later_route(known: ShardRoute, header: Header | None) -> ShardRoute | None:
    """Return the route in a member's header, if it is of a later revision and has a primary."""
    # The member's view is older than ours, so its route may be the former primary.
    if header is None or header.etcd.revision <= known.revision:
        return None
    route = _route(
        known.shard_id, header.route, revision=header.etcd.revision, sources=known.sources
    )
    return route if route.endpoint else None


def _route(
    shard_id: str, wire: WireRoute, *, revision: int, sources: tuple[str, ...]
) -> ShardRoute:
    has_primary = 0 <= wire.primary < len(wire.members)
    return ShardRoute(
        shard_id=shard_id,
        revision=revision,
        primary=str(member_id_of(wire.members[wire.primary])) if has_primary else "",
        endpoint=wire.endpoints[wire.primary]
        if has_primary and wire.primary < len(wire.endpoints)
        else "",
        replicas=tuple(endpoint for endpoint in wire.endpoints if endpoint),
        sources=sources,
    )


@dataclass(slots=True)
class _Known:
    route: ShardRoute
    believed_until_monotonic_seconds: float
    heard_monotonic_seconds: float
    is_doubted: bool = False


class RouteTable:
    """The routes of one cluster, for the shards that resolvers name. Threads may share it."""

    def __init__(self) -> None:
        self._known: dict[str, _Known] = {}
        self._learning = Lock()
        """Held while a route is compared and replaced, because a watch learns on a thread of its own."""
        self._watched: frozenset[str] = frozenset()
        """Ids of the shards whose changes the watch tells."""
        self._position = 0
        """Revision up to which the routes of the watched shards are known."""
        self._confirmed_until_monotonic_seconds = float("-inf")
        """Until when the routes of the watched shards are believed."""
        self._coming: set[str] | None = None
        """The watched shards that have come, while a watch tells the whole table."""

    def known(self, shard_id: str) -> ShardRoute | None:
        """Return the latest route, however old."""
        found = self._known.get(shard_id)
        return None if found is None else found.route

    def believed(self, shard_id: str, now: float) -> ShardRoute | None:
        """Return the route unless it must be looked up again.

        Args:
            shard_id: The shard.
            now: Monotonic seconds.
        """
        found = self._known.get(shard_id)
        if found is None or found.is_doubted:
            return None
        is_told = now < self._confirmed_until_monotonic_seconds and shard_id in self._watched
        return found.route if is_told or now < found.believed_until_monotonic_seconds else None

    def heard_lately(self, shard_id: str, now: float) -> bool:
        """Return whether a member confirmed the route just now."""
        found = self._known.get(shard_id)
        return found is not None and now < found.heard_monotonic_seconds + HEARD_LATELY_SECONDS

    def learn(self, routes: Iterable[ShardRoute], now: float) -> None:
        """Add a member's routes, unless later ones are known, and believe them for a while."""
        with self._learning:
            self._learn(routes, now, heard=now)

    def suppose(self, routes: Iterable[ShardRoute], now: float) -> None:
        """Add the driver's routes of shards that are not known here, and believe them for a while."""
        with self._learning:
            unknown = (route for route in routes if route.shard_id not in self._known)
            self._learn(unknown, now, heard=float("-inf"))

    def watch_from(self, routes: Iterable[ShardRoute], revision: int, now: float) -> int:
        """Begin or resume to follow the shards of a listing; return the revision from which changes are needed.

        Args:
            routes: All routes of the listing.
            revision: The listing's.
            now: Monotonic seconds.
        """
        listed = tuple(routes)
        with self._learning:
            self._coming = None
            watched = frozenset(route.shard_id for route in listed)
            if watched != self._watched or self._position < revision:
                # Routes of an earlier revision may lack changes that the watch, which starts here, does not tell.
                later = (route for route in listed if self._is_later(route))
                self._learn(later, now, heard=float("-inf"))
                self._watched, self._position = watched, revision
                self._confirmed_until_monotonic_seconds = float("-inf")
            return self._position

    def follow(self, response: WatchShardsResponse, now: float) -> None:
        """Apply a response of the watch."""
        with self._learning:
            if response.reset:
                self._coming = set()
            # Others are of shards that no resolver names.
            routes = [route for route in routes_of(response) if route.shard_id in self._known]
            self._learn(routes, now, heard=now)
            for shard_id in response.removed:
                self._doubt(shard_id)
            if self._coming is not None:
                self._coming.update(route.shard_id for route in routes)
            if not response.more:
                self._complete(response.header.etcd.revision, now)

    def doubt(self, shard_id: str) -> None:
        """Mark a route to be looked up before it is used again."""
        with self._learning:
            self._doubt(shard_id)

    def to_look_up(
        self, wanted: str, others: Iterable[str], now: float, *, limit: int
    ) -> list[str]:
        """Return the shards to look up together: the wanted one, and others whose routes are not believed either."""
        found = [wanted]
        for shard_id in others:
            if len(found) >= limit:
                break
            if shard_id != wanted and self.believed(shard_id, now) is None:
                found.append(shard_id)
        return found

    def endpoints(self) -> Iterator[str]:
        """Yield the endpoints of members, some more than once."""
        for found in tuple(self._known.values()):
            yield from found.route.replicas

    def _complete(self, revision: int, now: float) -> None:
        """Believe the routes of a state that the watch has told as a whole."""
        coming, self._coming = self._coming, None
        if coming is not None:
            for shard_id in self._watched - coming:
                self._doubt(shard_id)
        self._position = revision
        self._confirmed_until_monotonic_seconds = now + ROUTE_SECONDS

    def _doubt(self, shard_id: str) -> None:
        found = self._known.get(shard_id)
        if found is not None:
            found.is_doubted = True

    def _is_later(self, route: ShardRoute) -> bool:
        found = self._known.get(route.shard_id)
        return found is None or route.revision > found.route.revision

    def _learn(self, routes: Iterable[ShardRoute], now: float, *, heard: float) -> None:
        for route in routes:
            found = self._known.get(route.shard_id)
            # Equal revisions, too, because the answer extends the time for which the route is believed.
            if found is None or route.revision >= found.route.revision:
                self._known[route.shard_id] = _Known(route, now + ROUTE_SECONDS, heard)
