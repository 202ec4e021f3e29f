"""Whether an append of long ago has landed: by looking for it, for nobody is left who knows."""

from __future__ import annotations

from contextlib import aclosing

from consumer.errors import JournalNotFoundError
from consumer.journal.client import JournalClient
from consumer.message.clock import unix_seconds_of
from consumer.message.rollback import UUID_TEXT_BYTES, Rollback, last_acknowledgement

LANDED_BYTES_MAX = 256 << 20
"""How much of an output is read for the last acknowledgement of a former producer: some seconds."""
SKEW_SECONDS = 3600.0
"""By how much clocks of writers and brokers may differ."""


async def has_landed(
    journals: JournalClient, journal: str, frame: bytes, *, at_unix_seconds: float
) -> bool:
    """Return whether a frame that is like no other stands in a journal, or did and may be gone by its retention.

    Args:
        journals: Reads.
        journal: Its name; one that is gone has nothing.
        frame: Holds a UUID.
        at_unix_seconds: When it was made; the journal is read from then on.

    Raises:
        ConsumerError: the journal cannot be read now.
    """
    since = max(0, int(at_unix_seconds - SKEW_SECONDS))
    try:
        return await _is_gone(journals, journal, since) or await _holds(
            journals, journal, frame, since
        )
    except JournalNotFoundError:
        return False


async def last_landed(
    journals: JournalClient, rollback: Rollback, *, bytes_max: int = LANDED_BYTES_MAX
) -> int | None:
    """Return the clock of the last acknowledgement of a rollback's producer in its journal; the rollback's if none is.

    Args:
        journals: Reads.
        rollback: Made before the producer's first message in the journal, which is read from then on.
        bytes_max: How much is read at most.

    Returns:
        None if nobody can tell: content of that time is gone, or there is too much of it.

    Raises:
        ConsumerError: the journal cannot be read now.
    """
    since = max(0, int(unix_seconds_of(rollback.clock) - SKEW_SECONDS))
    clock, size, before = rollback.clock, 0, b""
    try:
        if await _is_gone(journals, rollback.journal, since):
            return None
        reader = journals.reader(rollback.journal, block=False, begin_mod_time=since)
        async with aclosing(reader):
            async for span in reader:
                size += len(span.content)
                if size > bytes_max:
                    return None
                content = before + span.content
                found = last_acknowledgement(content, rollback.producer)
                clock = clock if found is None else max(clock, found)
                before = content[-UUID_TEXT_BYTES:]
    except JournalNotFoundError:
        pass  # Appending the rollback finds that out, too.
    return clock


async def _is_gone(journals: JournalClient, journal: str, since_unix_seconds: int) -> bool:
    """Return whether content of a time is missing at the journal's beginning."""
    async with journals.reader(journal, block=False, metadata_only=True) as oldest:
        async for _ in oldest:
            pass
    fragment = oldest.fragment
    # An open fragment has no time yet.
    return (
        fragment is not None
        and fragment.begin > 0
        and not 0 < fragment.mod_time < since_unix_seconds
    )


async def _holds(
    journals: JournalClient, journal: str, frame: bytes, since_unix_seconds: int
) -> bool:
    before = b""
    reader = journals.reader(journal, block=False, begin_mod_time=since_unix_seconds)
    async with aclosing(reader):
        async for span in reader:
            content = before + span.content
            if frame in content:
                return True
            before = content[-len(frame) :]
    return False
