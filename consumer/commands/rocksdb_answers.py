"""Answers in a `RocksDbStore`, below a prefix of its keys.

{prefix}i{id}                        → {at_ms, 8 bytes}{content}
{prefix}t{at_ms, 8 bytes}{id}        → nothing        the order in which they are forgotten
"""

from __future__ import annotations

import struct
from itertools import islice

from broadsheet.consumer.commands.answers import KeptAnswer
from broadsheet.consumer.stores.rocksdb.store import RocksDbStore

_TIME = struct.Struct(">q")
"""Big-endian, so that keys are in the order of times; those before 1970 do not occur."""


class RocksDbAnswers:
    """Keeps answers in a `RocksDbStore`, among the application's keys."""

    def __init__(self, prefix: bytes = b"\xffbroadsheet.answers\x00") -> None:
        """Use the keys that begin with `prefix`, which must be the answers' alone."""
        self._by_id = prefix + b"i"
        self._by_time = prefix + b"t"

    def get(self, store: RocksDbStore, command_id: str) -> KeptAnswer | None:
        """Return the answer of a command; None if there is none."""
        kept = store.get(self._by_id + command_id.encode())
        if kept is None:
            return None
        return KeptAnswer(_TIME.unpack_from(kept)[0], kept[_TIME.size :])

    def keep(self, store: RocksDbStore, command_id: str, answer: KeptAnswer) -> None:
        """Keep an answer in the running transaction."""
        time, encoded = _TIME.pack(answer.at_ms), command_id.encode()
        store.put(self._by_id + encoded, time + answer.content)
        store.put(self._by_time + time + encoded, b"")

    def forget(self, store: RocksDbStore, before_ms: int, limit: int) -> int:
        """Remove the oldest answers from before a time."""
        end = self._by_time + _TIME.pack(before_ms)
        old = [key for key, _ in islice(store.items(self._by_time, end), limit)]
        for key in old:
            store.delete(key)
            store.delete(self._by_id + key[len(self._by_time) + _TIME.size :])
        return len(old)
