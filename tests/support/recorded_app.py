"""An application for members that the terminal starts, whose state is in a recovery log."""

from __future__ import annotations

from pathlib import Path

from tests.support.recorded_tally import SqliteTally

APPLICATION = "tests.support.recorded_app:create"


def create() -> SqliteTally:
    """Make the application of one member. It needs no directory: the log replays into the member's own."""
    return SqliteTally(Path("unused"), output="")
