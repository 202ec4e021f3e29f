"""What an error says of itself, and where it was raised, as text for statuses and the log."""

from __future__ import annotations

import traceback
from collections.abc import Collection

from consumer.errors import FramingError
from consumer.protocol.labels import DEAD_LETTER_JOURNAL

TRACE_LENGTH_MAX = 16_384
"""Code points. The end is kept: it has the innermost call of what was raised last, and its message."""

CUT = "[...]\n"


def trace_of(error: BaseException) -> str:
    """Return the traceback of an error and of what caused it, without local variables.

    As text, not as the error itself: what renders errors for a terminal reads sources and shows the values of every
    frame, which takes seconds, on the loop that renews the lease.
    """
    text = "".join(traceback.format_exception(error))
    return text if len(text) <= TRACE_LENGTH_MAX else CUT + text[-TRACE_LENGTH_MAX:]


def text_of(cause: BaseException) -> str:
    """Return what a failure says of itself, and what was noted on its way."""
    notes = "".join(f"; {note}" for note in getattr(cause, "__notes__", ()))
    return f"{str(cause) or type(cause).__name__}{notes}"


def way_past(cause: BaseException, *, sources: Collection[str], can_skip: bool) -> str:
    """Return how an operator gets a shard past bytes that are no message; nothing if they are not the cause.

    Args:
        cause: Why the shard failed.
        sources: Its journals; what is wrong in others is nothing to pass by.
        can_skip: It has a dead-letter journal, so no operator has to act.
    """
    if can_skip or not isinstance(cause, FramingError) or cause.journal not in sources:
        return ""
    beyond = str(cause.end) if cause.end is not None else f"an offset behind {cause.offset}"
    return (
        f"; to go on without it, name a journal by the label {DEAD_LETTER_JOURNAL}, which keeps what is left out, "
        f"or set min_offset of source {cause.journal} to {beyond}, which skips all that is not committed below it"
    )
