"""Known routes of journals, and the choice of a broker to ask.

Routes come free with every answer. They are kept for a while, the least recently used go first, and a broker that turns
out unavailable invalidates its route. A wrong route costs a hop, never a wrong answer.

Source: gazette/core broker/client/route_cache.go; broker/protocol/dispatcher.go (choice of a member).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import grpc

from broadsheet.runtime.clock import Clock, SystemClock
from broadsheet.wire.journal_pb2 import Route

_FAILING = (grpc.ChannelConnectivity.TRANSIENT_FAILURE, grpc.ChannelConnectivity.SHUTDOWN)


@dataclass(frozen=True, slots=True)
class _Known:
    route: Route
    expires_monotonic_seconds: float


class RouteCache:
    """Routes by journal: bounded in number and in age."""

    def __init__(self, size: int, ttl_seconds: float, *, clock: Clock | None = None) -> None:
        """Create an empty cache.

        Args:
            size: Most routes kept; 0 keeps none.
            ttl_seconds: Age at which a route is forgotten.
            clock: Tells the age.
        """
        self._size = size
        self._ttl_seconds = ttl_seconds
        self._clock = clock or SystemClock()
        self._known: OrderedDict[str, _Known] = OrderedDict()

    @property
    def enabled(self) -> bool:
        """True if routes are kept at all."""
        return self._size > 0

    def route_of(self, journal: str) -> Route | None:
        """Return the journal's route if it is known and recent enough."""
        known = self._known.get(journal)
        if known is None:
            return None
        if self._clock.monotonic_seconds() >= known.expires_monotonic_seconds:
            del self._known[journal]
            return None
        self._known.move_to_end(journal)
        return known.route

    def update(self, journal: str, route: Route | None) -> None:
        """Store a journal's route; one without members or endpoints removes it."""
        if route is None or not route.members or len(route.endpoints) != len(route.members):
            self.forget(journal)
            return
        if not self.enabled:
            return
        expires = self._clock.monotonic_seconds() + self._ttl_seconds
        self._known[journal] = _Known(route, expires)
        self._known.move_to_end(journal)
        while len(self._known) > self._size:
            self._known.popitem(last=False)

    def forget(self, journal: str) -> None:
        """Remove a journal's route, e.g. because its broker is unavailable."""
        self._known.pop(journal, None)


def choose_endpoint(
    route: Route | None,
    *,
    zone: str,
    primary: bool,
    state_of: Callable[[str], grpc.ChannelConnectivity | None],
) -> str:
    """Return the endpoint of the member to ask, or "" for the default one.

    Args:
        route: The journal's route, if known.
        zone: The caller's zone; its members are preferred.
        primary: Only the primary will do.
        state_of: Tells the state of an endpoint's channel, None if there is none.
    """
    if route is None or not route.endpoints:
        return ""
    if primary:
        return route.endpoints[route.primary] if route.primary >= 0 else ""

    def rank(index: int) -> tuple[bool, bool, bool]:
        state = state_of(route.endpoints[index])
        return (
            route.members[index].zone != zone,
            state in _FAILING,
            state is not grpc.ChannelConnectivity.READY,
        )

    candidates = [index for index, endpoint in enumerate(route.endpoints) if endpoint]
    return route.endpoints[min(candidates, key=rank)] if candidates else ""
