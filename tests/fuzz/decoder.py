"""One decoder under test, and the registry of all of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FuzzedDecoder:
    """A decoder, what it may raise, and valid bytes to mutate."""

    name: str
    """`area.what`; part of each mutant's seed."""
    seeds: Callable[[], Sequence[bytes]]
    """Returns valid bytes, which it must accept."""
    decode: Callable[[bytes], object]
    """Decodes bytes, and looks at all of what comes of it."""
    allowed: tuple[type[BaseException], ...]
    """The documented errors. Anything else is a finding, and so is a crash, a hang or a burst of memory."""
    cost: int = 1
    """How many mutants of others take as long as one of its own."""
