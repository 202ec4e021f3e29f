"""Whether an append of long ago has landed: by looking for it, for nobody is left who knows."""

from __future__ import annotations

from contextlib import aclosing

from consumer.errors import JournalNotFoundError
from consumer.journal.client import JournalClient
from consumer.message.rollback import UUID_TEXT_BYTES, Rollback, last_acknowledgement
from consumer.message.uuid import unix_seconds_of
from consumer.protocol.journal_pb2 import Fragment

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
        oldest, _ = await _oldest(journals, journal)
        return _is_gone(oldest, since) or await _holds(journals, journal, frame, since)
    except JournalNotFoundError:
        return False


async def last_landed(
    journals: JournalClient, rollback: Rollback, *, bytes_max: int = LANDED_BYTES_MAX
) -> int | None:
    """Return the clock of the last acknowledgement of a rollback's producer in its journal; the rollback's if none is.

    A journal with no more content than may be read is read whole, so that it does not matter whether the producer's
    clock was right. Of others, what is older than the rollback is passed over.

    Args:
        journals: Reads.
        rollback: Made before the producer's first message in the journal.
        bytes_max: How much is read at most.

    Returns:
        None if nobody can tell: content of that time is gone, or there is too much of it.

    Raises:
        ConsumerError: the journal cannot be read now.
    """
    since = max(0, int(unix_seconds_of(rollback.clock) - SKEW_SECONDS))
    clock, size, before = rollback.clock, 0, b""
    try:
        oldest, write_head = await _oldest(journals, rollback.journal)
        if _is_gone(oldest, since):
            return None
        if oldest is not None and write_head - oldest.begin <= bytes_max:
            since = 0
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


async def _oldest(journals: JournalClient, journal: str) -> tuple[Fragment | None, int]:
    """Return the first fragment that a journal has, if any, and its write head, bytes."""
    async with journals.reader(journal, block=False, metadata_only=True) as oldest:
        async for _ in oldest:
            pass
    return oldest.fragment, oldest.write_head


def _is_gone(oldest: Fragment | None, since_unix_seconds: int) -> bool:
    """Return whether content of a time is missing at the journal's beginning."""
    # An open fragment has no time yet.
    return oldest is not None and oldest.begin > 0 and not 0 < oldest.mod_time < since_unix_seconds


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
