"""The state as of one commit, for queries, whatever is written meanwhile.

An iterator of RocksDB sees the database as it was when the iterator was made. We make one for each family after each
commit, and answer everything from those: `rocksdict` (0.3.29) has snapshots, but their iterators see newer writes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from rocksdict import RdictIter

DEFAULT_FAMILY: Final = "default"

RESERVED_PREFIX: Final = b"\x00"
"""Keys of the default family that begin so are the store's own."""

_RUN_KEYS: Final = 256
"""Keys read at a time, under the lock."""


class CommittedView:
    """The column families as of a commit. Good only within the call that it is given to."""

    def __init__(self, iterators: Mapping[str, RdictIter]) -> None:
        """Show what the iterators see, by family."""
        self._iterators = iterators
        # Queries of several threads move the same iterators.
        self._lock = threading.Lock()

    @property
    def families(self) -> Iterable[str]:
        """The names of the column families."""
        return self._iterators.keys()

    def get(self, key: bytes, *, family: str = DEFAULT_FAMILY) -> bytes | None:
        """Return the value of `key`; None if it has none."""
        iterator = self._iterators[family]
        with self._lock:
            iterator.seek(key)
            if not iterator.valid() or iterator.key() != key:
                return None
            value: bytes = iterator.value()
            return value

    def items(
        self, begin: bytes = b"", end: bytes | None = None, *, family: str = DEFAULT_FAMILY
    ) -> Iterator[tuple[bytes, bytes]]:
        """Yield the keys in [begin, end) and their values, in order of keys."""
        iterator = self._iterators[family]
        begin = first_key(family, begin)
        while run := self._run(iterator, begin, end):
            yield from run
            begin = run[-1][0] + b"\x00"  # the next key there can be

    def _run(
        self, iterator: RdictIter, begin: bytes, end: bytes | None
    ) -> list[tuple[bytes, bytes]]:
        """Return the first items of [begin, end)."""
        run: list[tuple[bytes, bytes]] = []
        with self._lock:
            iterator.seek(begin)
            while len(run) < _RUN_KEYS and iterator.valid():
                key: bytes = iterator.key()
                if end is not None and key >= end:
                    break
                run.append((key, iterator.value()))
                iterator.next()
        return run


def first_key(family: str, begin: bytes) -> bytes:
    """Return where a scan from `begin` begins, past the store's own keys."""
    if family == DEFAULT_FAMILY and begin[:1] <= RESERVED_PREFIX:
        return b"\x01"
    return begin
