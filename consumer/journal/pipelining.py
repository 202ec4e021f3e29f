"""Pipelined appends: sent before their predecessors are acknowledged; the broker preserves the order.

    sequential   append A ─► answer ─► append B ─► answer       two round trips
    pipelined    append A ─┐
                 append B ─┴► A done, then B ─► answers          one

Only appends to the same broker can be pipelined. The broker refuses an append whose predecessors did not succeed,
having written nothing; the client then sends it again once they are answered, without naming them.
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
"""Most predecessors of a pipelined append; one that depends on more waits for their answers."""


@dataclass(frozen=True, slots=True)
class Pipelined:
    """Place of an append in the pipelined order."""

    name: bytes
    """The append's name; never used again."""
    after: tuple[AppendToken, ...] = ()
    """Predecessors that must have succeeded; a broker other than theirs refuses the append."""
    on_sent: Callable[[AppendToken], None] = lambda _: None
    """Called when the append was sent pipelined; not called if it is sent without."""


class TokenSource:
    """Generator of unique names."""

    def __init__(self, random_bytes: Callable[[int], bytes] = os.urandom) -> None:
        """Draw a random prefix, shared by all names."""
        self._prefix = random_bytes(_PREFIX_BYTES)
        self._counts = itertools.count()

    def next(self) -> bytes:
        """Return a new name, 20 bytes."""
        return self._prefix + next(self._counts).to_bytes(_COUNT_BYTES)
