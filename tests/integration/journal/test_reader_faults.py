"""The reader against a broker that breaks off, moves, refuses and lies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import grpc
import pytest

from broadsheet.journals.client import JournalClient, ReadSpan
from broadsheet.journals.errors import (
    JournalNotAllowedError,
    JournalNotFoundError,
    JournalProtocolError,
    JournalReplacedError,
    JournalSuspendedError,
)
from broadsheet.journals.guard import OffsetGuard, RememberedRead
from broadsheet.journals.reader import REFUSALS_MAX, Reader
from broadsheet.journals.transport import TransportPolicy
from broadsheet.runtime.errors import EndpointError
from broadsheet.security.errors import NotAuthorizedError
from broadsheet.wire import journal_pb2 as pb
from tests.support.scripted_broker import Context, ReadHandler, ScriptedBroker, header, metadata


async def _read_all(reader: Reader) -> list[ReadSpan]:
    return [span async for span in reader]


def _always(*responses: pb.ReadResponse) -> ReadHandler:
    async def answer(request: pb.ReadRequest, context: Context) -> AsyncIterator[pb.ReadResponse]:
        for response in responses:
            yield response

    return answer


def _refusal(status: pb.Status.ValueType) -> pb.ReadResponse:
    return pb.ReadResponse(status=status, header=header())


async def test_read_broken_in_midstream_resumes_at_first_undelivered_byte() -> None:
    """Errors, clean ends and cancellations by the broker: each byte is delivered once, in order."""
    attempts = 0

    async def answer(request: pb.ReadRequest, context: Context) -> AsyncIterator[pb.ReadResponse]:
        nonlocal attempts
        attempts += 1
        offset = request.offset
        yield metadata(offset, 0, 4)
        yield pb.ReadResponse(offset=offset, content=b"abcd"[offset : offset + 1])
        if attempts == 1:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "going away")
        if attempts == 2:
            await context.abort(grpc.StatusCode.CANCELLED, "cancelled by the broker")
        if attempts == 3:
            await context.abort(grpc.StatusCode.UNKNOWN, "store failed")

    async with ScriptedBroker(on_read=answer) as broker, JournalClient(broker.address) as client:
        spans = await _read_all(client.reader("abcd", end_offset=4))

    assert b"".join(span.content for span in spans) == b"abcd"
    assert [request.offset for request in broker.read_requests] == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("status", "kind"),
    [(pb.NOT_ALLOWED, JournalNotAllowedError), (pb.SUSPENDED, JournalSuspendedError)],
)
async def test_final_refusal_surfaces_at_once(
    status: pb.Status.ValueType, kind: type[Exception]
) -> None:
    """Asking again for ever would hide a mistake from its maker."""
    async with (
        ScriptedBroker(on_read=_always(_refusal(status))) as broker,
        JournalClient(broker.address) as client,
    ):
        with pytest.raises(kind, match="abcd"):
            await _read_all(client.reader("abcd"))

    assert len(broker.read_requests) == 1


async def test_unknown_journal_surfaces_after_a_few_attempts() -> None:
    """A journal just applied may be unknown for a moment; one that is misspelt must not wait for ever."""
    async with (
        ScriptedBroker(on_read=_always(_refusal(pb.JOURNAL_NOT_FOUND))) as broker,
        JournalClient(broker.address) as client,
    ):
        with pytest.raises(JournalNotFoundError):
            await _read_all(client.reader("abcd"))

    assert len(broker.read_requests) == REFUSALS_MAX + 1


async def test_passing_refusals_are_waited_out() -> None:
    """No broker yet, another broker, an empty end: the read starts as soon as somebody serves it."""
    script = [
        [_refusal(pb.JOURNAL_NOT_FOUND)],
        [_refusal(pb.INSUFFICIENT_JOURNAL_BROKERS)],
        [_refusal(pb.NOT_JOURNAL_BROKER)],
        [],
        [metadata(0, 0, 2), pb.ReadResponse(offset=0, content=b"ok")],
    ]

    async def answer(request: pb.ReadRequest, context: Context) -> AsyncIterator[pb.ReadResponse]:
        for response in script.pop(0):
            yield response

    async with ScriptedBroker(on_read=answer) as broker, JournalClient(broker.address) as client:
        spans = await _read_all(client.reader("abcd", end_offset=2))

    assert spans == [ReadSpan(0, b"ok")]


@pytest.mark.parametrize(
    ("responses", "told"),
    [
        ([metadata(3, 0, 9)], "expected 5 or more"),
        ([metadata(5, 0, 9), metadata(4, 0, 9)], "expected 5 or more"),
        ([metadata(5, 0, 9), pb.ReadResponse(offset=4, content=b"x")], "expected content in"),
        ([metadata(5, 0, 9), pb.ReadResponse(offset=5, content=b"12345")], "expected content in"),
        ([pb.ReadResponse(offset=5, content=b"x")], "metadata before content"),
        ([pb.ReadResponse(header=header())], "fragment"),
        ([_refusal(pb.PROPOSAL_MISMATCH)], "unexpected status PROPOSAL_MISMATCH"),
    ],
)
async def test_answer_against_the_protocol_delivers_nothing_and_surfaces(
    responses: list[pb.ReadResponse], told: str
) -> None:
    """A broker that lies about offsets must not make us deliver bytes twice, nor hang us for ever."""
    async with (
        ScriptedBroker(on_read=_always(*responses)) as broker,
        JournalClient(broker.address) as client,
    ):
        reader = client.reader("abcd", offset=5)
        with pytest.raises(JournalProtocolError, match=told):
            await _read_all(reader)

    assert reader.offset == 5


async def test_refused_credentials_surface_at_once() -> None:
    """Another attempt has the same token."""

    async def answer(request: pb.ReadRequest, context: Context) -> AsyncIterator[pb.ReadResponse]:
        await context.abort(grpc.StatusCode.PERMISSION_DENIED, "lacks READ")
        yield pb.ReadResponse()

    async with ScriptedBroker(on_read=answer) as broker, JournalClient(broker.address) as client:
        with pytest.raises(NotAuthorizedError, match="lacks READ"):
            await _read_all(client.reader("abcd"))


async def test_hole_is_jumped_once() -> None:
    """The first bytes after a hole say so."""
    chunks = [pb.ReadResponse(offset=7, content=b"ab"), pb.ReadResponse(offset=9, content=b"c")]
    async with (
        ScriptedBroker(on_read=_always(metadata(7, 7, 10), *chunks)) as broker,
        JournalClient(broker.address) as client,
    ):
        spans = await _read_all(client.reader("abcd", end_offset=10))

    assert spans == [ReadSpan(7, b"ab", jumped=True), ReadSpan(9, b"c")]


async def test_blocking_read_at_the_head_pins_the_head_before_it_waits() -> None:
    """Were the head taken again at each reconnection, bytes appended in between would be missed."""
    opened = 0

    async def answer(request: pb.ReadRequest, context: Context) -> AsyncIterator[pb.ReadResponse]:
        nonlocal opened
        opened += 1
        if request.metadata_only:
            yield pb.ReadResponse(
                status=pb.OFFSET_NOT_YET_AVAILABLE, header=header(), offset=40, write_head=40
            )
        elif opened == 2:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "restarting")
        else:
            yield metadata(request.offset, 0, 42)
            yield pb.ReadResponse(offset=request.offset, content=b"ab")

    async with (
        ScriptedBroker(on_read=answer) as broker,
        JournalClient(broker.address) as client,
        client.reader("abcd", offset=-1) as reader,
    ):
        span = await anext(reader)

    assert span == ReadSpan(40, b"ab")
    assert [request.offset for request in broker.read_requests] == [-1, 40, 40]


async def test_guarded_read_waits_out_a_replica_that_lags_and_a_broker_in_trouble() -> None:
    """Before it reads on, a guarded read looks at the write head. A replica that is behind, and a broker that fails for
    longer than the client's patience, pass: a blocking read gives up for neither.
    """
    heads = [3, 5]
    looks = 0

    async def answer(request: pb.ReadRequest, context: Context) -> AsyncIterator[pb.ReadResponse]:
        nonlocal looks
        if not request.metadata_only:
            yield metadata(request.offset, 0, 7)
            yield pb.ReadResponse(offset=request.offset, content=b"ab")
            return
        looks += 1
        if looks == 1:
            await context.abort(grpc.StatusCode.INTERNAL, "store failed")
        head = heads.pop(0)
        yield pb.ReadResponse(
            status=pb.OFFSET_NOT_YET_AVAILABLE, header=header(), offset=head, write_head=head
        )

    guard = OffsetGuard(
        RememberedRead("abcd", None, read_through=5, starts_at=5), patience_seconds=60.0
    )
    async with (
        ScriptedBroker(on_read=answer) as broker,
        JournalClient(broker.address, policy=TransportPolicy(patience_seconds=-1.0)) as client,
        client.reader("abcd", offset=5, guard=guard) as reader,
    ):
        span = await anext(reader)

    assert span == ReadSpan(5, b"ab")
    assert looks == 3


async def test_guarded_read_ends_where_the_head_stays_below() -> None:
    """A broker that tells no incarnation, and whose journal ends before what was read: nothing is delivered, ever."""

    async def answer(request: pb.ReadRequest, context: Context) -> AsyncIterator[pb.ReadResponse]:
        assert request.metadata_only, "a blocking read would wait in silence"
        yield pb.ReadResponse(
            status=pb.OFFSET_NOT_YET_AVAILABLE, header=header(), offset=3, write_head=3
        )

    guard = OffsetGuard(
        RememberedRead("abcd", None, read_through=5, starts_at=5), patience_seconds=0.0
    )
    async with ScriptedBroker(on_read=answer) as broker, JournalClient(broker.address) as client:
        with pytest.raises(JournalReplacedError, match=r"offset 5 .* write head is 3"):
            await anext(client.reader("abcd", offset=5, guard=guard))


async def test_cancelled_iteration_loses_nothing() -> None:
    """A deadline around one step is ordinary: the next step goes on where the last delivery ended."""

    async def answer(request: pb.ReadRequest, context: Context) -> AsyncIterator[pb.ReadResponse]:
        yield metadata(request.offset, 0, 4)
        yield pb.ReadResponse(offset=request.offset, content=b"abcd"[request.offset :][:2])
        await asyncio.Event().wait()

    async with (
        ScriptedBroker(on_read=answer) as broker,
        JournalClient(broker.address) as client,
        client.reader("abcd") as reader,
    ):
        first = await anext(reader)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await anext(reader)
        second = await anext(reader)

    assert (first, second) == (ReadSpan(0, b"ab"), ReadSpan(2, b"cd"))


async def test_refused_connection_names_the_address() -> None:
    """The commonest mistake of all: no broker, or another port."""
    async with JournalClient(
        "http://127.0.0.1:1", policy=TransportPolicy(patience_seconds=0.1)
    ) as client:
        with pytest.raises(
            EndpointError,
            match=r"cannot reach http://127\.0\.0\.1:1: connection refused; is the broker running\?",
        ):
            await _read_all(client.reader("abcd", block=False))


async def test_closed_reader_ends() -> None:
    """Closing early frees the call and ends the iteration, also when it is asked once more."""
    async with (
        ScriptedBroker(on_read=_always(metadata(0, 0, 2))) as broker,
        JournalClient(broker.address) as client,
    ):
        reader = client.reader("abcd")
        await reader.aclose()

        assert await _read_all(reader) == []
    assert not broker.read_requests
