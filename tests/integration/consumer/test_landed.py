"""Looking for an append of long ago in its journal."""

from __future__ import annotations

import time

from broadsheet.consumer.shard.rollback.keeper import find_frame, last_landed
from broadsheet.journals.client import JournalClient
from broadsheet.journals.message.rollback import Rollback
from broadsheet.journals.message.uuid import Flags, build_uuid, clock_at
from broadsheet.wire.journal_pb2 import ApplyRequest
from tests.support.broker import journal_spec

JOURNAL = "test/landed"


async def test_has_landed_looks_at_all_there_is_of_its_time(journals: JournalClient) -> None:
    """In sealed fragments and in the open one; what is not there has not landed, nor what has no journal."""
    now = time.time()
    assert not await find_frame(journals, JOURNAL, b"<one>", at_unix_seconds=now)
    await journals.apply([ApplyRequest.Change(upsert=journal_spec(JOURNAL, length=1024))])
    assert not await find_frame(journals, JOURNAL, b"<one>", at_unix_seconds=now)

    for frame in (b"<one>", b"<two>"):
        await journals.append(JOURNAL, b"x" * 2000 + frame + b"x" * 2000)

    for frame, found in ((b"<one>", True), (b"<two>", True), (b"<three>", False)):
        assert await find_frame(journals, JOURNAL, frame, at_unix_seconds=now) is found


async def test_has_landed_believes_that_what_may_be_gone_was_there(journals: JournalClient) -> None:
    """Plan: the journal's first fragment is removed. Why: who repeats what was read and then removed delivers it twice;
    of an earlier time than the oldest fragment nobody can tell.
    """
    await journals.apply([ApplyRequest.Change(upsert=journal_spec(JOURNAL, length=1024))])
    for _ in range(3):
        await journals.append(JOURNAL, b"x" * 2000)
    first, *_ = await journals.list_fragments(JOURNAL)
    await journals.delete_fragments(JOURNAL, [first.spec])

    assert await find_frame(journals, JOURNAL, b"<one>", at_unix_seconds=time.time())
    # The oldest fragment was last written a while before that.
    late = time.time() + 7200
    assert not await find_frame(journals, JOURNAL, b"<one>", at_unix_seconds=late)


async def test_last_landed_finds_what_a_clock_that_was_ahead_stamped(
    journals: JournalClient,
) -> None:
    """Plan: a producer whose clock is two days ahead acknowledges twice, in fragments that are sealed by now; in a
    journal too long to be read whole, what is older than its clock is passed over. Why: its fragments look older than
    its first message; taken for one that never committed, its successor would undo what it has acknowledged.
    """
    await journals.apply([ApplyRequest.Change(upsert=journal_spec(JOURNAL, length=1024))])
    begun, producer = time.time_ns() + 2 * 86_400 * 10**9, 7
    clocks = [clock_at(begun + seconds * 10**9) for seconds in (0, 1, 2)]
    uuids = [build_uuid(producer, clock, Flags.ACK_TXN) for clock in clocks]
    left = Rollback(journal=JOURNAL, producer=producer, clock=clocks[0], content=uuids[0])
    for frame in (*uuids[1:], b"of somebody else"):
        await journals.append(JOURNAL, b"x" * 2000 + frame)

    assert await last_landed(journals, left) == clocks[2]
    assert await last_landed(journals, left, bytes_max=3000) == clocks[0]
