"""The route cache's bounds, and which member is asked."""

from __future__ import annotations

import grpc
import pytest

from broadsheet.journals.channels import ChannelCache
from broadsheet.journals.request_errors import error_of_rpc
from broadsheet.journals.route_cache import RouteCache, choose_endpoint
from broadsheet.journals.transport import JournalTransport, TransportPolicy
from broadsheet.runtime.clock import SystemClock
from broadsheet.runtime.errors import EndpointError, RpcFailedError
from broadsheet.security.auth import NoAuth
from broadsheet.wire.journal_pb2 import ProcessSpec, Route


class ManualClock:
    """A clock that stands still until told."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic_seconds(self) -> float:
        """Return the time set."""
        return self.now

    def wall_seconds(self) -> float:
        """Return the time set."""
        return self.now


def _route(*members: str, primary: int = 0) -> Route:
    return Route(
        members=[ProcessSpec.ID(zone=member, suffix="broker") for member in members],
        endpoints=[f"http://{member}:80" for member in members],
        primary=primary,
    )


def test_least_recently_used_route_goes_first() -> None:
    """The cache is bounded however many journals are touched."""
    routes = RouteCache(2, 60)
    routes.update("one", _route("a"))
    routes.update("two", _route("a"))

    assert routes.route_of("one") is not None
    routes.update("three", _route("a"))

    assert routes.route_of("two") is None
    assert routes.route_of("one") is not None


def test_route_is_forgotten_at_its_age() -> None:
    """Watchless clients must ask again now and then."""
    clock = ManualClock()
    routes = RouteCache(2, 60, clock=clock)
    routes.update("one", _route("a"))

    clock.now = 59.9
    assert routes.route_of("one") is not None
    clock.now = 60.0
    assert routes.route_of("one") is None


@pytest.mark.parametrize(
    "useless",
    [None, Route(primary=-1), Route(members=[ProcessSpec.ID(zone="a", suffix="broker")])],
)
def test_route_without_members_or_endpoints_forgets(useless: Route | None) -> None:
    """An answer that names nobody makes the old route wrong."""
    routes = RouteCache(2, 60)
    routes.update("one", _route("a"))

    routes.update("one", useless)

    assert routes.route_of("one") is None


def test_cache_of_size_zero_keeps_nothing() -> None:
    """Size 0 is how caching is switched off."""
    routes = RouteCache(0, 60)

    routes.update("one", _route("a"))

    assert routes.route_of("one") is None


def test_append_goes_to_the_primary_or_the_default() -> None:
    """Only the primary takes appends; without one, any broker finds out better than we."""
    assert (
        choose_endpoint(
            _route("a", "b", primary=1), zone="a", primary=True, state_of=lambda _: None
        )
        == "http://b:80"
    )
    assert (
        choose_endpoint(_route("a", primary=-1), zone="a", primary=True, state_of=lambda _: None)
        == ""
    )
    assert choose_endpoint(None, zone="a", primary=True, state_of=lambda _: None) == ""


def test_read_prefers_zone_then_health_then_readiness() -> None:
    """Near is cheap, failing is slow, connected is fast: in this order."""
    route = _route("a", "b", "c")
    states = {
        "http://a:80": grpc.ChannelConnectivity.TRANSIENT_FAILURE,
        "http://c:80": grpc.ChannelConnectivity.READY,
    }

    def chosen(zone: str) -> str:
        return choose_endpoint(route, zone=zone, primary=False, state_of=states.get)

    assert chosen("b") == "http://b:80"
    assert chosen("a") == "http://a:80"
    assert chosen("elsewhere") == "http://c:80"


@pytest.mark.parametrize(
    ("address", "route", "asked"),
    [
        ("https://broker:1", "http://other:1", "https://broker:1"),
        ("https://broker:1", "https://other:1", "https://other:1"),
        ("http://broker:1", "http://other:1", "http://other:1"),
        ("http://broker:1", "https://other:1", "https://other:1"),
    ],
)
async def test_route_into_clear_text_is_not_followed_from_tls(
    address: str, route: str, asked: str
) -> None:
    """A token would be readable on the way; the broker whose address was given forwards."""
    routes = RouteCache(2, 60)
    members = [ProcessSpec.ID(zone="a", suffix="other")]
    routes.update("a/journal", Route(members=members, endpoints=[route], primary=0))
    clock = SystemClock()
    channels = ChannelCache(address, clock=clock)
    transport = JournalTransport(channels, routes, NoAuth(), TransportPolicy(), clock)
    try:
        assert transport.peer_for("a/journal", primary=True).endpoint == asked
    finally:
        await channels.close()


async def test_message_that_cannot_be_sent_is_an_unreachable_broker_whose_route_is_forgotten() -> (
    None
):
    """A broker crashed while an append was sent to it: gRPC says INTERNAL, which no server did. As another failure than
    an unreachable broker's it would end the primary whose append it is.
    """
    nothing = grpc.aio.Metadata()
    ours, theirs = (
        grpc.aio.AioRpcError(grpc.StatusCode.INTERNAL, nothing, nothing, details=detail)
        for detail in ("Internal error from Core", "store failed")
    )
    assert isinstance(error_of_rpc("http://a:80", ours), EndpointError)
    assert isinstance(error_of_rpc("http://a:80", theirs), RpcFailedError)
    routes, clock = RouteCache(2, 60), SystemClock()
    routes.update("one", _route("b"))
    channels = ChannelCache("http://a:80", clock=clock)
    transport = JournalTransport(channels, routes, NoAuth(), TransportPolicy(), clock)
    try:
        transport.note_failure("one", theirs)
        assert routes.route_of("one") is not None
        transport.note_failure("one", ours)
        assert routes.route_of("one") is None
    finally:
        await channels.close()
