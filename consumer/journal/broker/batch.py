"""What a commit takes: the staged content of appends that become durable together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from consumer.journal.broker.disk import Buffer


class Content(Protocol):
    """Bytes of one append, staged."""

    @property
    def length(self) -> int:
        """Bytes."""
        ...

    @property
    def sum(self) -> bytes:
        """SHA-1, 20 bytes."""
        ...

    def blocks(self) -> Iterable[Sequence[Buffer]]:
        """Yield groups of buffers, in order; reads a staging file where there is one. Blocking."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Appends that become durable together."""

    contents: Sequence[Content]
    registers: bytes | None
    """Encoded LabelSet after the batch, if it changed them."""
    confirms: bool = False
    """Accepts that earlier bytes are lost."""
    at_ms: int
    """Wall time, Unix milliseconds."""
