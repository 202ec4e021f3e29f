"""The append service against a broker that refuses, breaks off and lies; what it holds back, groups and gives up."""

from __future__ import annotations

import asyncio
from concurrent.futures import Future

import grpc
import pytest

from broadsheet.journals.append_service import AppendService
from broadsheet.journals.client import JournalClient
from broadsheet.journals.errors import (
    AppendOutcomeUnknownError,
    JournalError,
    JournalNotFoundError,
    JournalUnavailableError,
    RegisterMismatchError,
)
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire import journal_pb2 as pb
from broadsheet.wire.labels import parse_selector
from tests.support.eventually import DEADLINE_SECONDS, eventually
from tests.support.journal_in_memory import JournalInMemory, Requests
from tests.support.scripted_broker import Context, ScriptedBroker, committed, received, refused


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
        with pytest.raises(JournalError, match="the append's dependency"):
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


async def test_service_that_is_cancelled_fails_appends_instead_of_raising() -> None:
    """A shard may go on appending while the tasks of its member are taken down: each of its futures gets an answer."""
    gate: Future[None] = Future()
    async with JournalClient("http://127.0.0.1:1") as client, TaskGroup() as group:
        service = AppendService(client)
        running = group.start_soon(service.run(), name="appends")
        futures = [service.append("abcd", b"1", after=[gate])]
        await asyncio.sleep(0)
        running.cancel()
        while not running.done():
            futures.append(service.append(f"journal-{len(futures)}", b"2"))
            await asyncio.sleep(0)

    assert len(futures) > 2, "some were asked for while it ended"
    assert {type(future.exception(0)) for future in futures} == {JournalUnavailableError}


@pytest.mark.parametrize(("size", "overdue"), [(1, True), (4 << 20, False)])
async def test_service_tells_which_journal_does_not_answer(size: int, overdue: bool) -> None:
    """A primary whose appends nobody answers is of no use; but a long append may take its time, for brokers hold those
    back that come too fast. What is answered late is overdue no more.
    """
    under_way, answering = asyncio.Event(), asyncio.Event()

    async def answer(requests: Requests, context: Context) -> pb.AppendResponse:
        content, _ = await received(requests)
        under_way.set()
        await answering.wait()
        return committed(0, len(content))

    async with (
        asyncio.timeout(DEADLINE_SECONDS),
        ScriptedBroker(on_append=answer) as broker,
        JournalClient(broker.address) as client,
        AppendService(client) as service,
    ):
        assert service.overdue(0.0) == ""
        append = service.append("abcd", bytes(size))

        await under_way.wait()
        if overdue:
            await eventually(lambda: service.overdue(0.1) == "abcd")
        assert service.overdue(0.1 if not overdue else 60.0) == ""

        answering.set()
        await asyncio.wrap_future(append)
        assert service.overdue(0.0) == ""
