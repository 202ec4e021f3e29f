"""Clients that know several addresses: the death of one of them is passed over within the request."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import pytest
from click.testing import CliRunner

from broadsheet.cli.main import main
from broadsheet.consumer.client import AllocationClient, ShardClient
from broadsheet.consumer.client.endpoints import LEARNED_MAX, KnownEndpoints
from broadsheet.journals.client import JournalClient
from broadsheet.runtime.errors import EndpointError, ValidationError
from broadsheet.security.endpoints import parse_endpoints
from tests.support.members import Cluster, client_of, shard, upserts, wait_for_primaries
from tests.support.tcp_proxy import TcpProxy

pytestmark = pytest.mark.etcd

SOURCE = "test/source"


@pytest.fixture
def nobody() -> str:
    """An address at which nobody listens."""
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{unused.getsockname()[1]}"


class _Dying(grpc.GenericRpcHandler):
    """Gets requests of any kind, and goes away in the middle of each."""

    def __init__(self) -> None:
        self.requests = 0

    def service(self, _: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes]:
        """Return what answers a request as gRPC does for a broken connection."""
        return grpc.unary_unary_rpc_method_handler(self._die)

    async def _die(self, _: bytes, context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        self.requests += 1
        await context.abort(grpc.StatusCode.UNAVAILABLE, "Socket closed")
        raise AssertionError("abort raises")


@asynccontextmanager
async def _dying() -> AsyncIterator[tuple[str, _Dying]]:
    server, handler = grpc.aio.server(), _Dying()
    server.add_generic_rpc_handlers((handler,))
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    try:
        yield f"http://127.0.0.1:{port}", handler
    finally:
        await server.stop(None)


async def test_dead_address_is_passed_over_once(cluster: Cluster, nobody: str) -> None:
    """Requests that read and such that change, of each client; the living member is asked first from then on."""
    told: list[EndpointError] = []
    async with cluster.member("a") as service:
        both = f"{nobody}, {service.address}"
        async with ShardClient(both, on_passed_over=told.append) as client:
            await client.apply(upserts(shard("shard-1")))
            listed = await client.list()
            await wait_for_primaries(client, "shard-1")  # So there is a leader, who plans.
        async with AllocationClient([nobody, service.address]) as allocation:
            await allocation.plan()

    assert [each.spec.id for each in listed.shards] == ["shard-1"]
    assert [error.address for error in told] == [nobody]


async def test_member_that_was_learned_of_is_asked_when_the_only_address_dies(
    cluster: Cluster,
) -> None:
    """Whoever was told of one member outlives it: its answers named the others."""
    async with cluster.member("b") as b:
        async with cluster.member("a") as a:
            client = client_of(a)
            await client.__aenter__()
            await client.apply(upserts(*(shard(f"shard-{number}") for number in range(4))))
            await wait_for_primaries(client, *(f"shard-{number}" for number in range(4)))
        try:
            assert len((await client.list()).shards) == 4
            assert client.address == b.address
        finally:
            await client.__aexit__(None, None, None)


async def test_change_that_a_dying_member_may_have_made_is_not_made_twice(
    cluster: Cluster,
) -> None:
    """A second Apply could find its own first and report a conflict; what only reads is asked of another."""
    async with cluster.member("a") as service, _dying() as (dying, handler):
        async with ShardClient(f"{dying},{service.address}") as client:
            with pytest.raises(EndpointError, match="Socket closed"):
                await client.apply(upserts(shard("shard-1")))
            assert handler.requests == 1
            assert not (await client.list()).shards
            await client.apply(upserts(shard("shard-1")))

        assert handler.requests == 2


async def test_member_that_falls_silent_on_an_open_connection_is_passed_over(
    cluster: Cluster,
) -> None:
    """A member is stopped, or its packets are dropped: its connection stays, and takes requests without an answer. What
    reads is asked of another within its deadline; what changes something fails, and the next goes to another.
    """
    told: list[EndpointError] = []
    async with (
        cluster.member("a") as a,
        cluster.member("b") as b,
        TcpProxy(a.address.removeprefix("http://")) as proxy,
    ):
        async with ShardClient(
            f"{proxy.endpoint},{b.address}", timeout_seconds=60, on_passed_over=told.append
        ) as client:
            await client.list()
            assert client.address == proxy.endpoint
            proxy.freeze()
            await client.list()
            assert client.address == b.address
            assert [error.address for error in told] == [proxy.endpoint]
            assert "no answer" in told[0].detail

        proxy.thaw()
        async with ShardClient(f"{proxy.endpoint},{b.address}", timeout_seconds=1) as client:
            await client.list()
            proxy.freeze()
            with pytest.raises(TimeoutError):
                await client.apply(upserts(shard("shard-1")))
            assert client.address == b.address


async def test_error_names_all_addresses_that_were_tried(nobody: str) -> None:
    """Nobody is there at all: one error, with each address, and gRPC's reason."""
    other = nobody.replace("127.0.0.1", "localhost")
    async with ShardClient([nobody, other]) as client:
        with pytest.raises(EndpointError, match=f"cannot reach {nobody}, {other}: .*refused"):
            await client.list()


