"""What an attacker may try against a member and a broker; docs/security.md has a line for each."""

from __future__ import annotations

import asyncio
import random
import resource
import socket
from base64 import b64encode
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from broadsheet.allocator.etcd.client import EtcdClient
from broadsheet.broker.config import BrokerConfig
from broadsheet.consumer.client import ShardClient
from broadsheet.embedded.broker import EmbeddedBroker
from broadsheet.embedded.etcd import EmbeddedEtcdProcess
from broadsheet.journals.client import JournalClient
from broadsheet.runtime.errors import RpcFailedError
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.security.auth import LEEWAY_SECONDS, BearerAuth, Capability, Claims, KeyedAuth
from broadsheet.security.errors import NotAuthorizedError, UnauthenticatedError
from broadsheet.wire.errors import ApplyConflictError
from broadsheet.wire.labels import label_set, selector
from tests.support.members import (
    Cluster,
    Producer,
    create_journals,
    shard,
    upserts,
    wait_for_primaries,
)
from tests.support.rpc_table import NO_TOKEN, Needs, rpc_table

pytestmark = pytest.mark.etcd

KEY = b"a key of members and brokers, long enough to be found"
KEYS = b64encode(KEY).decode()
AUTH = KeyedAuth(KEYS)
ALL = AUTH.metadata(Claims(capability=Capability.ALL))
SOURCE, OUTPUT = "test/source", "test/output"
SHARD = "shard-1"
BROKER_SERVICES = (
    "protocol.Journal",
    "broadsheet.v1.AppendService",
    "broadsheet.v1.FragmentService",
)
CALL_SECONDS = 60.0
IDLE_CONNECTIONS = 1_000
FILES_OF_OTHERS = 1_000
"""Open files that are left for all else in the process."""
PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
EMPTY_SETTINGS = b"\x00\x00\x00\x04\x00\x00\x00\x00\x00"
STRANGERS_CALLS = 2_000
FLOODING_CONNECTIONS = 16
FLOOD_CALLS = 1_000
"""Calls of strangers that each server must have refused."""
FLOOD_SECONDS_MAX = 240.0


@dataclass(frozen=True, slots=True)
class _Place:
    """A member and a broker with keys."""

    member: str
    broker: str
    cluster: Cluster


@pytest.fixture
async def place(
    etcd_server: EmbeddedEtcdProcess, etcd_root: str, tmp_path: Path
) -> AsyncIterator[_Place]:
    """Yield the servers; all that they keep is in the test's directory."""
    config = BrokerConfig(data_dir=tmp_path / "broker", auth_keys=KEYS)
    async with EmbeddedBroker(tmp_path, config=config) as broker:
        async with JournalClient(broker.address, auth=AUTH) as journals:
            await create_journals(journals, SOURCE, OUTPUT)
        (tmp_path / "stores").mkdir()
        cluster = Cluster(
            etcd_endpoint=etcd_server.endpoint,
            broker_address=broker.address,
            root=etcd_root,
            directory=tmp_path / "stores",
            output=OUTPUT,
            settings={
                "auth_keys": KEYS,
                "broker_auth_keys": KEYS,
                "state_dir": str(tmp_path / "state"),
            },
        )
        async with cluster.member("a") as service:
            yield _Place(service.address, broker.address, cluster)


async def _serves(place: _Place) -> None:
    """Check that those with credentials are served."""
    async with ShardClient(place.member, auth=AUTH) as shards:
        await shards.list()
    async with JournalClient(place.broker, auth=AUTH) as journals:
        await journals.list()


def _channel(address: str, *options: tuple[str, int]) -> grpc.aio.Channel:
    return grpc.aio.insecure_channel(address.removeprefix("http://"), options=options)


# Replayed.


