"""Appends in one message of a stream of many, beside the call of their own that does the same at any broker."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from broadsheet.broker.config import BrokerConfig
from broadsheet.broker.server import Broker
from broadsheet.embedded.broker import EmbeddedBroker
from broadsheet.journals.append_stream import AppendStream
from broadsheet.journals.channels import ChannelCache
from broadsheet.journals.client import JournalClient
from broadsheet.journals.errors import (
    JournalNotAllowedError,
    JournalNotFoundError,
    PredecessorNotCommittedError,
    RegisterMismatchError,
    WrongAppendOffsetError,
)
from broadsheet.journals.pipelining import AppendToken, Pipelined
from broadsheet.journals.transport import CHUNK_BYTES, TransportPolicy
from broadsheet.journals.wire import APPEND_SERVICE
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.security.auth import Claims, ClientAuth, KeyedAuth
from broadsheet.security.errors import UnauthenticatedError
from broadsheet.wire import journal_pb2 as pb
from broadsheet.wire.appends_pb2 import AppendStreamRequest, AppendStreamResponse
from broadsheet.wire.labels import label_set, parse_selector
from tests.support.broker import journal_spec
from tests.support.eventually import DEADLINE_SECONDS, eventually
from tests.support.scripted_broker import ScriptedBroker, committed, received

KEYS = base64.b64encode(b"one key of some length, 32 bytes or more").decode()
OTHER_KEYS = base64.b64encode(b"another key of some length, 32 bytes or more").decode()


@asynccontextmanager
async def _client_of(
    address: str, auth: ClientAuth | None = None
) -> AsyncIterator[tuple[JournalClient, ChannelCache]]:
    """Open a client; yield its connections, too."""
    channels = ChannelCache(address)
    async with JournalClient(address, auth=auth, channels=channels) as client:
        yield client, channels


@pytest.fixture
def channels(broker: EmbeddedBroker) -> ChannelCache:
    """Return connections to the broker, which `journals` uses."""
    return ChannelCache(broker.address)


@pytest.fixture
async def journals(broker: EmbeddedBroker, channels: ChannelCache) -> AsyncIterator[JournalClient]:
    """Return a client of these connections."""
    async with JournalClient(broker.address, channels=channels) as client:
        yield client


class _Signer:
    """Signs by keys that may change."""

    def __init__(self, keys: str) -> None:
        self.auth = KeyedAuth(keys)

    def metadata(self, claims: Claims) -> tuple[tuple[str, str], ...]:
        """See `ClientAuth.metadata`."""
        return self.auth.metadata(claims)


async def _connected(client: JournalClient, channels: ChannelCache, *, streamed: bool) -> None:
    """Create a journal, and take the way away that is not to be taken."""
    await client.apply([pb.ApplyRequest.Change(upsert=journal_spec("test/one"))])
    bulk: Any = channels.bulk()
    if streamed:
        bulk.append = None
    else:
        bulk.append_stream = None


@pytest.mark.parametrize("streamed", [True, False])
async def test_answers_are_the_same_in_one_message_and_in_a_call(
    journals: JournalClient, channels: ChannelCache, streamed: bool
) -> None:
    """Plan: content, pieces, a barrier, registers, and every kind of refusal, over one way and over the other.

    The other way is taken away, so that none of this went over it.
    """
    await _connected(journals, channels, streamed=streamed)

    first = await journals.append("test/one;meta", [b"foo", b"", b"bar"])
    barrier = await journals.append("test/one", b"")
    fenced = await journals.append(
        "test/one",
        b"x" * CHUNK_BYTES,
        offset=6,
        check_registers=parse_selector("!author"),
        union_registers=label_set({"author": "me"}),
    )
    for error, arguments in (
        (RegisterMismatchError, {"check_registers": parse_selector("author=you")}),
        (WrongAppendOffsetError, {"offset": 3}),
    ):
        with pytest.raises(error):
            await journals.append("test/one", b"no", **arguments)
    with pytest.raises(JournalNotFoundError):
        await journals.append("test/two", b"no")

    assert (first.commit.begin, first.commit.end, first.total_chunks) == (0, 6, 2)
    assert (barrier.commit.begin, barrier.commit.end, barrier.total_chunks) == (6, 6, 1)
    assert (fenced.commit.end, fenced.registers) == (6 + CHUNK_BYTES, label_set({"author": "me"}))
    assert await journals.write_head("test/one") == 6 + CHUNK_BYTES


async def test_long_append_goes_in_one_message_where_the_client_says_so(
    journals: JournalClient,
    channels: ChannelCache,
) -> None:
    """Plan: 3 MB in pieces, by a client with the usual bound and by one with a larger. What is answered tells the way:
    chunks of a call, or one.
    """
    await _connected(journals, channels, streamed=False)
    pieces = [b"%07d\n" % number * 1000 for number in range(375)]

    async with JournalClient(
        journals.address, policy=TransportPolicy(whole_bytes_max=4 << 20)
    ) as client:
        await client.append("test/one", b"connects")
        whole = await client.append("test/one", pieces)
    chunked = await journals.append("test/one", pieces)

    assert whole.total_chunks == 2
    assert chunked.total_chunks > 10
    # A stream's appends are not summed.
    assert chunked.commit.HasField("sum")
    assert not whole.commit.HasField("sum")
    content = b"".join(pieces)
    async with journals.reader("test/one", offset=8, block=False) as reader:
        assert b"".join([span.content async for span in reader]) == content + content


async def test_a_broker_that_takes_no_streams_of_appends_gets_calls() -> None:
    """Plan: append twice to a broker of the protocol alone; the second time the connection is there already.

    Both land, each once, and the broker is known then.
    """
    landed: list[bytes] = []

    async def on_append(requests: AsyncIterator[pb.AppendRequest], _: object) -> pb.AppendResponse:
        content, whole = await received(requests)
        assert whole
        landed.append(content)
        return committed(0, len(content))

    async with (
        ScriptedBroker(on_append=on_append) as broker,
        _client_of(broker.address) as (client, channels),
    ):
        await client.append("abcd", b"one")
        assert channels.bulk().append_stream is not None
        await client.append("abcd", b"two")
        assert channels.bulk().append_stream is None

    assert landed == [b"one", b"two"]


@pytest.mark.parametrize("refusal", [grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.INTERNAL])
async def test_refusal_of_streams_leaves_no_append_in_doubt(refusal: grpc.StatusCode) -> None:
    """Plan: a broker refuses streams; a message that is written meanwhile makes gRPC say INTERNAL, and perhaps the
    whole call does. Why: the first append to a broker of Gazette's had an unknown outcome, once in five.
    """
    landed: list[bytes] = []

    async def on_append(requests: AsyncIterator[pb.AppendRequest], _: object) -> pb.AppendResponse:
        content, _whole = await received(requests)
        landed.append(content)
        return committed(0, len(content))

    async def refuse(requests: AsyncIterator[AppendStreamRequest], context: Any) -> None:
        async for request in requests:
            if request.appends:
                await context.abort(grpc.StatusCode.INTERNAL, "a write met the end of the call")
        await context.abort(refusal, "no streams")

    method = grpc.stream_stream_rpc_method_handler(
        refuse, AppendStreamRequest.FromString, AppendStreamResponse.SerializeToString
    )
    broker = ScriptedBroker(on_append=on_append)
    broker.add_handler(
        grpc.method_handlers_generic_handler(APPEND_SERVICE, {"AppendStream": method})
    )
    async with broker, _client_of(broker.address) as (client, channels):
        for content in (b"connects", b"one", b"two"):
            await client.append("abcd", content)
        is_refused_for_good = channels.bulk().append_stream is None

    assert landed == [b"connects", b"one", b"two"]
    assert is_refused_for_good == (refusal is grpc.StatusCode.UNIMPLEMENTED)


async def test_append_to_a_journal_that_is_only_read_is_refused(
    journals: JournalClient, channels: ChannelCache
) -> None:
    """Plan: append to a journal that is only read; it meets the same refusal as chunks do."""
    spec = journal_spec("test/read-only")
    spec.flags = pb.JournalSpec.O_RDONLY
    await journals.apply([pb.ApplyRequest.Change(upsert=spec)])
    bulk: Any = channels.bulk()
    bulk.append = None

    with pytest.raises(JournalNotAllowedError):
        await journals.append("test/read-only", b"no")


async def test_each_append_of_a_stream_is_judged_by_itself(
    journals: JournalClient, channels: ChannelCache
) -> None:
    """Plan: some hundred appends at once, one in ten of which is refused in one of several ways. The others land, each
    once, and the stream is still the same.
    """
    await _connected(journals, channels, streamed=True)
    await journals.apply([pb.ApplyRequest.Change(upsert=journal_spec("test/other"))])

    async def append(number: int) -> int | None:
        if number % 10 == 3:
            with pytest.raises(JournalNotFoundError):
                await journals.append("test/none", b"no")
            return None
        if number % 10 == 7:
            with pytest.raises(WrongAppendOffsetError):
                await journals.append("test/one", b"no", offset=1)
            return None
        journal = "test/one" if number % 2 else "test/other"
        return (await journals.append(journal, b"%03d\n" % number)).commit.begin

    begins = await asyncio.gather(*map(append, range(300)))

    for parity, journal in ((1, "test/one"), (0, "test/other")):
        landed = {
            begin: number
            for number, begin in enumerate(begins)
            if begin is not None and number % 2 == parity
        }
        content = b"".join(b"%03d\n" % landed[begin] for begin in sorted(landed))
        assert await journals.write_head(journal) == len(content) == 4 * len(landed)


class Silent:
    """A server of streams of appends that answers only when told to."""

    def __init__(self) -> None:
        self.taken: list[AppendStreamRequest.Append] = []
        self.messages = self.streams = 0
        self.abort = asyncio.Event()
        self.answers = False
        self._server = grpc.aio.server()

    async def __aenter__(self) -> AppendStream:
        stream = grpc.stream_stream_rpc_method_handler(
            self._serve,
            AppendStreamRequest.FromString,
            AppendStreamResponse.SerializeToString,
        )
        handler = grpc.method_handlers_generic_handler(APPEND_SERVICE, {"AppendStream": stream})
        self._server.add_generic_rpc_handlers((handler,))
        port = self._server.add_insecure_port("127.0.0.1:0")
        await self._server.start()
        self._channels = ChannelCache(f"http://127.0.0.1:{port}")
        found = self._channels.bulk().append_stream
        assert isinstance(found, AppendStream)
        return found

    async def __aexit__(self, *_: object) -> None:
        await self._channels.close()
        await self._server.stop(None)

    async def _serve(
        self, requests: AsyncIterator[AppendStreamRequest], context: Any
    ) -> AsyncIterator[AppendStreamResponse]:
        is_first = True
        async for request in requests:
            if not request.appends:
                return  # The question whether streams are taken.
            self.streams += is_first
            is_first = False
            self.messages += 1
            self.taken += request.appends
            for append in request.appends if self.answers else ():
                answer = AppendStreamResponse.Answer(number=append.number, append=committed(0, 1))
                yield AppendStreamResponse(answers=[answer])
            if len(self.taken) == 3:
                await self.abort.wait()
                await context.abort(grpc.StatusCode.ABORTED, "broken on purpose")


async def test_appends_that_are_queued_one_right_behind_the_other_share_a_message() -> None:
    """As a transaction's commit and its acknowledgement are: the second is queued in the loop's next turn."""
    silent = Silent()
    silent.answers = True
    async with silent as stream:
        await stream.start(AppendStreamRequest.Append(), timeout_seconds=20)
        silent.taken.clear()

        commit = stream.start(AppendStreamRequest.Append(), timeout_seconds=20)
        await asyncio.sleep(0)
        acknowledgement = stream.start(AppendStreamRequest.Append(), timeout_seconds=20)
        await commit
        await acknowledgement

        assert silent.messages == 2
        assert len(silent.taken) == 2


async def test_stream_that_breaks_fails_what_is_under_way_and_is_opened_anew() -> None:
    """Nobody knows which appends were done, whatever the stream's status seems to say; the next one finds another."""
    silent = Silent()
    async with silent as stream:
        calls = [stream.start(AppendStreamRequest.Append(), timeout_seconds=20) for _ in range(3)]
        calls[1].cancel()
        await eventually(lambda: len(silent.taken) == 3)
        silent.abort.set()

        for call in (calls[0], calls[2]):
            with pytest.raises(grpc.aio.AioRpcError, match="broken on purpose") as caught:
                await call
            assert caught.value.code() is grpc.StatusCode.UNAVAILABLE

        silent.answers = True
        answer = await stream.start(AppendStreamRequest.Append(), timeout_seconds=20)
        assert answer.commit.end == 1
        assert [append.number for append in silent.taken] == [1, 2, 3, 4]
        assert silent.streams == 2


