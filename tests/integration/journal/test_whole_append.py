"""Appends in one message, beside the stream that does the same at any broker."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from consumer.errors import (
    JournalNotAllowedError,
    JournalNotFoundError,
    RegisterMismatchError,
    WrongAppendOffsetError,
)
from consumer.journal.appender import CHUNK_BYTES
from consumer.journal.channels import BulkStub
from consumer.journal.client import JournalClient
from consumer.protocol import journal_pb2 as pb
from consumer.protocol.labels import label_set, parse_selector
from tests.support.broker import journal_spec
from tests.support.scripted_broker import ScriptedBroker, committed, received


def _bulk(client: JournalClient) -> BulkStub:
    return client._transport.channels.bulk()


async def _connected(client: JournalClient, *, whole: bool) -> None:
    """Create a journal, and take the way away that is not to be taken."""
    await client.apply([pb.ApplyRequest.Change(upsert=journal_spec("test/one"))])
    bulk: Any = _bulk(client)
    if whole:
        bulk.append = None
    else:
        bulk.append_whole = None


@pytest.mark.parametrize("whole", [True, False])
async def test_answers_are_the_same_in_one_message_and_in_a_stream(
    journals: JournalClient, whole: bool
) -> None:
    """Plan: content, pieces, a barrier, registers, and every kind of refusal, over one way and over the other.

    The other way is taken away, so that none of this went over it.
    """
    await _connected(journals, whole=whole)

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


async def test_a_broker_that_takes_no_whole_appends_gets_a_stream() -> None:
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
        JournalClient(broker.address) as client,
    ):
        await client.append("abcd", b"one")
        assert _bulk(client).append_whole is not None
        await client.append("abcd", b"two")
        assert _bulk(client).append_whole is None

    assert landed == [b"one", b"two"]


async def test_a_whole_append_to_a_journal_that_is_only_read_is_refused(
    journals: JournalClient,
) -> None:
    """Plan: append to a journal that is only read; whole appends meet the same refusals as chunks do."""
    spec = journal_spec("test/read-only")
    spec.flags = pb.JournalSpec.O_RDONLY
    await journals.apply([pb.ApplyRequest.Change(upsert=spec)])
    bulk: Any = _bulk(journals)
    bulk.append = None

    with pytest.raises(JournalNotAllowedError):
        await journals.append("test/read-only", b"no")
