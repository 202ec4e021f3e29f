"""Messages of the journals, and the progress of reading a stream of them, chunk by chunk. Pure."""

from __future__ import annotations

import zlib
from typing import Final

import msgspec

from broadsheet.journals import JsonStructType, Meta


class Chunk(msgspec.Struct):
    """A piece of a stream. The pieces of one stream are all in one journal, in the order of `index`."""

    meta: Meta = msgspec.field(name="_meta", default_factory=Meta)
    stream: str = ""
    index: int = 0
    """From 0."""
    data: bytes = b""
    """Base64 in JSON."""
    eof: bool = False
    """True for the stream's last chunk."""


class StreamSum(msgspec.Struct):
    """The sum of a whole stream."""

    meta: Meta = msgspec.field(name="_meta", default_factory=Meta)
    stream: str = ""
    sum: int = 0
    """CRC-32 of all its data."""
    chunks: int = 0


class StreamOrderError(Exception):
    """A chunk came twice, too early, or after its stream's end, which violates exactly-once."""


class Progress(msgspec.Struct, frozen=True):
    """The part of one stream that was read."""

    next_index: int = 0
    sum: int = 0
    """CRC-32 of the data so far."""

    def with_chunk(self, chunk: Chunk) -> Progress:
        """Return the progress after one more chunk.

        Raises:
            StreamOrderError: it is not the next one.
        """
        if chunk.index != self.next_index:
            raise StreamOrderError(
                f"stream {chunk.stream}: expected chunk {self.next_index}, got {chunk.index}"
            )
        return Progress(self.next_index + 1, zlib.crc32(chunk.data, self.sum))

    def result(self, stream: str) -> StreamSum:
        """Return the stream's sum, if this is all of it."""
        return StreamSum(stream=stream, sum=self.sum, chunks=self.next_index)


CHUNKS: Final = JsonStructType(Chunk)
SUMS: Final = JsonStructType(StreamSum)
CHUNK_JOURNALS: Final = tuple(f"stream-sum/chunks/part-{index:03d}" for index in range(8))
SUM_JOURNALS: Final = tuple(f"stream-sum/sums/part-{index:03d}" for index in range(2))