async def test_overdue_append_breaks_a_stream_over_which_nothing_came() -> None:
    """A broker that died without a word must not hold up those that come next."""
    silent = Silent()
    async with silent as stream:
        waiting = stream.start(AppendStreamRequest.Append(), timeout_seconds=20)
        late = stream.start(AppendStreamRequest.Append(), timeout_seconds=0.05)
        await eventually(lambda: len(silent.taken) == 2)

        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await late
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await waiting
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE

        silent.answers = True
        await stream.start(AppendStreamRequest.Append(), timeout_seconds=20)
        assert silent.streams == 2


async def test_overdue_append_leaves_a_stream_alone_over_which_others_are_answered() -> None:
    """Its own journal may be slow; that is nothing to the others."""
    silent = Silent()
    async with silent as stream:
        late = stream.start(AppendStreamRequest.Append(), timeout_seconds=0.05)
        await eventually(lambda: len(silent.taken) == 1)
        silent.answers = True
        await stream.start(AppendStreamRequest.Append(), timeout_seconds=20)

        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await late
        assert caught.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED

        silent.taken.clear()
        await stream.start(AppendStreamRequest.Append(), timeout_seconds=20)
        assert silent.streams == 1


async def test_stream_that_is_closed_before_it_began_fails_its_appends() -> None:
    """Nobody may wait for what was never sent; an append that comes later opens a stream."""
    silent = Silent()
    async with silent as stream:
        unsent = stream.start(AppendStreamRequest.Append(), timeout_seconds=20)
        await stream.close()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await unsent
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE

        silent.answers = True
        await stream.start(AppendStreamRequest.Append(), timeout_seconds=20)
        assert len(silent.taken) == 1


