"""Appends that are sent before those are answered which they depend on: the embedded broker keeps their order."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from concurrent.futures import Future

import grpc
import pytest

from broadsheet.journals.append_service import AppendService
from broadsheet.journals.client import JournalClient
from broadsheet.journals.errors import (
    AppendOutcomeUnknownError,
    JournalNotFoundError,
    PredecessorNotCommittedError,
    RegisterMismatchError,
)
from broadsheet.journals.pipelining import AppendToken, Pipelined, TokenSource, TurnFuture
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire import journal_pb2 as pb
from broadsheet.wire.labels import label_set, parse_selector
from tests.support.broker import journal_spec
from tests.support.eventually import eventually
from tests.support.scripted_broker import ScriptedBroker, committed, received

FIRST, SECOND, THIRD = "test/first", "test/second", "test/third"


@pytest.fixture(autouse=True)
async def _journals(journals: JournalClient) -> None:
    """Make the journals, and connect."""
    names = (FIRST, SECOND, THIRD)
    await journals.apply([pb.ApplyRequest.Change(upsert=journal_spec(name)) for name in names])


def turn_of(journals: JournalClient, name: bytes) -> AppendToken:
    """Return the turn of an append of this client's broker."""
    return AppendToken(journals.address, name)


async def test_append_waits_for_the_one_before_it_that_comes_later(
    journals: JournalClient,
) -> None:
    """Calls are not served in the order in which they were sent: which comes first is said by their names."""
    sent: list[AppendToken] = []
    async with TaskGroup() as group:
        second = group.start_soon(
            journals.append(
                SECOND,
                b"2",
                in_turn=Pipelined(b"second", (turn_of(journals, b"first"),), sent.append),
            ),
            name="second",
        )
        await eventually(lambda: sent)
        assert await journals.write_head(SECOND) == 0

        first = await journals.append(FIRST, b"1", in_turn=Pipelined(b"first"))

        assert (await second).commit.end == 1
        assert first.commit.end == 1
    assert sent == [turn_of(journals, b"second")]


@pytest.mark.parametrize(
    "registers", [pytest.param(True, id="refused"), pytest.param(False, id="registers lost")]
)
async def test_append_after_one_that_did_not_prove_itself_is_refused(
    journals: JournalClient, registers: bool
) -> None:
    """The one before it is fenced; or its journal has lost the registers that it demanded, so that anything passes."""
    if registers:
        await journals.append(FIRST, b"x", union_registers=label_set({"author": "you"}))
    before = journals.append(
        FIRST, b"1", check_registers=parse_selector("author=me"), in_turn=Pipelined(b"fenced")
    )
    if registers:
        with pytest.raises(RegisterMismatchError):
            await before
    else:
        await before

    with pytest.raises(PredecessorNotCommittedError, match="did not succeed; nothing was written"):
        await journals.append(
            SECOND, b"2", in_turn=Pipelined(b"next", (turn_of(journals, b"fenced"),))
        )

    assert await journals.write_head(SECOND) == 0


async def test_refusal_goes_down_the_whole_chain(journals: JournalClient) -> None:
    """What comes after something that was out of turn is out of turn itself."""
    turns = [turn_of(journals, name) for name in (b"one", b"two")]
    async with TaskGroup() as group:
        third = journals.append(THIRD, b"3", in_turn=Pipelined(b"three", (turns[1],)))
        group.start_soon(_out_of_turn(third), name="third")
        second = journals.append(SECOND, b"2", in_turn=Pipelined(b"two", (turns[0],)))
        group.start_soon(_out_of_turn(second), name="second")
        with pytest.raises(JournalNotFoundError):
            await journals.append("test/none", b"1", in_turn=Pipelined(b"one"))

    assert await journals.write_head(SECOND) == await journals.write_head(THIRD) == 0


async def _out_of_turn(append: Coroutine[None, None, pb.AppendResponse]) -> None:
    with pytest.raises(PredecessorNotCommittedError, match="did not succeed"):
        await append


