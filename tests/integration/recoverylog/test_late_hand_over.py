"""A hand-over whose first copy arrives when the log has long been handed on to somebody else."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from broadsheet.consumer.errors import LogDataLossError, LogFencedError
from broadsheet.consumer.recoverylog.player import Player, Recovered
from broadsheet.consumer.recoverylog.recorder import Recorder
from broadsheet.journals.append_service import AppendService
from broadsheet.journals.client import JournalClient
from broadsheet.journals.errors import AppendOutcomeUnknownError
from broadsheet.wire.journal_pb2 import AppendResponse, ApplyRequest
from broadsheet.wire.recorded_op_pb2 import FSMHints
from tests.support.broker import journal_spec
from tests.support.recorded_ops import OpChain

LOG = "logs/late"


class SlowWay(JournalClient):
    """A client whose first append that sets registers is held up on its way, while its sender gives up on it."""

    held: Callable[[], Awaitable[AppendResponse]] | None = None

    async def append(
        self, journal: str, content: bytes | Sequence[bytes | memoryview], **parameters: Any
    ) -> AppendResponse:
        """Append, or hold the append up."""
        if "union_registers" in parameters and self.held is None:
            self.held = partial(super().append, journal, content, **parameters)
            raise AppendOutcomeUnknownError(journal, "the connection broke")
        return await super().append(journal, content, **parameters)


async def _handed_over(journals: JournalClient, author: int, directory: Path) -> Recovered:
    player = Player(journals, FSMHints(log=LOG), directory)
    player.hand_over(author)
    return await player.run()


def _recorder(recovered: Recovered, appends: AppendService) -> Recorder:
    return Recorder(recovered.fsm, appends, log=LOG, author=recovered.author, head=recovered.head)


async def test_copy_of_a_hand_over_that_arrives_late_gives_the_log_back_to_nobody(
    journals: JournalClient, tmp_path: Path
) -> None:
    """The first primary hands the log over twice, for the first copy is held up. A second primary takes over; then the
    copy arrives, and sets the fence. The first one's commit must fail: whoever recovers next does not find it.
    """
    await journals.apply([ApplyRequest.Change(upsert=journal_spec(LOG))])
    async with (
        SlowWay(journals.address) as slow_way,
        AppendService(slow_way) as first_appends,
        AppendService(journals) as second_appends,
    ):
        first = _recorder(await _handed_over(slow_way, 1, tmp_path / "first"), first_appends)
        second = _recorder(await _handed_over(journals, 1000, tmp_path / "second"), second_appends)
        assert slow_way.held is not None
        await slow_way.held()

        for recorder, path in ((first, "/of-first"), (second, "/of-second")):
            await asyncio.to_thread(recorder.create, path)
            with pytest.raises(LogFencedError):
                await asyncio.wrap_future(recorder.barrier())
        third = await _handed_over(journals, 2000, tmp_path / "third")

    assert not third.fsm.links


async def test_log_whose_end_follows_from_something_else_is_not_taken_over(
    journals: JournalClient, tmp_path: Path
) -> None:
    """Operations at the end bear numbers that come later: a hand-over would give their numbers to others, and undo what
    somebody may have committed.
    """
    await journals.apply([ApplyRequest.Change(upsert=journal_spec(LOG))])
    stray = OpChain(7, seq=9, checksum=1)
    await journals.append(LOG, OpChain(6).create("/a").framed + stray.create("/b").framed)

    with pytest.raises(LogDataLossError, match="would lose them"):
        await _handed_over(journals, 1, tmp_path / "first")
