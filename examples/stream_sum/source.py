"""Generates random streams and their expected sums. Pure: the same random numbers make the same streams."""

from __future__ import annotations

from random import Random

from broadsheet.examples.stream_sum.messages import Chunk, Progress, StreamSum

OPEN_STREAMS = 8
"""Number of interleaved streams."""
CHUNKS_MAX = 24
DATA_BYTES_MAX = 96


class StreamSource:
    """A source of unique streams, one chunk at a time."""

    def __init__(self, random: Random, *, name: str) -> None:
        """Create a source without streams.

        Args:
            random: Chooses everything.
            name: What the streams' names start with; no other source has it.
        """
        self._random = random
        self._name = name
        self._begun = 0
        self._left_by_stream: dict[str, int] = {}
        """Chunks to come of each open stream."""
        self._progress: dict[str, Progress] = {}
        self.expected: dict[str, StreamSum] = {}
        """Expected sum of every ended stream, by stream."""

    @property
    def open_streams(self) -> int:
        """Streams that have not ended."""
        return len(self._left_by_stream)

    def next_chunk(self) -> Chunk:
        """Return the next chunk of some stream, perhaps of a new one."""
        while len(self._left_by_stream) < OPEN_STREAMS:
            self._begin()
        return self._advance(self._random.choice(list(self._left_by_stream)))

    def last_chunk(self) -> Chunk:
        """Return a chunk that ends one of the open streams.

        Requires:
            There is one.
        """
        stream = self._random.choice(list(self._left_by_stream))
        self._left_by_stream[stream] = 1
        return self._advance(stream)

    def forged_chunk(self) -> Chunk:
        """Return what must never be read: it passes for the next chunk of a stream, and would spoil it."""
        while not self._left_by_stream:
            self._begin()
        stream = self._random.choice(list(self._left_by_stream))
        index = self._progress[stream].next_index
        return Chunk(
            stream=stream,
            index=index,
            data=b"forged" + self._data(),
            eof=self._random.random() < 0.3,
        )

    def _begin(self) -> None:
        stream = f"{self._name}-{self._begun:06d}"
        self._begun += 1
        self._left_by_stream[stream] = self._random.randint(1, CHUNKS_MAX)
        self._progress[stream] = Progress()

    def _advance(self, stream: str) -> Chunk:
        left = self._left_by_stream[stream]
        progress = self._progress[stream]
        chunk = Chunk(stream=stream, index=progress.next_index, data=self._data(), eof=left == 1)
        progress = progress.with_chunk(chunk)
        if chunk.eof:
            del self._left_by_stream[stream], self._progress[stream]
            self.expected[stream] = progress.result(stream)
        else:
            self._left_by_stream[stream] = left - 1
            self._progress[stream] = progress
        return chunk

    def _data(self) -> bytes:
        return self._random.randbytes(self._random.randint(0, DATA_BYTES_MAX))
