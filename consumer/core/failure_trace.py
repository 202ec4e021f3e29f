"""What an error says of itself, and where it was raised, as text for statuses and the log."""

from __future__ import annotations

import traceback

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
