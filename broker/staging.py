"""Staged content of uncommitted appends: in memory while small and memory is free, else in files.

If appends *waited* for memory, they could wait for each other forever. So none waits: an append that finds the memory
in use continues in a separate file.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import secrets
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from broadsheet.broker.config import BrokerConfig
from broadsheet.broker.disk import Buffer, Disk, close_quietly
from broadsheet.journals.block_sums import BlockSums

if TYPE_CHECKING:
    from hashlib import _Hash as Hash  # the stubs' name for what hashlib returns

BLOCK_BYTES = 1 << 20
"""Bytes read back from a staging file at once."""
INLINE_HASH_BYTES_MAX = 64 * 1024
"""Content below this length is hashed at once, because a hop to another thread costs more."""
HASH_BYTES_MIN = 1 << 20
"""Least content that is worth a hop to a thread while more is received."""
JOIN_BYTES_MAX = 4 * 1024
"""Chunks below this length are joined by copying."""


class StagingArea:
    """Hands out staging space and counts the memory in use."""

    def __init__(self, disk: Disk, directory: Path, config: BrokerConfig) -> None:
        self.disk = disk
        self.directory = directory
        self.append_bytes_max = config.append_bytes_max
        self.append_memory_bytes_max = config.append_memory_bytes_max
        self._memory_bytes_max = config.staged_memory_bytes_max
        self.memory_bytes = 0
        """Memory in use, bytes."""

    def try_take(self, length: int) -> bool:
        """Count `length` bytes of memory as used, unless that exceeds the bound."""
        if self.memory_bytes + length > self._memory_bytes_max:
            return False
        self.memory_bytes += length
        return True

    def give_back(self, length: int) -> None:
        """Count memory as free again."""
        self.memory_bytes -= length


class StagedContent:
    """Content of one append. Filled on the loop; read by the commit in a thread."""

    def __init__(self, area: StagingArea, *, summed: bool) -> None:
        """Begin without content.

        Args:
            area: Where there is space.
            summed: Whether to sum what is added up, for `sum`.
        """
        self._area = area
        self.summed = summed
        """True if `sum` is available."""
        self._parts: list[Buffer] = []
        self._taken = 0
        self._sha1 = hashlib.sha1(usedforsecurity=False) if summed else None
        self._unhashed: list[memoryview] = []
        """Content that `_sha1` does not include yet, in order."""
        self._unhashed_bytes = 0
        self._spool_fd: int | None = None
        self._spooled = 0
        self._working = threading.Lock()
        """Held by the one running job, so that a discard cannot close its file."""
        self._discarded = False
        self._job: asyncio.Future[None] | None = None
        self.spool: Path | None = None
        """The staging file, if there is one."""
        self.length = 0
        """Bytes staged."""
        self.handed_over = False
        """True once the committer has the content, which then discards it after the answer."""

    async def add(self, chunk: memoryview) -> None:
        """Add a chunk. It is hashed, and written if necessary, while the next ones are received.

        Raises:
            OSError: the staging file could not be written.
        """
        await self._finish_job()
        self.length += len(chunk)
        in_memory = (
            self.spool is None
            and self.length <= self._area.append_memory_bytes_max
            and self._area.try_take(len(chunk))
        )
        if not in_memory:
            if self.spool is None:
                self.spool = self._area.directory / secrets.token_hex(8)
            chunks = [*self._take_unhashed(), chunk] if self.summed else []
            self._job = self._area.disk.submit(lambda: self._spill(chunk, chunks))
            return
        self._taken += len(chunk)
        self._keep(chunk)
        if not self.summed:
            return
        self._unhashed.append(chunk)
        self._unhashed_bytes += len(chunk)
        # A small chunk does not wait, because the overhead of each waiting object is not counted.
        if len(chunk) < INLINE_HASH_BYTES_MAX or self._unhashed_bytes >= HASH_BYTES_MIN:
            self._start_hashing()

    def _start_hashing(self) -> None:
        """Hash pending chunks, in another thread unless they are small. Requires that no job is running."""
        is_little = self._unhashed_bytes < INLINE_HASH_BYTES_MAX
        chunks = self._take_unhashed()
        if is_little:
            self._hash(chunks)
        else:
            self._job = self._area.disk.submit(lambda: self._hash(chunks))

    def _take_unhashed(self) -> list[memoryview]:
        chunks, self._unhashed, self._unhashed_bytes = self._unhashed, [], 0
        return chunks

    def _keep(self, chunk: memoryview) -> None:
        """Keep a chunk in memory; small ones are joined, because the overhead of each object is not counted."""
        if len(chunk) >= JOIN_BYTES_MAX:
            self._parts.append(chunk)
        elif self._parts and isinstance(last := self._parts[-1], bytearray):
            last += chunk
        else:
            self._parts.append(bytearray(chunk))

    async def settle(self) -> None:
        """Return when everything added is hashed and stored.

        Raises:
            OSError: the staging file could not be written.
        """
        await self._finish_job()
        if self._unhashed:
            self._start_hashing()
            await self._finish_job()

    async def _finish_job(self) -> None:
        job, self._job = self._job, None
        if job is not None:
            await job
        if self.spool is not None:
            self._parts.clear()
            self._release_memory()

    @property
    def exceeds_bound(self) -> bool:
        """True if this append exceeds the largest allowed size."""
        return self.length > self._area.append_bytes_max

    @property
    def sum(self) -> bytes:
        """SHA-1 of the added content, 20 bytes; once settled. Requires `summed`."""
        assert self._sha1 is not None, "the content is not summed"
        return self._sha1.digest()

    def _hash(self, chunks: Sequence[memoryview]) -> None:
        with self._working:
            self._update_sum(chunks)

    def _update_sum(self, chunks: Sequence[memoryview]) -> None:
        if self._sha1 is not None:
            for chunk in chunks:
                self._sha1.update(chunk)

    def _spill(self, chunk: memoryview, unhashed: Sequence[memoryview]) -> None:
        """Write the content in memory and a chunk to the file; hash the pending chunks."""
        with self._working:
            if self._discarded or self.spool is None:
                return
            if self._spool_fd is None:
                self._spool_fd = os.open(
                    self.spool, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
                )
            self._update_sum(unhashed)
            self._spooled = self._area.disk.write_at(
                self._spool_fd, [*self._parts, chunk], self._spooled
            )

    def blocks(self) -> Iterable[Sequence[Buffer]]:
        """Return the content in order, in groups of buffers. Blocking, while it is iterated over."""
        # Not a generator, because a commit asks three times, and content is nearly always in memory.
        if self._spool_fd is None:
            return (self._parts,) if self._parts else ()
        return self._spooled_blocks(self._spool_fd)

    def _spooled_blocks(self, spool_fd: int) -> Iterator[Sequence[Buffer]]:
        for position in range(0, self._spooled, BLOCK_BYTES):
            yield [os.pread(spool_fd, BLOCK_BYTES, position)]

    def discard(self) -> None:
        """Free memory and file. Idempotent; also after the file was adopted as a fragment."""
        if self._discarded:
            return
        self._discarded = True
        self._parts = []
        self._release_memory()
        if self.spool is not None:
            # Not awaited, because the caller may be on its way out, and the lock keeps the order.
            self._area.disk.submit(self._remove_spool)

    def _remove_spool(self) -> None:
        with self._working:
            if self._spool_fd is not None:
                close_quietly(self._spool_fd)
            if self.spool is not None:
                with contextlib.suppress(OSError):
                    self.spool.unlink()

    def _release_memory(self) -> None:
        self._area.give_back(self._taken)
        self._taken = 0


# Input of a commit: the staged content of appends that become durable together.


class StagedAppend(Protocol):
    """Bytes of one append, staged."""

    @property
    def length(self) -> int:
        """Bytes."""
        ...

    def blocks(self) -> Iterable[Sequence[Buffer]]:
        """Yield groups of buffers, in order; reads the staging file if there is one. Blocking."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Appends that become durable together."""

    contents: Sequence[StagedAppend]
    registers: bytes | None
    """Encoded LabelSet after the batch, if it changed them."""
    confirms: bool = False
    """True if the batch accepts that earlier bytes are lost."""
    at_ms: int
    """Wall time, Unix milliseconds."""


def extend_sums(sha1: Hash, blocks: BlockSums, contents: Sequence[StagedAppend]) -> int:
    """Extend a digest and the block checksums by all contents and return their length, bytes. Blocking."""
    length = 0
    for content in contents:
        for group in content.blocks():
            for buffer in group:
                sha1.update(buffer)
                blocks.update(buffer)
                length += len(buffer)
    return length


def joined(contents: Sequence[StagedAppend]) -> bytes:
    """Return all contents in one piece. Blocking."""
    return b"".join(
        buffer for content in contents for group in content.blocks() for buffer in group
    )