async def test_journal_client_passes_a_dead_broker_over(cluster: Cluster, nobody: str) -> None:
    """Within the patience of one request, and then for good."""
    async with JournalClient(f"{nobody},{cluster.broker_address}") as journals:
        for _ in range(2):
            names = [each.spec.name for each in (await journals.list()).journals]
            assert cluster.output in names


async def test_command_says_in_one_line_whom_it_asks(cluster: Cluster, nobody: str) -> None:
    """A person must see that an address is of no use any more, and that the answer is another member's."""
    async with cluster.member("a") as service:
        printed = await asyncio.to_thread(
            CliRunner().invoke,
            main,
            ["shards", "list"],
            env={"CONSUMER_ADDRESS": f"{nobody},{service.address}"},
        )

    assert printed.exit_code == 0, printed.output
    [line] = [line for line in printed.stderr.splitlines() if nobody in line]
    assert line.endswith("asking another member")


def test_addresses_are_checked_and_told_apart() -> None:
    """Blanks and repetitions are harmless; an address among others that is none is named."""
    assert parse_endpoints(" http://a:1, b:2,http://a:1,") == ("http://a:1", "b:2")
    with pytest.raises(ValidationError, match="got none"):
        parse_endpoints(" , ")
    with pytest.raises(ValidationError, match="ftp://b"):
        parse_endpoints("http://a:1,ftp://b")


def test_each_known_member_has_its_turn_when_those_before_fall_silent() -> None:
    """Two stopped members must not be asked in turn for ever while a third would answer."""
    known = KnownEndpoints(("http://a:1", "http://b:1"))
    known.learn(["http://c:1"])

    asked = []
    for _ in range(4):
        asked.append(known.current)
        known.fell_silent(known.current)

    assert asked == ["http://a:1", "http://b:1", "http://c:1", "http://a:1"]
    known.fell_silent("http://c:1")
    assert known.current == "http://b:1"


def test_learned_members_are_a_bounded_reserve() -> None:
    """A hostile or huge answer costs no memory, and what is no address is never dialled."""
    known = KnownEndpoints(("http://a:1",))

    known.learn(["", "ftp://x", "http://a:1", *(f"http://m:{port}" for port in range(1, 100))])

    assert known.in_turn()[0] == "http://a:1"
    assert len(known.in_turn()) == 1 + LEARNED_MAX
    # A list names few members very often.
    known.learn(["http://m:1", "http://n:1", "http://m:1", "http://a:1"] * 1_000)
    assert known.in_turn() == ("http://a:1", "http://m:1", "http://n:1")
    known.answered("http://m:3")
    assert known.in_turn()[:2] == ("http://m:3", "http://a:1")


def test_members_without_tls_are_no_reserve_of_a_client_that_was_given_tls() -> None:
    """Its tokens would be readable on the way to them. A client of both kinds takes both."""
    known = KnownEndpoints(("https://a:1",))
    known.learn(["http://b:1", "https://c:1", "unix:///run/d", "e:1"])
    assert known.in_turn() == ("https://a:1", "https://c:1")

    mixed = KnownEndpoints(("https://a:1", "http://b:1"))
    mixed.learn(["http://c:1"])
    assert mixed.in_turn() == ("https://a:1", "http://b:1", "http://c:1")
