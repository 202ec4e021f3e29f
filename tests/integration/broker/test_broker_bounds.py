"""What strangers and stalled clients can take of a broker: they talk raw gRPC, and others must not notice."""

from __future__ import annotations

import asyncio
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import grpc
import pytest
from prometheus_client import CollectorRegistry

from broadsheet.broker.config import BrokerConfig
from broadsheet.broker.server import Broker
from broadsheet.journals.client import JournalClient
from broadsheet.security.auth import Capability, Claims, KeyedAuth
from broadsheet.wire.appends_pb2 import AppendStreamRequest, AppendStreamResponse
from broadsheet.wire.journal_pb2 import AppendRequest, ApplyRequest, ReadRequest, Status
from broadsheet.wire.journal_pb2_grpc import JournalStub
from tests.support.broker import append, broker_stub, journal_spec
from tests.support.eventually import eventually
from tests.support.stepping_clock import SteppingClock

if TYPE_CHECKING:
    from broadsheet.wire.journal_pb2_grpc import JournalAsyncStub

JOURNAL = "a/journal"
KEYS = b64encode(b"a key of the broker, 32 bytes or more").decode()
NARROW = [
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 64 << 10),
    ("grpc.use_local_subchannel_pool", 1),
]
"""Options of a client whose gRPC takes little before it is asked for."""
SOON_SECONDS = 20.0
"""What is not held up is over long before."""


@asynccontextmanager
async def _serving(config: BrokerConfig, **given: Any) -> AsyncIterator[tuple[Broker, Any]]:
    """Yield a broker with one journal, and a plain stub. `Any`: what `Broker` takes differs in type."""
    async with Broker(config, **given) as broker, broker_stub(broker.address) as stub:
        metadata = _token(Capability.APPLY) if config.auth_keys else ()
        change = ApplyRequest.Change(upsert=journal_spec(JOURNAL), expect_mod_revision=-1)
        await stub.Apply(ApplyRequest(changes=[change]), metadata=metadata)
        yield broker, stub


def _token(capability: Capability) -> tuple[tuple[str, str], ...]:
    return KeyedAuth(KEYS).metadata(Claims(capability=capability))


@asynccontextmanager
async def _stream(address: str) -> AsyncIterator[Any]:
    """Yield an open stream of appends on a connection of its own."""
    options = [("grpc.use_local_subchannel_pool", 1)]
    async with grpc.aio.insecure_channel(address.removeprefix("http://"), options) as channel:
        method = channel.stream_stream(
            "/broadsheet.v1.AppendService/AppendStream",
            request_serializer=AppendStreamRequest.SerializeToString,
            response_deserializer=AppendStreamResponse.FromString,
        )
        yield method()


def _append(
    number: int, name: bytes = b"", *after: bytes, metadata: tuple[tuple[str, str], ...] = ()
) -> AppendStreamRequest:
    request = AppendStreamRequest()
    request.appends.add(
        parameters=AppendRequest(journal=JOURNAL),
        content=b"x",
        name=name,
        after=after,
        number=number,
        metadata=dict(metadata),
    )
    return request


async def _code(call: Any, request: AppendStreamRequest) -> int:
    """Return the gRPC code of the answer to an append; 0 if it was done."""
    await call.write(request)
    answers = (await call.read()).answers
    return int(answers[0].code)


async def test_stranger_takes_no_turn(tmp_path: Path) -> None:
    """An append without a token gives its name a bad end, if it takes a turn before it is authorized: then whatever the
    owner of that name sends behind it is refused. Names of strangers must not be kept at all.
    """
    token = _token(Capability.APPEND)
    config = BrokerConfig(data_dir=tmp_path, auth_keys=KEYS)
    async with _serving(config) as (broker, _), _stream(broker.address) as stranger:
        refused = await _code(stranger, _append(1, b"name"))
        async with _stream(broker.address) as owner:
            first = await _code(owner, _append(1, b"name", metadata=token))
            second = await _code(owner, _append(2, b"", b"name", metadata=token))

    assert refused == grpc.StatusCode.UNAUTHENTICATED.value[0]
    assert (first, second) == (0, 0)


