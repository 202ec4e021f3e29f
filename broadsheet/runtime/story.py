"""The story of a state machine: its recent events with what each changed, for the error that an invariant failed.

A machine appends a plain tuple for each event to a bounded ring, which costs about a microsecond. The text is made
when somebody reads the story.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator

STORY_EVENTS: Final = 32
"""Events that a machine remembers: a few transactions, and less text than a failed status may hold."""

StoryEntry = tuple[float, str, tuple[object, ...], tuple[object, ...], tuple[type, ...]]
"""When (monotonic seconds), the event, its details, the state after it, and the kinds of what it ordered."""


def new_story() -> deque[StoryEntry]:
    """Return an empty ring; its first entry is only what the second one is compared with."""
    return deque(maxlen=STORY_EVENTS + 1)


def story_text(machine: str, entries: Sequence[StoryEntry], fields: Sequence[str]) -> str:
    """Return the story as text, one line an event, the newest first, because a status keeps only the head of a text.

    Args:
        machine: Whose story it is.
        entries: In order of time; the first one tells the state before the others.
        fields: Names of the parts of the state.
    """
    newest_at = entries[-1][0]
    count = len(entries) - 1
    lines = [f"the last {count} events of {machine}, the newest first, at {newest_at:.4f} s:"]
    for before, (at, event, details, state, orders) in reversed(list(pairwise(entries))):
        changes = [
            f"{name} {_shown(old)} → {_shown(new)}"
            for name, old, new in zip(fields, before[3], state, strict=True)
            if old != new
        ]
        what = f"{event}({', '.join(map(_shown, details))})"
        ordered = f" ⇒ {', '.join(order.__name__ for order in orders)}" if orders else ""
        lines.append(
            f"  {at - newest_at:+.3f} s {what}: {', '.join(changes) or 'no change'}{ordered}"
        )
    known = zip(fields, entries[0][3], strict=True)
    lines.append(f"  before: {', '.join(f'{name} {_shown(value)}' for name, value in known)}")
    return "\n".join(lines)


@contextmanager
def noting(story: Callable[[], str]) -> Iterator[None]:
    """Add a story to an AssertionError that leaves the block, as a note."""
    try:
        yield
    except AssertionError as error:
        error.add_note(story())
        raise


def _shown(value: object) -> str:
    return value.name if isinstance(value, Enum) else str(value)
