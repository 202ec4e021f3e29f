"""Which answers of one stream of appends share a message."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc
import pytest
from structlog.testing import capture_logs

from broadsheet.broker import append_stream
from broadsheet.journals.append_wire import WholeAppend, encode_appends
from broadsheet.journals.client import JournalClient
from broadsheet.journals.wire import APPEND_SERVICE, serialize
from broadsheet.wire import journal_pb2 as pb
from broadsheet.wire.appends_pb2 import AppendStreamRequest, AppendStreamResponse
from tests.support.broker import journal_spec

HOLD_SECONDS = 200.0


@pytest.fixture
async def open_call(journals: JournalClient) -> AsyncIterator[Callable[[], Any]]:
    """Create a journal, and return a function that opens a stream of encoded appends to its broker."""
    await journals.apply([pb.ApplyRequest.Change(upsert=journal_spec("test/one"))])
    async with grpc.aio.insecure_channel(journals.address.removeprefix("http://")) as channel:
        yield channel.stream_stream(
            f"/{APPEND_SERVICE}/AppendStream",
            request_serializer=serialize,
            response_deserializer=AppendStreamResponse.FromString,
        )


def _in_turn(number: int, name: bytes, *after: bytes) -> WholeAppend:
    append = AppendStreamRequest.Append(number=number, name=name, after=after)
    append.parameters.journal = "test/one"
    return WholeAppend(append, [b"%d" % number])


async def test_append_is_answered_together_with_what_comes_after_it(
    open_call: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A transaction's commit and its acknowledgement cost one message back, in the order in which they were done; an
    append that nothing comes after is answered by itself.
    """
    # On a busy machine the second append takes longer than an answer is held by default.
    monkeypatch.setattr(append_stream, "HOLD_SECONDS_MAX", HOLD_SECONDS)
    call = open_call()

    await call.write(encode_appends([_in_turn(1, b"a"), _in_turn(2, b"b", b"a")]))
    together = await call.read()
    await call.write(encode_appends([_in_turn(3, b"c")]))
    alone = await call.read()
    call.cancel()

    assert [answer.number for answer in together.answers] == [1, 2]
    assert [answer.append.commit.begin for answer in together.answers] == [0, 1]
    assert [answer.number for answer in alone.answers] == [3]


async def test_append_is_answered_though_what_comes_after_it_takes_long(
    open_call: Callable[[], Any],
) -> None:
    """What comes after it waits for another one, too, that never comes: nobody need wait for that."""
    call = open_call()

    await call.write(encode_appends([_in_turn(1, b"a"), _in_turn(2, b"b", b"a", b"never")]))
    first = await call.read()
    second = await call.read()
    call.cancel()

    assert [(answer.number, answer.code) for answer in first.answers] == [(1, 0)]
    refused = grpc.StatusCode.FAILED_PRECONDITION.value[0]
    assert [(answer.number, answer.code) for answer in second.answers] == [(2, refused)]


@pytest.mark.parametrize("tail", [b"\xff\xff", b"\x0a\x7f\xff" * 40_000])
async def test_message_that_cannot_be_decoded_is_the_clients_fault(
    open_call: Callable[[], Any], tail: bytes
) -> None:
    """Short and long messages are decoded by different code: both end the stream with INVALID_ARGUMENT, after the
    answer to what came before, and without a traceback in the broker's log.
    """
    call = open_call()
    with capture_logs() as logs:
        await call.write(encode_appends([_in_turn(1, b"a")]))
        await call.write(tail)
        answered = await call.read()
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call.read()

    assert [answer.append.commit.begin for answer in answered.answers] == [0]
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "malformed" in str(caught.value.details())
    assert [log for log in logs if log["log_level"] == "error"] == []
