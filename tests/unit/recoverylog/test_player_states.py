"""What a player is asked for, early, late or twice: its state, before anything is played."""

from __future__ import annotations

from pathlib import Path

import pytest

from broadsheet.consumer.recoverylog.player import Player, PlayerState
from broadsheet.journals.client import JournalClient
from broadsheet.wire.recorded_op_pb2 import FSMHints

STOP = 0


@pytest.mark.parametrize(
    ("requests", "state"),
    [
        ((), PlayerState.PLAYING),
        ((STOP,), PlayerState.STOPPING),
        ((STOP, STOP), PlayerState.STOPPING),
        ((5,), PlayerState.HANDING_OVER),
        ((STOP, 5), PlayerState.HANDING_OVER),
        ((5, STOP), PlayerState.HANDING_OVER),
        ((5, 6), PlayerState.HANDING_OVER),
    ],
)
async def test_requests_only_go_forward(
    tmp_path: Path, requests: tuple[int, ...], state: PlayerState
) -> None:
    """A stop may become a hand-over, because a standby that was to end may be promoted; a hand-over is never undone,
    because its operation may be in the log already. Either way no copy of the files is begun any more.
    """
    async with JournalClient("127.0.0.1:1") as journals:
        player = Player(journals, FSMHints(log="logs/a"), tmp_path / "played")

        for author in requests:
            if author == STOP:
                player.stop_at_head()
            else:
                player.hand_over(author)

        assert player.state is state
        player.tailing.set()
        if requests:
            assert not await player.copy_to(tmp_path / "copy")


async def test_story_says_what_each_request_changed(tmp_path: Path) -> None:
    """The newest first: whoever sees only the head of the text sees what came last."""
    async with JournalClient("127.0.0.1:1") as journals:
        player = Player(journals, FSMHints(log="logs/a"), tmp_path / "played")
        player.stop_at_head()
        player.hand_over(5)
        player.stop_at_head()

        lines = [line.strip().partition(" s ")[2] for line in player.story().splitlines()[2:]]

    assert lines[:3] == [
        "stop_at_head(): no change",
        "hand_over(5): state STOPPING → HANDING_OVER, author 0 → 5",
        "stop_at_head(): state PLAYING → STOPPING",
    ]
