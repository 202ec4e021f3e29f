"""Compression of fragments in stores: whole files are encoded, objects are decoded piece by piece. Blocking.

The names of fragments have the SHA-1 of the content before its compression. So content is verified on both ways, and a
damaged fragment is neither published nor fetched.

Source: gazette/core broker/codecs/codecs.go (codecs; Snappy's framing format).
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from typing import IO, Any

from broadsheet.allocator.errors import ExtraMissingError
from broadsheet.consumer.broker.block_sums import DamagedContentError
from broadsheet.consumer.broker.fragments import SealedFragment
from broadsheet.consumer.protocol.journal_pb2 import CompressionCodec

PIECE_BYTES = 1 << 20
"""Content encoded or decoded at once."""
GZIP_LEVEL = 4
"""Twice as fast as zlib's default, for a few percent of size."""
_GZIP_WINDOW = 31
"""zlib's largest window, with gzip's header and trailer."""
_GZIP_MAGIC = b"\x1f\x8b"
_SNAPPY_IDENTIFIER = b"\xff\x06\x00\x00sNaPpY"
_SNAPPY_HEADER_BYTES = 4

Encoder = Callable[[Iterator[bytes]], Iterator[bytes]]


def encode_file(fragment: SealedFragment, target: IO[bytes], codec: int) -> None:
    """Write a fragment's content to a file, compressed.

    Raises:
        OSError: the disk failed, or the file has another length.
        DamagedContentError: the content does not match the fragment's SHA-1.
        ExtraMissingError: the codec's library is not installed.
    """
    sha1 = hashlib.sha1(usedforsecurity=False)
    with fragment.path.open("rb") as source:

        def pieces() -> Iterator[bytes]:
            while piece := source.read(PIECE_BYTES):
                sha1.update(piece)
                yield piece

        for encoded in _ENCODERS[codec](pieces()):
            target.write(encoded)
    if sha1.digest() != fragment.sum:
        raise DamagedContentError(0, fragment.end - fragment.begin)


def decode_to_file(
    fragment: SealedFragment, encoded: Iterable[bytes], target: IO[bytes], codec: int
) -> None:
    """Write the content of a fragment's copy to a file, decompressed and verified.

    Raises:
        OSError: the disk failed.
        DamagedContentError: the copy is damaged, or is of another fragment; the file is of no use.
        ExtraMissingError: the codec's library is not installed.
    """
    length = fragment.end - fragment.begin
    sha1, written = hashlib.sha1(usedforsecurity=False), 0
    try:
        for piece in _DECODERS[codec](iter(encoded), PIECE_BYTES):
            written += len(piece)
            # Checked with each piece, because a few compressed bytes can become any number of them.
            if written > length:
                raise DamagedContentError(0, length)
            sha1.update(piece)
            target.write(piece)
    except _DecodingError as error:
        raise DamagedContentError(0, length) from error
    if written != length or sha1.digest() != fragment.sum:
        raise DamagedContentError(0, length)


class _DecodingError(Exception):
    """Content that its codec cannot decode."""


def _as_is(pieces: Iterator[bytes]) -> Iterator[bytes]:
    return pieces


def _decode_as_is(pieces: Iterator[bytes], most: int) -> Iterator[bytes]:
    del most
    return pieces


def _gzip(pieces: Iterator[bytes]) -> Iterator[bytes]:
    encoder = zlib.compressobj(GZIP_LEVEL, wbits=_GZIP_WINDOW)
    for piece in pieces:
        yield encoder.compress(piece)
    yield encoder.flush()


def _gunzip(pieces: Iterator[bytes], most: int) -> Iterator[bytes]:
    """Yield decoded pieces of at most `most` bytes; a file may have several members."""
    decoder = zlib.decompressobj(wbits=_GZIP_WINDOW)
    try:
        for piece in pieces:
            left = piece
            while left:
                if decoder.eof:
                    decoder = zlib.decompressobj(wbits=_GZIP_WINDOW)
                yield decoder.decompress(left, most)
                left = decoder.unconsumed_tail or decoder.unused_data
    except zlib.error as error:
        raise _DecodingError from error
    if not decoder.eof:
        raise _DecodingError


