"""One-shot appends and the append service against a broker that refuses, breaks off and lies."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import Future
from pathlib import Path

import grpc
import pytest

from allocator.errors import ValidationError
from consumer.errors import (
    AppendOutcomeUnknownError,
    EndpointError,
    JournalError,
    JournalNotFoundError,
    JournalProtocolError,
    JournalUnavailableError,
    RegisterMismatchError,
    UnauthenticatedError,
    WrongAppendOffsetError,
)
from consumer.journal.append_service import AppendService
from consumer.journal.client import JournalClient
from consumer.protocol import journal_pb2 as pb
from consumer.protocol.labels import label_set, parse_selector
from tests.support.eventually import eventually
from tests.support.scripted_broker import Context, ScriptedBroker, committed, received, refused

Requests = AsyncIterator[pb.AppendRequest]


class JournalInMemory:
    """What a scripted broker wrote."""

    def __init__(self) -> None:
        self.content = b""

    def write(self, content: bytes) -> pb.AppendResponse:
        """Append, and return the answer to it."""
        begin = len(self.content)
        self.content += content
        return committed(begin, len(self.content))

    async def take(self, requests: Requests, context: Context) -> pb.AppendResponse:
        """Behave well."""
        content, commits = await received(requests)
        assert commits
        return self.write(content)


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
    async with JournalClient("http://127.0.0.1:1", patience_seconds=0.1) as client:
        with pytest.raises(EndpointError, match=r"127\.0\.0\.1:1.*is the broker running") as raised:
            await client.append("abcd", b"x")

    assert raised.value.never_connected


async def test_append_over_a_unix_socket(tmp_path: Path) -> None:
    """Brokers beside us may listen on a file; one that is not there is named like any other address."""
    journal = JournalInMemory()

    async with ScriptedBroker(on_append=journal.take, socket=tmp_path / "broker.sock") as broker:
        async with JournalClient(broker.address) as client:
            await client.append("abcd", b"here")
        async with JournalClient(f"unix://{tmp_path}/none.sock", patience_seconds=0) as client:
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


async def test_service_repeats_an_append_whose_answer_was_lost() -> None:
    """At least once: the copy follows the first, what was queued later follows the copy, nothing is left out."""
    journal = JournalInMemory()
    losses = 1

    async def answer(requests: Requests, context: Context) -> pb.AppendResponse:
        nonlocal losses
        response = await journal.take(requests, context)
        if losses:
            losses -= 1
            await context.abort(grpc.StatusCode.UNAVAILABLE, "answer lost")
        return response

    async with (
        ScriptedBroker(on_append=answer) as broker,
        JournalClient(broker.address) as client,
        AppendService(client) as service,
    ):
        first = service.append("abcd", b"1")
        await eventually(lambda: journal.content)
        second = service.append("abcd", b"2")
        await asyncio.wrap_future(first)
        response = await asyncio.wrap_future(second)

    assert journal.content == b"112"
    assert (response.commit.begin, response.commit.end) == (2, 3)


async def test_service_doubts_that_a_journal_does_not_exist() -> None:
    """A broker may not know a journal that was just applied. A recovered acknowledgement is dropped with its journal,
    so believing the first answer could lose a committed transaction.
    """
    journal = JournalInMemory()
    refusals = 2

    async def answer(requests: Requests, context: Context) -> pb.AppendResponse:
        nonlocal refusals
        if refusals:
            refusals -= 1
            return refused(pb.JOURNAL_NOT_FOUND)
        return await journal.take(requests, context)

    async with (
        ScriptedBroker(on_append=answer) as broker,
        JournalClient(broker.address) as client,
        AppendService(client) as service,
    ):
        await asyncio.wrap_future(service.append("abcd", b"x"))
        assert journal.content == b"x"

        refusals = 1000
        with pytest.raises(JournalNotFoundError):
            await asyncio.wrap_future(service.append("abcd", b"y"))


@pytest.mark.parametrize("checked", [True, False])
async def test_service_tells_a_fenced_writer_at_once_and_poisons_the_journal(
    checked: bool,
) -> None:
    """The model repeats for ever when registers are checked; a fenced primary must stop instead."""

    async def answer(requests: Requests, context: Context) -> pb.AppendResponse:
        return refused(pb.REGISTER_MISMATCH)

    async with (
        ScriptedBroker(on_append=answer) as broker,
        JournalClient(broker.address) as client,
        AppendService(client) as service,
    ):
        check = parse_selector("author=me") if checked else None
        first = service.append("abcd", b"1", check_registers=check)
        with pytest.raises(RegisterMismatchError):
            await asyncio.wrap_future(first)
        second = service.append("abcd", b"2")
        poisoned = service.pending_except("other")

    assert isinstance(second.exception(0), RegisterMismatchError)
    assert [type(future.exception(0)) for future in poisoned] == [RegisterMismatchError]
    assert broker.append_count == 1
    assert service.queued_bytes == 0


async def test_service_holds_a_journal_back_behind_a_dependency() -> None:
    """What follows an acknowledgement must not reach the broker before the commit it waits for."""
    journal = JournalInMemory()
    commit: Future[None] = Future()

    async with (
        ScriptedBroker(on_append=journal.take) as broker,
        JournalClient(broker.address) as client,
        AppendService(client) as service,
    ):
        before = service.append("abcd", b"before,")
        await asyncio.wrap_future(before)
        acknowledged = service.append("abcd", b"ack,", after=[commit])
        behind = service.append("abcd", b"behind")
        other = service.append("efgh", b"")
        await asyncio.wrap_future(other)
        assert journal.content == b"before,"
        assert acknowledged is behind
        assert service.pending_except("abcd") == frozenset()
        assert service.pending() == {behind}
        commit.set_result(None)
        await asyncio.wrap_future(behind)

    assert journal.content == b"before,ack,behind"


@pytest.mark.parametrize("how", ["fails", "is cancelled"])
async def test_service_fails_what_waits_for_a_failed_dependency(how: str) -> None:
    """If the store's commit fails, the acknowledgement and all after it must never be written."""
    journal = JournalInMemory()
    commit: Future[None] = Future()

    async with (
        ScriptedBroker(on_append=journal.take) as broker,
        JournalClient(broker.address) as client,
        AppendService(client) as service,
    ):
        acknowledged = service.append("abcd", b"ack", after=[commit])
        if how == "fails":
            commit.set_exception(OSError("disk full"))
        else:
            commit.cancel()
        with pytest.raises(JournalError, match="what an append waited for"):
            await asyncio.wrap_future(acknowledged)
        later = service.append("abcd", b"later")
        elsewhere = await asyncio.wrap_future(service.append("efgh", b"fine"))

    assert isinstance(later.exception(0), JournalError)
    assert elsewhere.commit.end == 4
    assert journal.content == b"fine"


