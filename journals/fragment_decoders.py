"""Decoders of stored fragments, by codec: encoded bytes in, content out, bounded at each step. Pure.

A decoder is fed the pieces of one object in order, and yields content lazily: usually some hundred KiB at a time, and
at most 32 MiB, whatever a few encoded bytes may become. It does not notice a missing end; the fragment's length and
SHA-1 do.

Source: gazette/core broker/codecs/codecs.go (codecs; Snappy's framing format).
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator
from typing import Any, Final

from broadsheet.runtime.errors import ExtraMissingError, ValidationError
from broadsheet.wire.journal_pb2 import CompressionCodec

DECODED_BYTES: Final = 512 << 10
"""Content that a decoder makes at once, about."""
_GZIP_WINDOW: Final = 31
"""zlib's largest window, with gzip's header and trailer."""
_ZSTD_STEP_BYTES: Final = 1 << 10
"""Encoded bytes of one step. Usual content becomes 5 KiB, and the worst 32 MiB."""
_ZSTD_WRITE_BYTES: Final = 64 << 10
"""Below the size at which glibc would map and unmap each buffer."""
_SNAPPY_IDENTIFIER: Final = b"\xff\x06\x00\x00sNaPpY"
_SNAPPY_HEADER_BYTES: Final = 4
_SNAPPY_GROUP_BYTES: Final = 256 << 10
"""Whole chunks of one step; each becomes 64 KiB at most."""

Decode = Callable[[bytes], Iterator[bytes]]


class DecodingError(Exception):
    """Bytes that the codec cannot decode."""


def decoder_of(codec: int) -> Decode:
    """Return a new decoder.

    Raises:
        ExtraMissingError: the codec's library is not installed.
        ValidationError: the codec is unknown.
    """
    make = _DECODERS.get(codec)
    if make is None:
        raise ValidationError("compression_codec", f"expected a known codec, got {codec}")
    return make()


def _as_is() -> Decode:
    return lambda encoded: iter((encoded,))


def _gzip() -> Decode:
    decoder = zlib.decompressobj(wbits=_GZIP_WINDOW)

    def decode(encoded: bytes) -> Iterator[bytes]:
        nonlocal decoder
        left = encoded
        try:
            while left:
                if decoder.eof:  # a file may have several members
                    decoder = zlib.decompressobj(wbits=_GZIP_WINDOW)
                yield decoder.decompress(left, DECODED_BYTES)
                left = decoder.unconsumed_tail or decoder.unused_data
        except zlib.error as error:
            raise DecodingError(str(error)) from error

    return decode


def _zstandard() -> Decode:
    library: Any = _imported_zstandard()
    decoder = library.ZstdDecompressor().decompressobj(
        write_size=_ZSTD_WRITE_BYTES, read_across_frames=True
    )

    def decode(encoded: bytes) -> Iterator[bytes]:
        made: list[bytes] = []
        size = 0
        try:
            for begin in range(0, len(encoded), _ZSTD_STEP_BYTES):
                piece = decoder.decompress(encoded[begin : begin + _ZSTD_STEP_BYTES])
                made.append(piece)
                size += len(piece)
                if size >= DECODED_BYTES:
                    yield b"".join(made)
                    made, size = [], 0
        except library.ZstdError as error:
            raise DecodingError(str(error)) from error
        if size:
            yield b"".join(made)

    return decode


def _snappy() -> Decode:
    library: Any = _imported_cramjam()
    waiting = b""

    def decode(encoded: bytes) -> Iterator[bytes]:
        nonlocal waiting
        content, begin = waiting + encoded, 0
        while (end := _whole_chunks(content, begin)) > begin:
            group = content[begin:end]
            begin = end
            try:
                yield bytes(library.snappy.decompress(_SNAPPY_IDENTIFIER + group))
            except library.DecompressionError as error:
                raise DecodingError(str(error)) from error
        waiting = content[begin:]

    return decode


def _whole_chunks(content: bytes, begin: int) -> int:
    """Return the end of whole chunks from an offset on, as many as one step takes."""
    end = begin
    while len(content) - end >= _SNAPPY_HEADER_BYTES and end - begin < _SNAPPY_GROUP_BYTES:
        length = int.from_bytes(content[end + 1 : end + _SNAPPY_HEADER_BYTES], "little")
        if end + _SNAPPY_HEADER_BYTES + length > len(content):
            break
        end += _SNAPPY_HEADER_BYTES + length
    return end


def _imported_zstandard() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise ExtraMissingError("codec ZSTANDARD", "stores", "zstandard") from error
    return zstandard


def _imported_cramjam() -> Any:
    try:
        import cramjam
    except ImportError as error:
        raise ExtraMissingError("codec SNAPPY", "stores", "cramjam") from error
    return cramjam


_DECODERS: dict[int, Callable[[], Decode]] = {
    CompressionCodec.NONE: _as_is,
    CompressionCodec.GZIP: _gzip,
    CompressionCodec.ZSTANDARD: _zstandard,
    CompressionCodec.SNAPPY: _snappy,
    CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION: _gzip,
}