async def test_long_names_and_many_dependencies_are_refused(tmp_path: Path) -> None:
    """Names are kept for others to wait for, so 800 of 1 MiB each were 800 MiB; a million names in one message were
    half a minute without an answer to anyone.
    """
    async with _serving(BrokerConfig(data_dir=tmp_path)) as (broker, stub):
        async with _stream(broker.address) as call:
            long_name = await _code(call, _append(1, b"n" * 1000))
            long_after = await _code(call, _append(2, b"", b"n" * 1000))
            many_after = await _code(call, _append(3, b"", *(b"%d" % n for n in range(100))))
        async with _stream(broker.address) as call:
            await call.write(_append(4, b"", *(b"%d" % n for n in range(100_000))))
            ended = await call.code()
            detail = await call.details()
        done = await append(stub, JOURNAL, b"others go on")
        refused = broker.limits.refused()

    unknown = grpc.StatusCode.UNKNOWN
    assert {long_name, long_after, many_after} == {unknown.value[0]}
    assert ended == grpc.StatusCode.INVALID_ARGUMENT
    assert "fields at most" in detail
    assert done.status == Status.OK
    assert (refused["append_name_bytes_max"], refused["append_after_max"]) == (2, 1)


async def test_stalled_appenders_hold_up_none(tmp_path: Path) -> None:
    """300 appenders that stop after their header, or in the middle of their content, took all places of a journal:
    every other append to it waited until they were given up. A newcomer takes the place of the longest silent one.
    """
    config = BrokerConfig(
        data_dir=tmp_path, min_append_rate=0
    )  # They are never given up for their pace.
    async with _serving(config) as (_, stub):
        stalled = [stub.Append(timeout=60) for _ in range(300)]
        for number, call in enumerate(stalled):
            await call.write(AppendRequest(journal=JOURNAL))
            if number % 2:
                await call.write(AppendRequest(content=b"half"))
        async with asyncio.timeout(SOON_SECONDS):
            done = await append(stub, JOURNAL, b"mine")
        # Content that arrives late counts as a sign of life, so which of the first are cut off varies.
        cut_off = len(stalled) + 1 - config.bounds.appends_per_journal_max
        await eventually(lambda: sum(call.done() for call in stalled) == cut_off)
        details = [await call.details() for call in stalled if call.done()]
        for call in stalled:
            call.cancel()

    assert done.status == Status.OK
    assert (done.commit.begin, done.commit.end) == (0, 4), "half an append was written"
    assert all("others came" in (detail or "") for detail in details)


async def test_stalled_readers_share_bounded_bytes(tmp_path: Path) -> None:
    """Readers that take nothing hold what was read for them. Above the bound they get little at a time, others are
    served all the same, and those that stalled are cut off.
    """
    from broadsheet.broker.config import BrokerBounds
    from broadsheet.broker.limits import CHUNK_BYTES_LEAST, STALLED_SECONDS

    clock = SteppingClock(1_700_000_000.0)
    config = BrokerConfig(data_dir=tmp_path, bounds=BrokerBounds(readers_bytes_max=1 << 20))
    content = b"".join(b"%08d" % n for n in range(1 << 19))  # 4 MiB
    async with _serving(config, clock=clock) as (broker, stub):
        await append(
            stub, JOURNAL, *(content[at : at + (1 << 20)] for at in range(0, 1 << 22, 1 << 20))
        )
        level = broker.limits.reader_bytes.level
        address = broker.address.removeprefix("http://")
        async with grpc.aio.insecure_channel(address, NARROW) as channel:
            narrow: JournalAsyncStub = JournalStub(channel)
            stalled = [narrow.Read(ReadRequest(journal=JOURNAL)) for _ in range(20)]
            for call in stalled:
                await call.read()
            await eventually(
                lambda: broker.limits.readers.in_use == 20 and level.in_use >= level.bound
            )
            most = level.in_use
            got = await _read_all(stub)
            cut_before = level.refused
            clock.now_seconds += 2 * STALLED_SECONDS
            got_again = await _read_all(stub)
            cut = level.refused
            codes = [await _code_of_read(call) for call in stalled]
        await eventually(lambda: level.in_use == 0)

    assert got == got_again == content
    assert most <= level.bound + 20 * CHUNK_BYTES_LEAST
    assert (cut_before, cut > 0) == (0, True)
    assert grpc.StatusCode.RESOURCE_EXHAUSTED in codes


