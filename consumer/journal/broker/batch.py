"""What a commit takes: the staged content of appends that become durable together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from consumer.journal.broker.block_sums import BlockSums
from consumer.journal.broker.disk import Buffer

if TYPE_CHECKING:
    from hashlib import _Hash as Hash  # the stubs' name for what hashlib returns


class Content(Protocol):
    """Bytes of one append, staged."""

    @property
    def length(self) -> int:
        """Bytes."""
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


def extend_sums(sha1: Hash, blocks: BlockSums, contents: Sequence[Content]) -> int:
    """Extend a digest and the sums of blocks by all contents and return their length, bytes. Blocking."""
    length = 0
    for content in contents:
        for group in content.blocks():
            for buffer in group:
                sha1.update(buffer)
                blocks.update(buffer)
                length += len(buffer)
    return length


def joined(contents: Sequence[Content]) -> bytes:
    """Return all contents in one piece. Blocking."""
    return b"".join(
        buffer for content in contents for group in content.blocks() for buffer in group
    )
