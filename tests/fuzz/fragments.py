"""Fragments of a store, which others may have written, and their URLs, which a broker tells."""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Final

from google.protobuf.message import DecodeError

from broadsheet.journals.block_sums import BLOCK_BYTES, BlockSums, decode_sums, encode_sums
from broadsheet.journals.direct_fragments import open_below
from broadsheet.journals.errors import JournalDamagedError
from broadsheet.journals.fragment_content import DirectReadError, FragmentContent, WantedSpan
from broadsheet.journals.sums_requests import sums_in
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire import journal_pb2 as pb
from broadsheet.wire.fragments_pb2 import FragmentSumsResponse
from tests.fuzz.decoder import FuzzedDecoder
from tests.support.stored_fragments import ENCODERS, object_path, stored_fragment

CONTENT: Final = b"".join(b'{"id":%d}\n' % number for number in range(200))
OTHER: Final = b"not to be read"
BLOCKS: Final = 3
SUMMED: Final = (CONTENT * 100)[: BLOCK_BYTES * (BLOCKS - 1) + 100]


def _encoded(codec: pb.CompressionCodec.ValueType) -> Sequence[bytes]:
    encode = ENCODERS[codec]
    half = len(CONTENT) // 2
    # Objects of several members or frames are as good as those of one.
    parts = encode(CONTENT[:half]) + encode(CONTENT[half:])
    return (encode(CONTENT), parts)


def _read(codec: pb.CompressionCodec.ValueType, encoded: bytes) -> bytes:
    fragment = stored_fragment(0, CONTENT, codec)
    content = FragmentContent(WantedSpan(fragment, "", 0, fragment.end), 0)
    read = b"".join([*content.feed(encoded), *content.finish()])
    assert read == CONTENT, "other content was taken for the fragment's"
    return read


@lru_cache(maxsize=1)
def _root() -> Path:
    """Return a directory with the fragment, and a file beside it that nobody may read."""
    directory = Path(tempfile.mkdtemp(prefix="fuzzed-fragments-"))
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    root = directory / "root"
    path = root / object_path(stored_fragment(0, CONTENT))
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    for other in (directory / path.name, path.with_name("0" * 16)):
        other.write_bytes(OTHER)
    return root


def _urls() -> Sequence[bytes]:
    path = object_path(stored_fragment(0, CONTENT))
    return ((_root() / path).as_uri().encode(), f"file:///{path}".encode())


def _opened(url: bytes) -> bytes:
    fd = open_below(stored_fragment(0, CONTENT), url.decode(errors="replace"), (_root(),))
    try:
        content = os.read(fd, len(CONTENT) + 1)
    finally:
        os.close(fd)
    assert content == CONTENT, "another file was opened"
    return content


_OBJECTS: Final[Sequence[tuple[str, pb.CompressionCodec.ValueType]]] = (
    ("gzip", pb.GZIP),
    ("zstandard", pb.ZSTANDARD),
    ("snappy", pb.SNAPPY),
)


def _decoder(name: str, codec: pb.CompressionCodec.ValueType) -> FuzzedDecoder:
    seeds: Callable[[], Sequence[bytes]] = partial(_encoded, codec)
    return FuzzedDecoder(f"fragments.{name}", seeds, partial(_read, codec), (JournalDamagedError,))


def _sums() -> bytes:
    sums = BlockSums()
    sums.update(SUMMED)
    sums.settle()
    return sums.encoded()


def _from_file(data: bytes) -> None:
    """Decode a file of checksums, and verify by it."""
    stored = decode_sums(data, len(SUMMED))
    if stored is not None:
        assert stored.encoded() == _sums(), "damaged checksums were taken for sound ones"
        assert stored.first_bad(0, SUMMED) is None


def _told(data: bytes) -> None:
    """Decode a broker's answer about a fragment of which it has told the first checksum."""
    answer = FragmentSumsResponse.FromString(data)
    sums = sums_in(answer, stored_fragment(0, SUMMED), first_block=1)
    assert sums is None or 0 < len(sums) <= (BLOCKS - 1) * 8


FRAGMENT_DECODERS: Final = (
    *(_decoder(name, codec) for name, codec in _OBJECTS),
    FuzzedDecoder("fragments.url", _urls, _opened, (DirectReadError,)),
    FuzzedDecoder(
        "fragments.sums_file", lambda: [encode_sums(len(SUMMED), _sums())], _from_file, ()
    ),
    FuzzedDecoder(
        "fragments.sums_told",
        lambda: [
            FragmentSumsResponse(
                known=True, block_bytes=BLOCK_BYTES, sums=_sums()[8:]
            ).SerializeToString(),
            FragmentSumsResponse(known=True).SerializeToString(),
        ],
        _told,
        (DecodeError, ValidationError, DirectReadError),
    ),
)