async def test_other_brokers_appends_are_waited_for_by_the_client(journals: JournalClient) -> None:
    """Only what one broker appends can be in turn: it cannot know of another's."""
    elsewhere = AppendToken("http://127.0.0.1:1", b"one")

    with pytest.raises(PredecessorNotCommittedError, match="went to another broker"):
        await journals.append(SECOND, b"2", in_turn=Pipelined(b"two", (elsewhere,)))


async def test_services_send_a_chain_before_its_first_link_is_answered(
    journals: JournalClient,
) -> None:
    """Plan: the first append of a chain waits, at the broker, for one that is not sent yet. Each of the others is under
    way nonetheless; none is written until the first is, and then all are.
    """
    names = TokenSource()
    async with (
        AppendService(journals, turns=names) as one,
        AppendService(journals, turns=names) as two,
    ):
        gate: TurnFuture[None] = TurnFuture()
        gate.sent(turn_of(journals, b"gate"))
        chain: list[Future[pb.AppendResponse]] = []
        chain.append(one.append(FIRST, b"1", after=(gate,)))
        chain.append(two.append(SECOND, b"2", after=(chain[0],)))
        chain.append(one.append(THIRD, b"3", after=(chain[1],)))
        await eventually(lambda: all(isinstance(one, TurnFuture) and one.turn for one in chain))
        assert not any(future.done() for future in chain)
        assert await journals.write_head(FIRST) == await journals.write_head(THIRD) == 0

        await journals.append(FIRST, b"0", in_turn=Pipelined(b"gate"))

        ends = [(await asyncio.wrap_future(future)).commit.end for future in chain]
        assert ends == [2, 1, 1]


async def test_service_sends_again_what_was_out_of_turn_once_it_may(
    journals: JournalClient,
) -> None:
    """The broker was started again, say, and knows no names: what was refused waits for the answer, and lands once."""
    await journals.append(FIRST, b"x", union_registers=label_set({"author": "you"}))
    with pytest.raises(RegisterMismatchError):
        await journals.append(
            FIRST, b"0", check_registers=parse_selector("author=me"), in_turn=Pipelined(b"failed")
        )
    async with AppendService(journals, turns=TokenSource()) as service:
        before: TurnFuture[None] = TurnFuture()
        before.sent(turn_of(journals, b"failed"))
        future = service.append(SECOND, b"2", after=(before,))
        assert isinstance(future, TurnFuture)
        sent: list[AppendToken] = []
        future.when_sent(sent.append)
        await eventually(lambda: sent)
        assert await journals.write_head(SECOND) == 0

        before.set_result(None)

        assert (await asyncio.wrap_future(future)).commit.end == 1


async def test_broker_that_knows_no_turns_gets_one_after_the_other() -> None:
    """A broker of the protocol alone: the second append waits for the first one's answer, and streams."""
    landed: list[bytes] = []
    answer = asyncio.Event()

    async def on_append(requests: AsyncIterator[pb.AppendRequest], _: object) -> pb.AppendResponse:
        content, whole = await received(requests)
        assert whole
        if content == b"1":
            await answer.wait()
        landed.append(content)
        return committed(0, len(content))

    async with (
        ScriptedBroker(on_append=on_append) as broker,
        JournalClient(broker.address) as client,
        AppendService(client, turns=TokenSource()) as service,
    ):
        await client.append("abcd", b"0")
        first = service.append("abcd", b"1")
        second = service.append("efgh", b"2", after=(first,))
        await asyncio.sleep(0)
        answer.set()
        await asyncio.wrap_future(second)

    assert landed == [b"0", b"1", b"2"]


async def test_failed_precondition_of_an_append_without_others_is_a_failure() -> None:
    """A proxy, say, answers so: it is no matter of turns, and must neither be repeated at once nor for ever."""

    async def on_append(
        requests: AsyncIterator[pb.AppendRequest], context: grpc.aio.ServicerContext[object, object]
    ) -> pb.AppendResponse:
        await received(requests)
        await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "not today")
        raise AssertionError("aborted")

    async with (
        ScriptedBroker(on_append=on_append) as broker,
        JournalClient(broker.address) as client,
    ):
        with pytest.raises(AppendOutcomeUnknownError, match="not today"):
            await client.append("abcd", b"0", in_turn=Pipelined(b"name"))
