"""A recovery log of which one replica shows an old write head, as a broker's that was just assigned does."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest

from broadsheet.consumer.errors import LogDataLossError
from broadsheet.consumer.recoverylog.log_feed import LogFeeds
from broadsheet.consumer.recoverylog.playback import PlaybackPosition
from broadsheet.journals.client import JournalClient
from broadsheet.journals.guard import HEAD_DOUBT_SECONDS
from broadsheet.journals.reader import ReadSpan
from broadsheet.journals.transport import TransportPolicy
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire import journal_pb2 as pb
from tests.support.scripted_broker import (
    Context,
    ScriptedBroker,
    committed,
    header,
    metadata,
    received,
    refused,
)
from tests.support.stepping_clock import SteppingClock

LOG = "abcd"
PLAYED, OLD_HEAD = 5, 3


@dataclass
class LaggingReplica:
    """Serves five bytes, and then shows an old head until an append has passed through all replicas."""

    agreed_head: int
    """Where an empty append ends."""
    appends_refused: int = 0
    """Appends before it, for want of brokers."""
    clock: SteppingClock = field(default_factory=SteppingClock)
    looks: int = 0
    appended: int = 0
    is_current: bool = False
    has_served: bool = False

    async def read(self, request: pb.ReadRequest, _: Context) -> AsyncIterator[pb.ReadResponse]:
        """Answer a look with the head, a first read with five bytes, and a later one with what follows."""
        if request.metadata_only:
            self.looks += 1
            self.clock.now_seconds += HEAD_DOUBT_SECONDS
            head = OLD_HEAD if self.has_served and not self.is_current else PLAYED
            yield pb.ReadResponse(
                status=pb.OFFSET_NOT_YET_AVAILABLE, header=header(), offset=head, write_head=head
            )
            return
        content = b"log" if self.has_served else b"x" * PLAYED
        yield metadata(request.offset, 0, PLAYED + 3)
        yield pb.ReadResponse(offset=request.offset, content=content)
        if self.has_served:
            await asyncio.Event().wait()
        self.has_served = True

    async def append(
        self, requests: AsyncIterator[pb.AppendRequest], _: Context
    ) -> pb.AppendResponse:
        """Refuse some, then answer with the head that the replicas agree on."""
        content, _whole = await received(requests)
        assert content == b"", "a question writes nothing"
        self.appended += 1
        if self.appended <= self.appends_refused:
            return refused(pb.INSUFFICIENT_JOURNAL_BROKERS)
        self.is_current = True
        return committed(self.agreed_head, self.agreed_head)


async def _spans(replica: LaggingReplica, count: int) -> list[ReadSpan]:
    """Return what a feed delivers of the log."""
    arrived, spans = asyncio.Event(), list[ReadSpan]()
    policy = TransportPolicy(patience_seconds=0.0)
    async with (
        ScriptedBroker(on_read=replica.read, on_append=replica.append) as broker,
        JournalClient(broker.address, policy=policy, clock=replica.clock) as client,
        TaskGroup() as group,
    ):
        feeds = LogFeeds(client, PlaybackPosition(LOG, 0), group, arrived.set, linger_seconds=0)
        try:
            while len(spans) < count:
                arrived.clear()
                span = feeds.take(0)
                if span is not None:
                    spans.append(span)
                else:
                    await arrived.wait()
        finally:
            group.stop()
    return spans


async def test_old_head_of_one_replica_is_no_loss_of_the_log() -> None:
    """Plan: after a crash of brokers a replica shows an old head, for longer than any patience, while the log lacks
    brokers. Why: a standby that believed it called an intact log lost, and was no use for as long as a quarantine.
    """
    replica = LaggingReplica(agreed_head=PLAYED, appends_refused=2)

    spans = await _spans(replica, 2)

    assert spans == [ReadSpan(0, b"x" * PLAYED), ReadSpan(PLAYED, b"log")]
    assert replica.appended == 3, "asked until all replicas answered"


async def test_old_head_on_which_all_replicas_agree_is_a_loss() -> None:
    """A log that really ends before what was played must not be waited for: nobody could recover what follows."""
    replica = LaggingReplica(agreed_head=OLD_HEAD)

    with pytest.raises(LogDataLossError, match=r"offset 5 .*write head is 3"):
        await _spans(replica, 2)

    assert replica.appended == 1
