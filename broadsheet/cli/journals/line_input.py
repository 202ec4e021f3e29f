"""Lines of a file, of a pipe or of a terminal, in blocks as they come."""

from __future__ import annotations

import asyncio
import io
import os
import select
import stat
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import BinaryIO, Final

from broadsheet.runtime.errors import ValidationError

BLOCK_BYTES_MAX: Final = 4 << 20
"""Input that is read before it is handled, and the longest line."""


@dataclass(frozen=True, slots=True)
class LineBlock:
    """Whole lines of the input."""

    first: int
    """Number of the first line, from 1."""
    lines: list[bytes]
    """Without their ends."""
    end: int
    """Bytes of the input up to the end of these lines."""


def size_of(stream: BinaryIO) -> int:
    """Return the size of a file in bytes; 0 of a pipe or a terminal, whose end is not known."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, io.UnsupportedOperation):
        return 0
    return status.st_size if stat.S_ISREG(status.st_mode) else 0


async def line_blocks(stream: BinaryIO, *, option: str) -> AsyncGenerator[LineBlock, None]:
    """Yield the lines of a stream as they come: a pipe that pauses does not hold back what it wrote.

    Args:
        stream: Read to its end; the last line may lack its newline.
        option: Names the input in errors.

    Raises:
        ValidationError: a line is longer than `BLOCK_BYTES_MAX`.
        OSError: the input cannot be read.
    """
    rest, number, end = b"", 1, 0
    while block := await _read_some(stream):
        content = rest + block
        cut = content.rfind(b"\n") + 1
        if cut:
            lines = content[: cut - 1].split(b"\n")
            end += cut
            yield LineBlock(number, lines, end)
            number += len(lines)
        rest = content[cut:]
        if len(rest) > BLOCK_BYTES_MAX:
            raise ValidationError(option, f"line {number} exceeds {BLOCK_BYTES_MAX} bytes")
    if rest:
        yield LineBlock(number, [rest], end + len(rest))


async def _read_some(stream: BinaryIO) -> bytes:
    """Return what the stream has, at least a byte, without blocking the event loop; nothing at its end."""
    try:
        descriptor = stream.fileno()
    except (OSError, io.UnsupportedOperation):
        return stream.read(BLOCK_BYTES_MAX)
    # A blocking read would hold Ctrl-C back, and answers of the broker. Files are always ready.
    if not select.select([descriptor], [], [], 0)[0]:
        ready = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_reader(descriptor, ready.set)
        try:
            await ready.wait()
        finally:
            loop.remove_reader(descriptor)
    return stream.read1(BLOCK_BYTES_MAX) if isinstance(stream, io.BufferedReader) else stream.read()
