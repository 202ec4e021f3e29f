"""Recoveries from another shard's log that come to the mark of an earlier attempt at the last moment."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from broadsheet.allocator.model import ItemId
from broadsheet.consumer.errors import SplitDelayedError
from broadsheet.consumer.shard.recovery import Recovery
from broadsheet.journals.client import JournalClient
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.shard_pb2 import ShardSpec
from tests.support.live_logs import NO_HINTS, create_log, recording, recover
from tests.support.live_shards import MEMBER, Counting, ShardHost

pytestmark = pytest.mark.etcd


async def test_log_that_was_played_to_an_earlier_mark_lacks_what_came_behind(
    host: ShardHost, journals: JournalClient, tmp_path: Path
) -> None:
    """The parent rested for an attempt that failed, and went on. A child, or a survivor, whose playback came to that
    mark just before it was told the next one took the files of then for those of now: what the parent had committed
    since was lost.
    """
    await create_log(journals)
    parent = ShardSpec(id="shard-a", recovery_log_prefix="logs", hint_prefix="/hints")
    child = ShardSpec(id="shard-b", recovery_log_prefix="logs", hint_prefix="/hints")
    await host.assign(child)
    recovered = await recover(journals, NO_HINTS, tmp_path / "parent", author=1)
    async with recording(journals, recovered) as recorder, TaskGroup() as group:
        recovery = Recovery(
            child,
            lambda: host.key_space.assignments[ItemId(child.id), MEMBER, 0],
            host.environment(Counting(tmp_path)),
            parent=parent,
        )
        recovery.start(group)
        await recovery.tailing.wait()
        recovery.end_at("/.mark-1")
        recorder.set_property("/.mark-1", "rests")
        await asyncio.wrap_future(recorder.barrier())
        await recovery.ended.wait()
        await recovery.marked()

        recovery.end_at("/.mark-2")
        recorder.set_property("/.mark-2", "rests again")
        await asyncio.wrap_future(recorder.barrier())

        with pytest.raises(SplitDelayedError, match="mark of an earlier attempt"):
            await recovery.marked()
        with pytest.raises(SplitDelayedError, match="mark of an earlier attempt"):
            await recovery.fork()
        await recovery.discard()
        group.stop()
