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

from broadsheet.broker.fragments import SealedFragment
from broadsheet.journals.block_sums import DamagedContentError
from broadsheet.journals.fragment_decoders import DecodingError, decoder_of
from broadsheet.runtime.errors import ExtraMissingError
from broadsheet.wire.journal_pb2 import CompressionCodec

PIECE_BYTES = 1 << 20
"""Content encoded or decoded at once."""
GZIP_LEVEL = 4
"""Twice as fast as zlib's default, for a few percent of size."""
_GZIP_WINDOW = 31
"""zlib's largest window, with gzip's header and trailer."""
_GZIP_MAGIC = b"\x1f\x8b"

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
        for piece in _decoded(encoded, codec):
            written += len(piece)
            # Checked with each piece, because a few compressed bytes can become any number of them.
            if written > length:
                raise DamagedContentError(0, length)
            sha1.update(piece)
            target.write(piece)
    except DecodingError as error:
        raise DamagedContentError(0, length) from error
    if written != length or sha1.digest() != fragment.sum:
        raise DamagedContentError(0, length)


def _decoded(encoded: Iterable[bytes], codec: int) -> Iterator[bytes]:
    pieces = iter(encoded)
    first = next(pieces, b"")
    offloads = codec == CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION
    if offloads and not first.startswith(_GZIP_MAGIC):
        # The store has decompressed it because of its Content-Encoding.
        codec = CompressionCodec.NONE
    decode = decoder_of(codec)
    for piece in chain((first,), pieces):
        yield from decode(piece)


def _as_is(pieces: Iterator[bytes]) -> Iterator[bytes]:
    return pieces


def _gzip(pieces: Iterator[bytes]) -> Iterator[bytes]:
    encoder = zlib.compressobj(GZIP_LEVEL, wbits=_GZIP_WINDOW)
    for piece in pieces:
        yield encoder.compress(piece)
    yield encoder.flush()


# `Any` below, because the libraries are optional.
def _zstandard(pieces: Iterator[bytes]) -> Iterator[bytes]:
    try:
        import zstandard
    except ImportError as error:
        raise ExtraMissingError("codec ZSTANDARD", "stores", "zstandard") from error
    encoder: Any = zstandard.ZstdCompressor().compressobj()
    for piece in pieces:
        yield encoder.compress(piece)
    yield encoder.flush()


def _snappy(pieces: Iterator[bytes]) -> Iterator[bytes]:
    try:
        import cramjam
    except ImportError as error:
        raise ExtraMissingError("codec SNAPPY", "stores", "cramjam") from error
    library: Any = cramjam.snappy
    for piece in pieces:
        yield bytes(library.compress(piece))


_ENCODERS: dict[int, Encoder] = {
    CompressionCodec.NONE: _as_is,
    CompressionCodec.GZIP: _gzip,
    CompressionCodec.ZSTANDARD: _zstandard,
    CompressionCodec.SNAPPY: _snappy,
    CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION: _gzip,
}
