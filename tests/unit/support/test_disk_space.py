"""Room on the disk for a run of the suite."""

from __future__ import annotations

import pytest

from tests.support.disk_space import NEEDED_BYTES, room_for_a_run


def test_run_without_room_ends_with_what_it_needs_and_where() -> None:
    """A full disk fails any test in any way; the one sentence before the first test names the cause and the cure."""
    assert "the tests need 4 GiB free in /scratch (TMPDIR)" in room_for_a_run(
        "/scratch", NEEDED_BYTES
    )

    with pytest.raises(pytest.exit.Exception, match=r"need 4 GiB free in /scratch .*set TMPDIR"):
        room_for_a_run("/scratch", NEEDED_BYTES - 1)
