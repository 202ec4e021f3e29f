"""Whether an append of long ago has landed: by looking for it, for nobody is left who knows."""

from __future__ import annotations

from contextlib import aclosing

from consumer.errors import JournalNotFoundError
from consumer.journal.client import JournalClient

SKEW_SECONDS = 3600.0
"""By how much clocks of writers and brokers may differ."""


async def has_landed(
    journals: JournalClient, journal: str, frame: bytes, *, at_unix_seconds: float
) -> bool:
    """Return whether a frame that is like no other stands in a journal; reads it from when the frame was made.

    Args:
        journals: Reads.
        journal: Its name; one that is gone has nothing.
        frame: Holds a UUID.
        at_unix_seconds: When it was made.

    Raises:
        ConsumerError: the journal cannot be read now.
    """
    begin_mod_time = max(0, int(at_unix_seconds - SKEW_SECONDS))
    reader = journals.reader(journal, block=False, begin_mod_time=begin_mod_time)
    before = b""
    try:
        async with aclosing(reader):
            async for span in reader:
                content = before + span.content
                if frame in content:
                    return True
                before = content[-len(frame) :]
    except JournalNotFoundError:
        return False
    return False
