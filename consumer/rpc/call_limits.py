"""Bounds on the calls that clients may hold on a member's server, with their metrics.

Each bound is an option of `shardctl serve` and a metric; the metric's label `bound` is the bound's name.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any

from prometheus_client import CollectorRegistry

from broadsheet.serving.metrics import BoundMetrics
from broadsheet.serving.places import Places


def _bound(default: int, explanation: str) -> Any:
    """Return a dataclass field; `Any`, because the dataclass turns it into a number. A default of 0 may stay 0."""
    return field(default=default, metadata={"help": explanation, "least": min(default, 1)})


@dataclass(frozen=True, slots=True, kw_only=True)
class CallBounds:
    """Bounds of one member's server; a field's `help` says what it counts.

    The bounds per connection are large, because a member forwards requests to each other member over one connection.
    """

    calls_max: int = _bound(16_384, "Calls under way.")
    calls_per_connection_max: int = _bound(4_096, "Calls under way on one connection.")
    calls_per_caller_max: int = _bound(
        0,
        "Calls under way of one caller, by the subject of its token or certificate, else by its host; "
        "0: half of --calls-max.",
    )
    streams_max: int = _bound(4_096, "Calls under way whose requests or answers are streams.")
    streams_per_connection_max: int = _bound(1_024, "The same on one connection.")
    streams_per_caller_max: int = _bound(
        0, "The same of streams of one caller; 0: half of --streams-max."
    )
    public_calls_max: int = _bound(
        1_024, "Calls under way of services that need no token: health and reflection."
    )
    public_calls_per_connection_max: int = _bound(64, "The same on one connection.")
    unread_calls_max: int = _bound(
        4_096, "Calls whose request has not arrived; a further one takes the place of the oldest."
    )


class CallLimits:
    """The admission of calls; metrics are computed at collection, so that calls do not pay for them."""

    def __init__(self, bounds: CallBounds, registry: CollectorRegistry | None = None) -> None:
        """Create limits with nothing in use.

        Args:
            bounds: What calls may take.
            registry: Shows the use; None: nothing does.
        """
        server = "the member"
        self._calls = Places(bounds, "calls_max", "calls_per_connection_max", server=server)
        self._streams = Places(bounds, "streams_max", "streams_per_connection_max", server=server)
        self._public = Places(
            bounds, "public_calls_max", "public_calls_per_connection_max", server=server
        )
        self._calls_of = Places(bounds, "calls_max", "calls_per_caller_max", server=server)
        self._streams_of = Places(bounds, "streams_max", "streams_per_caller_max", server=server)
        if registry is not None:
            registry.register(
                BoundMetrics(
                    "broadsheet_member", bounds, in_use=self._in_use, refused=self._refused
                )
            )

    def taken(
        self, connection: str, *, streams: bool, public: bool = False
    ) -> AbstractContextManager[None]:
        """Return the block during which a call holds its places.

        Args:
            connection: Whose call it is.
            streams: Whether its requests or answers are a stream.
            public: Whether anybody may make it; such calls do not take the places of others.

        Entering the block raises BoundExceededError if all places are taken.
        """
        if public:
            return self._public.taken(connection)
        return self._taken_by_stream(connection) if streams else self._calls.taken(connection)

    def shared(self, caller: str, *, streams: bool) -> AbstractContextManager[None]:
        """Return the block during which a call holds a place of its caller's share, once the caller is known.

        Args:
            caller: Subject of its credentials, or its host.
            streams: Whether its requests or answers are a stream.

        Entering the block raises BoundExceededError if the caller has all that it may have.
        """
        return (self._streams_of if streams else self._calls_of).taken(caller)

    @contextmanager
    def _taken_by_stream(self, connection: str) -> Iterator[None]:
        with self._calls.taken(connection), self._streams.taken(connection):
            yield

    def _in_use(self) -> dict[str, int]:
        return {each.name: each.in_use for each in (self._calls, self._streams, self._public)}

    def _refused(self) -> dict[str, int]:
        whole = (self._calls, self._streams, self._public)
        counts = {name: each.refused[name] for each in whole for name in (each.name, each.each)}
        shares = (self._calls_of, self._streams_of)
        return counts | {each.each: each.refused[each.each] for each in shares}
