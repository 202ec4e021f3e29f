"""Checksums of the blocks of stored fragments: asked for once, and remembered.

They are remembered by what a fragment is, its SHA-1 and its length, and not by where it is. So what a disk or a store
returns is verified each time it is read, also of a file that was verified before.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, TypeAlias

from broadsheet.journals.block_sums import StoredSums, sums_bytes
from broadsheet.journals.fragment_content import KnownSums, sum_of
from broadsheet.wire.journal_pb2 import Fragment

REMEMBERED_BYTES_MAX: Final = 8 << 20
"""Checksums that are remembered, which is those of 16 GiB of content."""

AskSums: TypeAlias = Callable[[Fragment], Awaitable[StoredSums | None]]
"""Returns the checksums of a fragment as its broker tells them, or None if it has none. Raises `DirectReadError`: the
broker does not answer, or does not have the fragment any more."""


class KnownSumsCache:
    """Checksums by fragment. Belongs to one event loop; `get` and `keep` are also called in threads."""

    def __init__(self, ask: AskSums) -> None:
        self._ask = ask
        self._by_fragment: OrderedDict[tuple[int, bytes], KnownSums] = OrderedDict()
        """Those first that were used least recently."""
        self._bytes = 0

    def get(self, fragment: Fragment) -> KnownSums | None:
        """Return what is remembered of a fragment."""
        return self._by_fragment.get(_key(fragment))

    def keep(self, fragment: Fragment, known: KnownSums) -> None:
        """Remember the checksums of a fragment."""
        # Several threads may be here. Each operation on the dictionary is atomic, and the count of
        # bytes is a bound that need not be exact.
        if self._by_fragment.pop(_key(fragment), None) is None:
            self._bytes += sums_bytes(known.sums.length)
        self._by_fragment[_key(fragment)] = known
        while self._bytes > REMEMBERED_BYTES_MAX and len(self._by_fragment) > 1:
            _, gone = self._by_fragment.popitem(last=False)
            self._bytes -= sums_bytes(gone.sums.length)

    async def find(self, fragment: Fragment) -> KnownSums | None:
        """Return the checksums of a fragment, asked of its broker unless they are remembered; None if it has none.

        Raises:
            DirectReadError: the broker does not answer, or does not have the fragment any more.
        """
        known = self.get(fragment)
        if known is not None:
            return known
        sums = await self._ask(fragment)
        if sums is None:
            return None
        known = KnownSums(sums, agree=False)
        self.keep(fragment, known)
        return known


def _key(fragment: Fragment) -> tuple[int, bytes]:
    return fragment.end - fragment.begin, sum_of(fragment)
