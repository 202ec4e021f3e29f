"""A recovery log whose broker lost what a standby has played already."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest

from broadsheet.consumer.errors import LogDataLossError
from broadsheet.embedded.broker import EmbeddedBroker
from broadsheet.journals.client import JournalClient
from tests.support.eventually import eventually
from tests.support.live_logs import NO_HINTS, create_log, recover, tailing

PRIMARY, SUCCESSOR = 11, 22


async def test_standby_does_not_take_over_a_log_that_lost_what_it_played(tmp_path: Path) -> None:
    """Plan: a broker loses the last operation of a log, which a standby has played, and which is as long as the
    hand-over to that standby. Why: no offset would look wrong from then on. The successor would serve and commit, and
    nobody could recover what it committed, because its operations follow from one that is not there.
    """
    directory, older = tmp_path / "broker", tmp_path / "older"
    async with EmbeddedBroker(directory) as broker:
        port = int(broker.address.rpartition(":")[2])
        async with JournalClient(broker.address) as journals:
            await create_log(journals)
    shutil.copytree(directory, older)
    broker = EmbeddedBroker(directory, port=port)
    async with broker, JournalClient(broker.address) as journals:
        with pytest.raises(LogDataLossError, match="landed at 0, and it was played up to"):
            async with tailing(journals, NO_HINTS, tmp_path / "standby") as standby:
                await recover(journals, NO_HINTS, tmp_path / "primary", author=PRIMARY)
                end = await journals.write_head(NO_HINTS.log)
                await eventually(lambda: standby.player.progress.offset == end)
                await broker.stop()
                async with EmbeddedBroker(older, port=port):
                    standby.player.hand_over(SUCCESSOR)
                    await asyncio.shield(standby.running)


async def test_standby_notices_a_log_that_lost_what_it_played_and_grew_beyond(
    tmp_path: Path,
) -> None:
    """Plan: a broker loses what a standby has played, and as much is appended before that standby looks. Why: what
    a primary had under way lands there, and its middle looks like junk to who goes on at the old offset. The successor
    would pass it over, serve and commit, and nobody could recover what it committed.
    """
    directory, older = tmp_path / "broker", tmp_path / "older"
    async with EmbeddedBroker(directory) as broker:
        port = int(broker.address.rpartition(":")[2])
        async with JournalClient(broker.address) as journals:
            await create_log(journals)
    shutil.copytree(directory, older)
    broker = EmbeddedBroker(directory, port=port)
    async with broker, JournalClient(broker.address) as journals:
        with pytest.raises(LogDataLossError, match="not the log that was followed any more"):
            async with tailing(journals, NO_HINTS, tmp_path / "standby") as standby:
                await recover(journals, NO_HINTS, tmp_path / "primary", author=PRIMARY)
                end = await journals.write_head(NO_HINTS.log)
                await eventually(lambda: standby.player.progress.offset == end)
                await broker.stop()
                async with EmbeddedBroker(older, port=port) as again:
                    async with JournalClient(again.address) as others:
                        await others.append(NO_HINTS.log, b"x" * (2 * end))
                    standby.player.hand_over(SUCCESSOR)
                    await asyncio.shield(standby.running)