async def test_streams_end_with_a_broker_that_stops(tmp_path: Path) -> None:
    """Plan: a stop that would wait for a minute; one append still waits for another's turn. It is answered, and the
    stream ends by itself.
    """
    config = BrokerConfig(data_dir=tmp_path, stop_grace_seconds=60)
    async with Broker(config) as broker, _client_of(broker.address) as (client, channels):
        await _connected(client, channels, streamed=True)
        sent: list[AppendToken] = []
        after = Pipelined(b"two", (AppendToken(client.address, b"one"),), sent.append)

        async def refused() -> None:
            with pytest.raises(PredecessorNotCommittedError, match="not known to have succeeded"):
                await client.append("test/one", b"2", in_turn=after)

        async with TaskGroup() as group:
            group.start_soon(refused(), name="refused")
            await eventually(lambda: sent)
            await client.append("test/one", b"", in_turn=Pipelined(b"behind it"))
            async with asyncio.timeout(DEADLINE_SECONDS):
                await broker.stop()


async def test_appends_of_one_stream_show_who_asks_each(tmp_path: Path) -> None:
    """Plan: a broker with keys; a client of these, and one of others. A token is of one append, not of the stream."""
    config = BrokerConfig(data_dir=tmp_path, auth_keys=KEYS)
    signer = _Signer(KEYS)
    async with Broker(config) as broker, _client_of(broker.address, signer) as (client, channels):
        await _connected(client, channels, streamed=True)
        assert (await client.append("test/one", b"one")).commit.end == 3
        signer.auth = KeyedAuth(OTHER_KEYS)
        with pytest.raises(UnauthenticatedError):
            await client.append("test/one", b"two")
        signer.auth = KeyedAuth(KEYS)
        assert (await client.append("test/one", b"three")).commit.begin == 3
