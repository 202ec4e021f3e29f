"""One-shot appends against a broker that refuses, breaks off and lies."""

from __future__ import annotations

from pathlib import Path

import grpc
import pytest

from broadsheet.journals.append_service import AppendService
from broadsheet.journals.client import JournalClient
from broadsheet.journals.errors import (
    AppendOutcomeUnknownError,
    JournalProtocolError,
    JournalUnavailableError,
    WrongAppendOffsetError,
)
from broadsheet.journals.transport import TransportPolicy
from broadsheet.runtime.errors import EndpointError, ValidationError
from broadsheet.security.errors import UnauthenticatedError
from broadsheet.wire import journal_pb2 as pb
from broadsheet.wire.labels import label_set
from tests.support.journal_in_memory import JournalInMemory, Requests
from tests.support.scripted_broker import Context, ScriptedBroker, committed, received, refused


async def test_early_refusal_in_midst_of_sending_surfaces_as_itself() -> None:
    """The client must look for the answer when a send fails, not report the failed send."""

    async def answer(requests: Requests, context: Context) -> pb.AppendResponse:
        await anext(requests)
        return refused(pb.WRONG_APPEND_OFFSET)

    async with ScriptedBroker(on_append=answer) as broker, JournalClient(broker.address) as client:
        with pytest.raises(WrongAppendOffsetError, match="demanded offset 5"):
            await client.append("abcd", [b"x" * (1 << 20)] * 16, offset=5)

    assert broker.append_count == 1


async def test_answer_lost_after_the_commit_is_an_unknown_outcome_and_not_repeated() -> None:
    """The bytes are there; only the caller can know whether to write them twice."""
    journal = JournalInMemory()

    async def answer(requests: Requests, context: Context) -> pb.AppendResponse:
        await journal.take(requests, context)
        await context.abort(grpc.StatusCode.UNAVAILABLE, "going away")
        raise AssertionError("abort raises")

    async with ScriptedBroker(on_append=answer) as broker, JournalClient(broker.address) as client:
        with pytest.raises(AppendOutcomeUnknownError, match="abcd may or may not hold"):
            await client.append("abcd", b"once")

    assert (broker.append_count, journal.content) == (1, b"once")


async def test_append_is_repeated_while_nothing_was_written() -> None:
    """No primary, too few brokers: refusals without a trace are waited out."""
    journal = JournalInMemory()
    refusals = [pb.NO_JOURNAL_PRIMARY_BROKER, pb.INSUFFICIENT_JOURNAL_BROKERS]

    async def answer(requests: Requests, context: Context) -> pb.AppendResponse:
        return refused(refusals.pop(0)) if refusals else await journal.take(requests, context)

    async with ScriptedBroker(on_append=answer) as broker, JournalClient(broker.address) as client:
        response = await client.append("abcd", b"once")

    assert (response.commit.begin, response.commit.end) == (0, 4)
    assert (broker.append_count, journal.content) == (3, b"once")


async def test_append_without_retry_reports_the_passing_refusal() -> None:
    """A caller with a strategy of its own gets each refusal."""

    async def answer(requests: Requests, context: Context) -> pb.AppendResponse:
        return refused(pb.NO_JOURNAL_PRIMARY_BROKER)

    async with ScriptedBroker(on_append=answer) as broker, JournalClient(broker.address) as client:
        with pytest.raises(JournalUnavailableError, match="NO_JOURNAL_PRIMARY_BROKER"):
            await client.append("abcd", b"x", retry=False)

    assert broker.append_count == 1


async def test_refused_credentials_after_the_commit_are_no_unknown_outcome() -> None:
    """A broker checks tokens before it acts, however late the answer is read."""

    async def answer(requests: Requests, context: Context) -> pb.AppendResponse:
        await received(requests)
        await context.abort(grpc.StatusCode.UNAUTHENTICATED, "expired")
        raise AssertionError("abort raises")

    async with ScriptedBroker(on_append=answer) as broker, JournalClient(broker.address) as client:
        with pytest.raises(UnauthenticatedError, match="expired"):
            await client.append("abcd", b"x")


@pytest.mark.parametrize(
    ("response", "told"),
    [
        (committed(0, 4), "before the commit"),
        (pb.AppendResponse(), "header"),
        (refused(pb.PROPOSAL_MISMATCH), "PROPOSAL_MISMATCH"),
    ],
)
async def test_answer_against_the_protocol_surfaces(response: pb.AppendResponse, told: str) -> None:
    """An OK for what was not sent, an answer without a header, a status of another request."""

    async def answer(requests: Requests, context: Context) -> pb.AppendResponse:
        await anext(requests)
        return response

    async with ScriptedBroker(on_append=answer) as broker, JournalClient(broker.address) as client:
        with pytest.raises(JournalProtocolError, match=told):
            await client.append("abcd", [b"x" * (1 << 20)] * 16)


async def test_refused_connection_of_an_append_names_the_address() -> None:
    """Nothing was sent, so it is repeated for a while and then told."""
    async with JournalClient(
        "http://127.0.0.1:1", policy=TransportPolicy(patience_seconds=0.1)
    ) as client:
        with pytest.raises(EndpointError, match=r"127\.0\.0\.1:1.*is the broker running") as raised:
            await client.append("abcd", b"x")

    assert raised.value.never_connected


async def test_append_over_a_unix_socket(tmp_path: Path) -> None:
    """Brokers beside us may listen on a file; one that is not there is named like any other address."""
    journal = JournalInMemory()

    async with ScriptedBroker(on_append=journal.take, socket=tmp_path / "broker.sock") as broker:
        async with JournalClient(broker.address) as client:
            await client.append("abcd", b"here")
        async with JournalClient(
            f"unix://{tmp_path}/none.sock", policy=TransportPolicy(patience_seconds=0)
        ) as client:
            with pytest.raises(EndpointError, match=r"none\.sock: connection refused"):
                await client.append("abcd", b"nowhere")

    assert journal.content == b"here"


async def test_malformed_append_is_refused_before_it_is_sent() -> None:
    """Registers change with bytes only; without them the broker would abort the stream."""
    async with JournalClient("http://127.0.0.1:1") as client:
        with pytest.raises(ValidationError, match="union_registers: expected content"):
            await client.append("abcd", b"", union_registers=label_set(("author", "me")))
        with pytest.raises(ValidationError, match="journal"):
            AppendService(client).append("x", b"x")