async def test_a_captured_token_opens_what_its_request_needed(place: _Place) -> None:
    """Plan: take the token of one request from the wire, and use it for others. A client signs for what it asks alone,
    and hops likewise, so that a token is worth no more than the request that it came with.
    """
    narrow = Claims(capability=Capability.READ, selector=selector(label_set(("id", SHARD))))
    captured = BearerAuth(AUTH.sign(narrow))
    async with ShardClient(place.member, auth=AUTH) as shards:
        await shards.apply(upserts(shard(SHARD, SOURCE), shard("shard-2", SOURCE)))

    async with ShardClient(place.member, auth=captured) as shards:
        await shards.get_hints(SHARD)
        with pytest.raises(Exception, match="does not exist"):
            await shards.get_hints("shard-2")
        for attempt in (
            shards.list(),
            shards.unassign([SHARD]),
            shards.apply(upserts(shard("x123"))),
        ):
            with pytest.raises(NotAuthorizedError):
                await attempt
    async with JournalClient(place.broker, auth=captured) as journals:
        with pytest.raises(NotAuthorizedError):
            await journals.append(SOURCE, b"x")


async def test_a_token_is_worth_nothing_after_its_end(place: _Place) -> None:
    """Also with the tolerance between clocks."""
    ended = datetime.now(UTC) - timedelta(seconds=LEEWAY_SECONDS + 1)
    late = BearerAuth(AUTH.sign(Claims(capability=Capability.ALL, expires_at=ended)))
    async with ShardClient(place.member, auth=late) as shards:
        with pytest.raises(UnauthenticatedError, match="expired"):
            await shards.list()
    async with JournalClient(place.broker, auth=late) as journals:
        with pytest.raises(UnauthenticatedError, match="expired"):
            await journals.list()


async def test_a_change_that_is_sent_again_is_refused(place: _Place) -> None:
    """A change names the revision that it is of, so that it cannot undo what came after it."""
    change = upserts(shard(SHARD, SOURCE))
    async with ShardClient(place.member, auth=AUTH) as shards:
        await shards.apply(change)
        with pytest.raises(ApplyConflictError):
            await shards.apply(change)


# Malformed.


def _messages(needs: Needs, rng: random.Random) -> Iterator[bytes]:
    """Yield messages that no client sends: torn, random, and fields of random bytes."""
    yield b"\xff\xff"
    yield b"\x0a\xff\xff\xff\xff\x0f"
    yield rng.randbytes(1000)
    for tag in range(1, 8):
        # A field of bytes, which may be a text, a message or a packed list.
        yield bytes([tag << 3 | 2, 40]) + rng.randbytes(40)
        yield bytes([tag << 3]) + b"\xff" * 9 + b"\x01"
    yield needs.empty_request().SerializeToString()


async def _refused(channel: grpc.aio.Channel, needs: Needs, message: bytes) -> grpc.StatusCode:
    """Return the status of a call with raw bytes."""
    method = needs.descriptor
    kind = {
        (False, False): channel.unary_unary,
        (False, True): channel.unary_stream,
        (True, False): channel.stream_unary,
        (True, True): channel.stream_stream,
    }[method.client_streaming, method.server_streaming]
    make: Any = kind(f"/{needs.method}")
    metadata = () if needs.needs == NO_TOKEN else ALL
    sent = iter([message]) if method.client_streaming else message
    call = make(sent, metadata=metadata, timeout=CALL_SECONDS)
    try:
        if not method.server_streaming:
            await call
        elif await call.read() is not grpc.aio.EOF:
            call.cancel()
            return grpc.StatusCode.OK
    except grpc.aio.AioRpcError as error:
        return error.code()
    return await call.code()  # type: ignore[no-any-return]


async def test_malformed_messages_are_refused_by_every_method(place: _Place) -> None:
    """Plan: bytes that are no message, and messages of nonsense, to every method of both servers, with every right.
    None may be answered as an error of ours, be logged as one, or end the server.
    """
    rng = random.Random(1)
    wrong: Counter[str] = Counter()
    with capture_logs() as events:
        for address, is_broker in ((place.member, False), (place.broker, True)):
            async with _channel(address) as channel:
                for needs in rpc_table().values():
                    if (needs.service in BROKER_SERVICES) is not is_broker or needs.is_standard:
                        continue
                    for message in _messages(needs, rng):
                        code = await _refused(channel, needs, message)
                        # gRPC itself answers INTERNAL for a message of a stream that cannot be parsed.
                        is_stream = needs.descriptor.client_streaming
                        if code is grpc.StatusCode.INTERNAL and not is_stream:
                            wrong[needs.method] += 1

    assert wrong == {}
    assert [event for event in events if event["event"] == "rpc.failed"] == []
    await _serves(place)


