"""Requests that reach a player while it waits for the broker, or when all is decided."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from broadsheet.consumer.recoverylog.fence import author_text
from broadsheet.consumer.recoverylog.player import Player, PlayerState
from broadsheet.journals.client import JournalClient
from broadsheet.wire.journal_pb2 import AppendResponse
from tests.support.live_logs import NO_HINTS, create_log
from tests.support.recorded_ops import LOG


class Told(JournalClient):
    """A client that tells of each append when it is done."""

    on_append: Callable[[bool], None] = staticmethod(lambda _: None)
    """Is told whether the append sets registers, as one that takes the fence does."""

    async def append(
        self, journal: str, content: bytes | Sequence[bytes | memoryview], **parameters: Any
    ) -> AppendResponse:
        """Append."""
        response = await super().append(journal, content, **parameters)
        self.on_append("union_registers" in parameters)
        return response


async def registers_of(journals: JournalClient) -> dict[str, str]:
    """Return the log's registers."""
    response = await journals.append(LOG, b"")
    return {label.name: label.value for label in response.registers.labels}


async def test_late_requests_do_not_undo_a_fence(journals: JournalClient, tmp_path: Path) -> None:
    """Our operation has the fence; then a stop and another author are asked for. The log belongs to the author that the
    fence names: a recorder under another name would be refused by the broker.
    """
    await create_log(journals)
    seen: list[PlayerState] = []

    def ask_again() -> None:
        seen.append(player.state)
        player.stop_at_head()
        player.hand_over(9)
        seen.append(player.state)

    def on_append(fence: bool) -> None:
        if fence:  # Once the player has seen the answer.
            asyncio.get_running_loop().call_soon(ask_again)

    async with Told(journals.address) as told:
        told.on_append = on_append
        player = Player(told, NO_HINTS, tmp_path / "played")
        player.hand_over(1)
        recovered = await player.run()

    assert seen == [PlayerState.FENCED, PlayerState.FENCED]
    assert player.state is PlayerState.FINISHED
    assert recovered.author == 1
    assert await registers_of(journals) == {"author": author_text(1)}
    player.stop_at_head()
    player.hand_over(9)
    assert player.state is PlayerState.FINISHED
    assert "HANDING_OVER → FENCED" in player.story()
    assert "FENCED → FINISHED" in player.story()


async def test_hand_over_asked_for_while_it_stops_is_made(
    journals: JournalClient, tmp_path: Path
) -> None:
    """A player that stops asks the broker where the log ends; meanwhile its shard is promoted. It must not return with
    an author's name that the log has never seen.
    """
    await create_log(journals)
    appends = 0

    def on_append(_: bool) -> None:
        nonlocal appends
        appends += 1
        if (
            appends == 2
        ):  # The first one finds the head before it plays, the second one before it stops.
            player.hand_over(7)

    async with Told(journals.address) as told:
        told.on_append = on_append
        player = Player(told, NO_HINTS, tmp_path / "played")
        player.stop_at_head()
        recovered = await player.run()

    assert recovered.author == 7
    assert await registers_of(journals) == {"author": author_text(7)}


async def test_failed_invariant_below_a_player_carries_its_story(
    journals: JournalClient, tmp_path: Path
) -> None:
    """Whoever reads the report sees what the player had been asked for, and how far it had come."""
    await create_log(journals)

    def on_append(fence: bool) -> None:
        assert not fence, "no fence today"

    async with Told(journals.address) as told:
        told.on_append = on_append
        player = Player(told, NO_HINTS, tmp_path / "played")
        player.hand_over(1)
        with pytest.raises(AssertionError, match="no fence today") as failed:
            await player.run()

    (note,) = failed.value.__notes__
    assert f"events of the player of {LOG}, the newest first" in note
    assert "tailing False → True" in note
    assert "hand_over(1): state PLAYING → HANDING_OVER, author 0 → 1" in note
