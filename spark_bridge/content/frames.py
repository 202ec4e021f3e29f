"""Finds length-prefixed frames in a partition's content, for the protobuf and Arrow decoders."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from broadsheet.journals.errors import FramingError
from broadsheet.journals.message.framing import FIXED_MAGIC, FixedFraming, Frames
from broadsheet.spark_bridge.journal_source.byte_runs import FetchedContent

_HEADER: Final = struct.Struct("<4sI")


def whole_frames(data: bytes) -> int:
    """Return how many bytes are whole frames."""
    at, size = 0, len(data)
    while at + _HEADER.size <= size:
        magic, length = _HEADER.unpack_from(data, at)
        assert magic == FIXED_MAGIC, "partitions hold whole frames and nothing else"
        if at + _HEADER.size + length > size:
            break
        at += _HEADER.size + length
    return at


def frames_in(data: bytes) -> Frames:
    """Return the whole frames of some content, offsets counted from its beginning."""
    return FixedFraming().unframer(journal="", offset=0).feed(data)


def frames_of(content: FetchedContent) -> Frames:
    """Return the frames of some content."""
    return frames_in(content.data)


def places_of(content: FetchedContent, frames: Frames) -> tuple[Any, Any]:
    """Return the journal offsets at which frames begin and end; shape (N,) each."""
    return content.offsets_of(frames.begins, frames.ends)


def framing_error(content: FetchedContent, error: Exception) -> FramingError:
    """Return the error of content whose messages cannot be decoded."""
    detail = f"of a message there or after: {error}"
    return FramingError(content.journal, offset=int(content.piece_offsets[0]), detail=detail)


def is_message(payload: bytes, look: Callable[[bytes], object], *, strict: bool) -> bool:
    """Return whether a sample's message can be read; Arrow's parser would crash on endless brackets.

    Raises:
        ValueError: it cannot, and must not be skipped.
    """
    try:
        look(payload)
    except ValueError:
        if strict:
            raise
        return False
    return True
