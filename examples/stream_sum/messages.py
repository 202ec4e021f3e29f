"""Messages of the journals."""

from __future__ import annotations

from typing import Final

import msgspec

from broadsheet.consumer import JsonStructType, Meta


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


CHUNKS: Final = JsonStructType(Chunk)
SUMS: Final = JsonStructType(StreamSum)
CHUNK_JOURNALS: Final = tuple(f"stream-sum/chunks/part-{index:03d}" for index in range(8))
SUM_JOURNALS: Final = tuple(f"stream-sum/sums/part-{index:03d}" for index in range(2))
