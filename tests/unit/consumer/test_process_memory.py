"""When a process gives memory back: after a busy time, a few times, and never while it works."""

from __future__ import annotations

from broadsheet.runtime.interpreter import BUSY_SHARE, LOOK_SECONDS, TRIM_LOOKS, IdleTrims

BUSY, IDLE = BUSY_SHARE * LOOK_SECONDS * 2, BUSY_SHARE * LOOK_SECONDS / 2


def _trims(*loads: float) -> list[int]:
    """Return after which looks memory is given back."""
    trims = IdleTrims()
    return [number for number, load in enumerate(loads) if trims.look(load, LOOK_SECONDS)]


def test_idle_process_that_was_never_busy_is_left_alone() -> None:
    """What it holds is what it needs: looking for more would cost it processor time for nothing."""
    assert _trims(*[IDLE] * 100) == []


def test_busy_process_is_not_disturbed() -> None:
    """A trim walks the whole heap with the interpreter held."""
    assert _trims(*[BUSY] * 100) == []


def test_memory_is_given_back_some_times_after_a_busy_time() -> None:
    """Some is let go of only minutes after the last message; then nothing is left to look for."""
    assert _trims(BUSY, *[IDLE] * 100) == list(TRIM_LOOKS)


def test_each_busy_time_begins_anew() -> None:
    """Traffic that comes and goes."""
    assert _trims(BUSY, IDLE, BUSY, BUSY, IDLE, IDLE) == [1, 4]
