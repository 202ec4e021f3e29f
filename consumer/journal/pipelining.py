"""Appends that are sent before those are answered which they depend on: the broker keeps their order.

    before     append A ─► answer ─► append B ─► answer         two ways there and back
    in turn    append A ─┐
               append B ─┴► A done, then B ─► answers            one

Only what one broker appends can be in turn. It refuses what is out of turn, having written nothing; that is then sent
once the others are answered, as if there had been no turns.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from dataclasses import dataclass

from broadsheet.consumer.op_future import AppendToken

_PREFIX_BYTES = 12
_COUNT_BYTES = 8
AFTER_MAX = 16
"""An append that depends on more than these waits for their answers."""


@dataclass(frozen=True, slots=True)
class Pipelined:
    """An append's place among others."""

    name: bytes
    """Its own; never used again."""
    after: tuple[AppendToken, ...] = ()
    """What must have succeeded first; a broker that is not theirs refuses."""
    on_sent: Callable[[AppendToken], None] = lambda _: None
    """Called when it is on its way in turn; not called if it goes without."""


class TokenSource:
    """Makes names that nobody else makes."""

    def __init__(self, random_bytes: Callable[[int], bytes] = os.urandom) -> None:
        """Take a source of randomness, for all names together."""
        self._prefix = random_bytes(_PREFIX_BYTES)
        self._counts = itertools.count()

    def next(self) -> bytes:
        """Return another name, 20 bytes."""
        return self._prefix + next(self._counts).to_bytes(_COUNT_BYTES)