async def test_service_keeps_a_cyclic_order_over_two_journals() -> None:
    """A1 before B1 before A2: an append never joins a group that something it waits for waits for."""
    order: list[bytes] = []

    async def answer(requests: Requests, context: Context) -> pb.AppendResponse:
        content, _ = await received(requests)
        order.append(content)
        return committed(0, len(content))

    async with ScriptedBroker(on_append=answer) as broker, JournalClient(broker.address) as client:
        gate: Future[None] = Future()
        async with AppendService(client) as service:
            first = service.append("aaaa", b"A1", after=[gate])
            second = service.append("bbbb", b"B1", after=[first])
            third = service.append("aaaa", b"A2", after=[second])
            fourth = service.append("bbbb", b"B2", after=[third])
            gate.set_result(None)
            await asyncio.wrap_future(fourth)

    assert order == [b"A1", b"B1", b"A2", b"B2"]


async def test_service_groups_what_waits_into_one_append() -> None:
    """While one append is under way the next group gathers: a thousand calls are a few RPCs."""
    journal = JournalInMemory()

    async with (
        ScriptedBroker(on_append=journal.take) as broker,
        JournalClient(broker.address) as client,
        AppendService(client) as service,
    ):
        futures = [service.append("abcd", b"%03d" % number) for number in range(1000)]
        await asyncio.wrap_future(futures[-1])

    assert journal.content == b"".join(b"%03d" % number for number in range(1000))
    assert broker.append_count <= 3


async def test_service_room_is_freed_as_appends_finish() -> None:
    """A producer that waits for room cannot fill the memory while the broker is slow."""
    journal = JournalInMemory()
    gate: Future[None] = Future()

    async with (
        ScriptedBroker(on_append=journal.take) as broker,
        JournalClient(broker.address) as client,
        AppendService(client, room_bytes=10) as service,
    ):
        service.append("abcd", b"123456789", after=[gate])
        await service.wait_for_room()
        service.append("abcd", b"0")
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.02):
                await service.wait_for_room()
        gate.set_result(None)
        await service.wait_for_room()

        assert service.queued_bytes == 0


async def test_closed_service_fails_what_is_unfinished() -> None:
    """Nobody waits for ever: what was being sent may be there, what was queued is not."""
    started = asyncio.Event()

    async def answer(requests: Requests, context: Context) -> pb.AppendResponse:
        await received(requests)
        started.set()
        await asyncio.Event().wait()
        raise AssertionError("never set")

    async with ScriptedBroker(on_append=answer) as broker, JournalClient(broker.address) as client:
        async with AppendService(client) as service:
            sent = service.append("abcd", b"1")
            await started.wait()
            queued = service.append("abcd", b"2")
        late = service.append("abcd", b"3")
        await service.close()

    assert isinstance(sent.exception(0), AppendOutcomeUnknownError)
    assert isinstance(queued.exception(0), JournalUnavailableError)
    assert isinstance(late.exception(0), JournalUnavailableError)
    assert service.queued_bytes == 0


async def test_service_closed_before_it_ran_fails_its_appends() -> None:
    """A start that fails half-way must not leave futures behind."""
    async with JournalClient("http://127.0.0.1:1") as client:
        service = AppendService(client)
        queued = service.append("abcd", b"1")
        await service.close()

    assert isinstance(queued.exception(0), JournalUnavailableError)
