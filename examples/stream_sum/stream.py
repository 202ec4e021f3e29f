"""The progress of reading a stream, updated chunk by chunk. Pure."""

from __future__ import annotations

import zlib

import msgspec

from broadsheet.examples.stream_sum.messages import Chunk, StreamSum


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