# Oversized, slow, unauthenticated.


async def test_oversized_requests_and_tokens_are_refused(place: _Place) -> None:
    """Neither is read as a whole, and others are served meanwhile."""
    async with _channel(place.member) as channel:
        call: Any = channel.unary_unary("/consumer.Shard/List")
        with pytest.raises(grpc.aio.AioRpcError) as large:
            await call(b"\x00" * (5 << 20), metadata=ALL, timeout=CALL_SECONDS)
        with pytest.raises(grpc.aio.AioRpcError) as wordy:
            token = (("authorization", "Bearer " + "a" * 100_000),)
            await call(b"", metadata=token, timeout=CALL_SECONDS)

    assert large.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert wordy.value.code() in (
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.UNAUTHENTICATED,
    )
    await _serves(place)


@pytest.fixture
def connections() -> Iterator[int]:
    """Yield how many connections a test may open to each of two servers of this process, with both of their ends."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = FILES_OF_OTHERS + 4 * IDLE_CONNECTIONS
    raised = max(soft, wanted if hard == resource.RLIM_INFINITY else min(hard, wanted))
    resource.setrlimit(resource.RLIMIT_NOFILE, (raised, hard))
    try:
        yield min(IDLE_CONNECTIONS, (raised - FILES_OF_OTHERS) // 4)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


async def test_connections_that_say_nothing_hold_up_nobody(place: _Place, connections: int) -> None:
    """Plan: a thousand connections to each server that are opened and left so: after nothing, in the middle of HTTP/2's
    first bytes, or after all of them.
    """
    begins = (b"", PREFACE[:16], PREFACE + EMPTY_SETTINGS)
    with ExitStack() as stack:
        for address in (place.member, place.broker):
            host, _, port = address.removeprefix("http://").rpartition(":")
            for number in range(connections):
                opened = stack.enter_context(socket.create_connection((host, int(port))))
                opened.sendall(begins[number % len(begins)])
                if number % 64 == 0:
                    # The servers, which are of this thread, accept.
                    await asyncio.sleep(0)
        await _serves(place)
        await _serves(place)


async def test_strangers_who_call_and_call_hold_up_nobody(place: _Place) -> None:
    """Plan: thousands of calls without a token at once, with large messages that are never parsed. Those with a token
    are served among them, and each stranger is refused.
    """
    message = b"\x0a\x02ab" * 1000
    async with _channel(place.member) as channel, ShardClient(place.member, auth=AUTH) as shards:
        make: Any = channel.unary_unary("/consumer.Shard/Apply")

        async def attempt() -> grpc.StatusCode:
            return await make(message, timeout=CALL_SECONDS).code()  # type: ignore[no-any-return]

        async with TaskGroup() as group:
            attempts = [
                group.start_soon(attempt(), name=f"stranger {number}")
                for number in range(STRANGERS_CALLS)
            ]
            await shards.list()
        codes = Counter(each.result() for each in attempts)

    # Beyond the bounds of a connection, strangers are refused even before they are asked who they are; and of a call
    # that ends while it is written, gRPC may lose the status.
    refusals = {
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.CANCELLED,
    }
    assert codes.keys() <= refusals
    assert codes[grpc.StatusCode.UNAUTHENTICATED] > 0


async def test_steady_flood_of_strangers_leaves_callers_served(place: _Place) -> None:
    """Plan: strangers on connections of their own call both servers again and again, without a token or with a forged
    one, and never wait. Those with a token are served by both as long as it goes on, and no stranger is.
    """
    forged = (
        (
            "authorization",
            "Bearer "
            + KeyedAuth(b64encode(b"x" * 32).decode()).sign(Claims(capability=Capability.ALL)),
        ),
    )
    codes: dict[str, Counter[grpc.StatusCode]] = {}
    is_over = asyncio.Event()

    async def stranger(address: str, method: str, metadata: tuple[tuple[str, str], ...]) -> None:
        counted = codes.setdefault(method, Counter())
        async with _channel(address, ("grpc.use_local_subchannel_pool", 1)) as channel:
            make: Any = channel.unary_unary(method)
            while not is_over.is_set():
                counted[await make(b"", metadata=metadata, timeout=CALL_SECONDS).code()] += 1

    methods = {"/consumer.Shard/Apply": place.member, "/protocol.Journal/Apply": place.broker}
    served = 0
    async with TaskGroup() as group:
        for method, address in methods.items():
            for number in range(FLOODING_CONNECTIONS):
                metadata = forged if number % 2 else ()
                group.start_soon(stranger(address, method, metadata), name=f"stranger {number}")
        async with asyncio.timeout(FLOOD_SECONDS_MAX):
            while (
                len(codes) < len(methods) or min(map(Counter.total, codes.values())) < FLOOD_CALLS
            ):
                await _serves(place)
                served += 1
        is_over.set()

    assert served
    assert {method: set(counted) for method, counted in codes.items()} == {
        method: {grpc.StatusCode.UNAUTHENTICATED} for method in methods
    }


# Path tricks.


def _files(directory: Path) -> set[Path]:
    return {path for path in directory.rglob("*") if path.is_file() or path.is_symlink()}


async def test_names_that_lead_elsewhere_make_no_file_there(place: _Place, tmp_path: Path) -> None:
    """Names of journals and shards may have dots and slashes, as Gazette's may; no file may be made by them."""
    names = ["../../escape/one", "a/b=c%2e%2e/d", "....", "..%2f..%2fescape"]
    before = _files(tmp_path)
    async with JournalClient(place.broker, auth=AUTH) as journals:
        await create_journals(journals, *names)
        for name in names:
            await journals.append(name, b"x\n")
        for entry in ("../journals", "..", "/etc", "a/../../b", ".", ""):
            with pytest.raises(RpcFailedError, match=r"there is no|expected"):
                await journals.purge_quarantine(entry)
    new = {path.relative_to(tmp_path).parts for path in _files(tmp_path) - before}

    assert new
    assert {parts[0] for parts in new} == {"broker"}
    assert not any("escape" in part or ".." in part for parts in new for part in parts)
    assert not (tmp_path.parent / "escape").exists()