async def _read_all(stub: JournalAsyncStub) -> bytes:
    got = bytearray()
    async for message in stub.Read(ReadRequest(journal=JOURNAL), timeout=SOON_SECONDS):
        got += message.content
    return bytes(got)


async def _code_of_read(call: Any) -> Any:
    """Take all that is left of a read, and return how it ended."""
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code()
    return await call.code()


async def test_content_that_waits_for_others_gives_way(tmp_path: Path) -> None:
    """An append that comes after one which never comes keeps its content for seconds. Where streams hold all that they
    may, it is refused at once instead, having written nothing, and others are taken.
    """
    from broadsheet.broker.config import BrokerBounds

    config = BrokerConfig(data_dir=tmp_path, bounds=BrokerBounds(append_streams_bytes_max=2_000))
    async with (
        _serving(config) as (broker, _),
        _stream(broker.address) as waiting,
        _stream(broker.address) as other,
    ):
        await waiting.write(_append(1, b"", b"never"))
        await waiting.write(_append(2, b"", b"never"))
        await eventually(lambda: broker.limits.append_bytes.in_use > 1_024)
        code = await _code(other, _append(1))
        refused = (await waiting.read()).answers

    assert code == 0
    assert {each.code for each in refused} == {grpc.StatusCode.FAILED_PRECONDITION.value[0]}


@pytest.mark.parametrize(
    ("bound", "places"),
    [
        ("calls_per_connection_max", 3),
        ("calls_max", 3),
        ("calls_per_host_max", 3),
        ("readers_per_journal_max", 2),
        ("readers_max", 2),
    ],
)
async def test_places_are_bounded_and_given_back(tmp_path: Path, bound: str, places: int) -> None:
    """Who asks for one place too many is refused with the option that bounds it; a place is free after its call."""
    from broadsheet.broker.config import BrokerBounds

    bounds = BrokerBounds(**{"calls_per_host_max": 9, bound: places})
    config = BrokerConfig(data_dir=tmp_path, bounds=bounds)
    async with _serving(config) as (broker, stub):
        await append(stub, JOURNAL, b"content")
        request = ReadRequest(journal=JOURNAL, block=True)
        calls = [stub.Read(request) for _ in range(places)]
        for call in calls:
            await call.read()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Read(request).read()
        calls[0].cancel()
        await eventually(lambda: broker.limits.calls.in_use < places)
        served = await stub.Read(ReadRequest(journal=JOURNAL)).read()
        refused = broker.limits.refused()[bound]
        for call in calls:
            call.cancel()

    assert caught.value.code() == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert f"--{bound.replace('_', '-')}" in (caught.value.details() or "")
    assert (served.status, refused) == (Status.OK, 1)


async def test_large_requests_are_refused_before_they_are_parsed(tmp_path: Path) -> None:
    """Parsed messages take many times their length; a request without content has no use for a quarter of a MiB."""
    config = BrokerConfig(data_dir=tmp_path)
    async with _serving(config) as (broker, stub):
        request = ReadRequest(journal="a" * (1 << 20))
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await stub.Read(request).read()
        with pytest.raises(grpc.aio.AioRpcError) as caught_append:
            await append(stub, "a" * (1 << 20), b"content")
        refused = broker.limits.refused()["request_bytes_max"]

    assert "--request-bytes-max" in (caught.value.details() or "")
    assert "--request-bytes-max" in (caught_append.value.details() or "")
    assert refused == 2


async def test_metrics_tell_what_is_taken_of_each_bound(tmp_path: Path) -> None:
    """Operators see a bound before it is reached, and clients that were refused after."""
    from broadsheet.broker.metrics import show_bounds

    registry = CollectorRegistry()
    async with _serving(BrokerConfig(data_dir=tmp_path)) as (broker, stub):
        show_bounds(registry, broker.limits)
        async with JournalClient(broker.address) as client:
            await client.append(JOURNAL, b"content")
            call = stub.Read(ReadRequest(journal=JOURNAL, block=True))
            await call.read()
            readers = registry.get_sample_value(
                "broadsheet_broker_in_use", {"bound": "readers_max"}
            )
            call.cancel()

    labels = {"bound": "calls_per_connection_max"}
    assert readers == 1
    assert registry.get_sample_value("broadsheet_broker_bound", labels) == 4096
    assert registry.get_sample_value("broadsheet_broker_refused_total", labels) == 0