def _gunzip_unless_done(pieces: Iterator[bytes], most: int) -> Iterator[bytes]:
    """Decode pieces, unless the store has done so because of their Content-Encoding."""
    first = next(pieces, b"")
    whole = chain((first,), pieces)
    return _gunzip(whole, most) if first.startswith(_GZIP_MAGIC) else whole


def _zstandard(pieces: Iterator[bytes]) -> Iterator[bytes]:
    encoder = _import_zstandard().ZstdCompressor().compressobj()

    def encoded() -> Iterator[bytes]:
        for piece in pieces:
            yield encoder.compress(piece)
        yield encoder.flush()

    return encoded()


def _unzstandard(pieces: Iterator[bytes], most: int) -> Iterator[bytes]:
    library = _import_zstandard()

    def decoded() -> Iterator[bytes]:
        source = _Pieces(pieces)
        reader = library.ZstdDecompressor().stream_reader(source, read_across_frames=True)
        try:
            while piece := reader.read(most):
                yield piece
        except library.ZstdError as error:
            raise _DecodingError from error

    return decoded()


class _Pieces:
    """Pieces as a file to read."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self._left = b""

    def read(self, length: int) -> bytes:
        """Return at most this many bytes; none at the end."""
        while not self._left:
            piece = next(self._pieces, None)
            if piece is None:
                return b""
            self._left = piece
        taken, self._left = self._left[:length], self._left[length:]
        return taken


def _snappy(pieces: Iterator[bytes]) -> Iterator[bytes]:
    library = _import_cramjam().snappy
    return (bytes(library.compress(piece)) for piece in pieces)


def _unsnappy(pieces: Iterator[bytes], most: int) -> Iterator[bytes]:
    """Decode groups of whole chunks, each of which becomes 64 KiB at most."""
    del most
    library = _import_cramjam()

    def decoded() -> Iterator[bytes]:
        left = b""
        for piece in pieces:
            left += piece
            end = _whole_chunks(left)
            group, left = left[:end], left[end:]
            if group:
                try:
                    yield bytes(library.snappy.decompress(_SNAPPY_IDENTIFIER + group))
                except library.DecompressionError as error:
                    raise _DecodingError from error
        if left:
            raise _DecodingError

    return decoded()


def _whole_chunks(content: bytes) -> int:
    """Return the length of the whole chunks at the begin of content, bytes."""
    end = 0
    while len(content) - end >= _SNAPPY_HEADER_BYTES:
        length = int.from_bytes(content[end + 1 : end + _SNAPPY_HEADER_BYTES], "little")
        if end + _SNAPPY_HEADER_BYTES + length > len(content):
            break
        end += _SNAPPY_HEADER_BYTES + length
    return end


# `Any`, because the libraries are optional.
def _import_zstandard() -> Any:
    try:
        import zstandard
    except ImportError as error:
        raise ExtraMissingError("codec ZSTANDARD", "stores", "zstandard") from error
    return zstandard


def _import_cramjam() -> Any:
    try:
        import cramjam
    except ImportError as error:
        raise ExtraMissingError("codec SNAPPY", "stores", "cramjam") from error
    return cramjam


_ENCODERS: dict[int, Encoder] = {
    CompressionCodec.NONE: _as_is,
    CompressionCodec.GZIP: _gzip,
    CompressionCodec.ZSTANDARD: _zstandard,
    CompressionCodec.SNAPPY: _snappy,
    CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION: _gzip,
}
_DECODERS: dict[int, Callable[[Iterator[bytes], int], Iterator[bytes]]] = {
    CompressionCodec.NONE: _decode_as_is,
    CompressionCodec.GZIP: _gunzip,
    CompressionCodec.ZSTANDARD: _unzstandard,
    CompressionCodec.SNAPPY: _unsnappy,
    CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION: _gunzip_unless_done,
}