# A stolen directory, or a copy of what etcd holds.


async def test_nothing_that_is_kept_has_a_key_or_a_token(
    place: _Place, etcd: EtcdClient, tmp_path: Path
) -> None:
    """Plan: a shard reads, writes and commits under keys. Whoever steals the directories of broker, member and store, a
    copy of etcd's keys, or the logs, has what was published, and no credentials.
    """
    with capture_logs() as events:
        async with JournalClient(place.broker, auth=AUTH) as journals:
            end = await Producer(journals).publish(SOURCE, ["a", "b"])
            async with ShardClient(place.member, auth=AUTH) as shards:
                await shards.apply(upserts(shard(SHARD, SOURCE)))
                await wait_for_primaries(shards, SHARD, timeout_seconds=300)
                await shards.wait_read_through(SHARD, {SOURCE: end}, timeout_seconds=300)
    found = await etcd.get_range(b"\x00", b"\x00")
    kept = {str(path): path.read_bytes() for path in _files(tmp_path)}
    kept |= {str(kv.key): kv.value for kv in found.kvs}
    kept["logs"] = repr(events).encode()
    secrets = (KEY, KEYS.encode(), b64encode(b'{"alg":').rstrip(b"=")[:8], b"Bearer")

    assert len(kept) > 10
    assert any(b'"key"' in content for content in kept.values()), "published content is there"
    leaked = {name for name, content in kept.items() if any(each in content for each in secrets)}
    assert leaked == set()
