"""Offsets of a shard's completed transactions, and requests that wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping

ACKNOWLEDGED = "acknowledged"
"""To be told: the restored checkpoint's acknowledgements were written again."""
UNDONE = "undone"
"""To be told: what former producers left is rolled back, and it is known where their messages end."""


class Progress:
    """Offsets read and published by completed transactions; lives on the event loop."""

    def __init__(self, journals: Iterable[str], *, awaits: Iterable[str] = ()) -> None:
        """Start at offset 0 of each of `journals`.

        Args:
            journals: The sources.
            awaits: What must be `told` before a waiter is let through. Until then we do not know where all messages
                published for the offsets read end, and a reader that follows them downstream would miss some.
        """
        self._read_through = dict.fromkeys(journals, 0)
        self._awaits = set(awaits)
        self._publish_at: dict[str, int] = {}
        self._changed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def copies(self) -> tuple[dict[str, int], dict[str, int]]:
        """Return (read_through, publish_at), bytes by journal."""
        return dict(self._read_through), dict(self._publish_at)

    def update(self, read_through: Mapping[str, int], publish_at: Mapping[str, int]) -> None:
        """Adopt newer offsets, and wake waiting requests. No offset decreases.

        A checkpoint restored in place may lag behind reported offsets: duplicates read after it are in no checkpoint.

        A checkpoint restored in place may fall behind what was reported: duplicates read after it are in no checkpoint.
        """
        _advance(self._read_through, read_through)
        _advance(self._publish_at, publish_at)
        self._wake()

    def told(self, what: str) -> None:
        """Record that an awaited fact is known. Idempotent."""
        if what in self._awaits:
            self._awaits.discard(what)
            self._wake()

    def _wake(self) -> None:
        # A new future for each change: a waiter on the old one is woken once, and looks again.
        changed, self._changed = self._changed, asyncio.get_running_loop().create_future()
        changed.set_result(None)

    def has_read(self, offsets: Mapping[str, int]) -> bool:
        """Return whether all of `offsets` were read through; an unread journal counts as 0."""
        return all(
            self._read_through.get(journal, 0) >= offset for journal, offset in offsets.items()
        )

    async def wait_for(
        self, offsets: Mapping[str, int], *, ended: asyncio.Future[BaseException | None]
    ) -> bool:
        """Wait until all of `offsets` were read through; False if `ended` resolved first.

        `copies` then includes the ends of all messages published from them, by this process or another.
        """
        while offsets and (self._awaits or not self.has_read(offsets)):
            if ended.done():
                return False
            await asyncio.wait((self._changed, ended), return_when=asyncio.FIRST_COMPLETED)
        return True


def _advance(offsets: dict[str, int], newer: Mapping[str, int]) -> None:
    for journal, offset in newer.items():
        offsets[journal] = max(offset, offsets.get(journal, 0))
