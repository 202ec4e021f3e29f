"""Content of a stored fragment from its encoded bytes: decoded, bounded, verified, and cut to what is wanted. Pure.

No byte is delivered unverified where that is possible:

    SHORT       a fragment of up to 1 MiB is collected whole and compared with its SHA-1
    BY_BLOCKS   with checksums of its blocks, each block is verified before it is delivered, wherever a read begins or
                ends; the SHA-1 is compared, too, if the read covers the fragment
    AT_END      without them, only the SHA-1 is left, which is known at the end, and only if all was read

Source: gazette/core broker/client/reader.go (which verifies nothing).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Final, NamedTuple, Protocol

from broadsheet.journals.block_sums import BLOCK_BYTES, BlockSums, StoredSums
from broadsheet.journals.errors import JournalDamagedError
from broadsheet.journals.fragment_decoders import DecodingError, decoder_of
from broadsheet.runtime.errors import ExtraMissingError, ServiceError, ValidationError
from broadsheet.wire.journal_pb2 import CompressionCodec, Fragment

PIECE_BYTES: Final = 512 << 10
"""Content delivered at once, whole blocks; encoded content is read in pieces of this length, too."""
SHORT_BYTES_MAX: Final = 1 << 20
"""Length of a fragment that is collected before any of it is delivered, which costs less than asking for checksums."""


class DirectReadError(ServiceError):
    """A stored fragment cannot be read directly; its broker may still deliver it."""

    def __init__(self, fragment: Fragment, reason: str, detail: str) -> None:
        super().__init__(f"{_name_of(fragment)} was not read directly: {detail}")
        self.reason = reason
        """A word for metrics: refused, missing, expired, failed, unreachable."""


class WantedSpan(NamedTuple):
    """The range of a stored fragment that is wanted."""

    fragment: Fragment
    url: str
    begin: int
    """Offset of the first byte wanted."""
    end: int
    """Offset after the last one, at most the fragment's end."""


class KnownSums(NamedTuple):
    """Checksums of a fragment's blocks, and what vouches for them."""

    sums: StoredSums
    agree: bool
    """Whether content that matched them also matched the fragment's SHA-1."""


class _Verifier(Protocol):
    """Verifies decoded content; `take` gets all of it, in order."""

    @property
    def is_complete(self) -> bool:
        """True if all that is wanted was delivered, and the rest of the fragment need not be read."""
        ...

    def take(self, begin: int, piece: bytes) -> Iterator[bytes]:
        """Yield wanted content that is verified by now; `begin` is the piece's offset in the journal."""
        ...

    def finish(self) -> Iterator[bytes]:
        """Yield the last content, after the end. Raises JournalDamagedError."""
        ...


class FragmentContent:
    """Makes content of a fragment's encoded bytes."""

    def __init__(
        self,
        wanted: WantedSpan,
        start: int,
        *,
        is_gzip: bool | None = None,
        known: KnownSums | None = None,
    ) -> None:
        """Begin to decode.

        Args:
            wanted: The fragment, and the span to deliver.
            start: Offset of the first byte that the encoded bytes hold.
            is_gzip: Whether they are compressed with gzip, if the codec does not tell.
            known: Checksums of the fragment's blocks; None if there are none.

        Raises:
            DirectReadError: the codec's library is not installed, or the codec is unknown.
        """
        self._wanted = wanted
        self._position = start
        codec = wanted.fragment.compression_codec
        if is_gzip is not None:
            codec = CompressionCodec.GZIP if is_gzip else CompressionCodec.NONE
        try:
            self._decode = decoder_of(codec)
        except (ExtraMissingError, ValidationError) as error:
            raise DirectReadError(wanted.fragment, "failed", str(error)) from error
        self._verifier = _verifier(wanted, start, known)
        self.agreed: KnownSums | None = None
        """The checksums, once content that matched them all has matched the fragment's SHA-1, too."""

    @property
    def is_complete(self) -> bool:
        """True if all that is wanted was delivered, and the rest of the fragment need not be read."""
        return self._verifier.is_complete

    def feed(self, encoded: bytes) -> Iterator[bytes]:
        """Yield wanted content, of the next encoded bytes.

        Raises:
            JournalDamagedError: they cannot be decoded, fail a checksum, or hold more than the fragment.
        """
        try:
            for decoded in self._decode(encoded):
                for piece in _pieces_of(decoded):
                    yield from self._taken(piece)
                    if self.is_complete:
                        return
        except DecodingError as error:
            raise damaged(self._wanted.fragment, f"it cannot be decoded ({error})") from error

    def _taken(self, piece: bytes) -> Iterator[bytes]:
        begin, fragment = self._position, self._wanted.fragment
        self._position += len(piece)
        if self._position > fragment.end:
            raise damaged(fragment, f"it has content up to offset {self._position} or more")
        return self._verifier.take(begin, piece)

    def finish(self) -> Iterator[bytes]:
        """Yield the last content, after the end of the encoded bytes.

        Raises:
            JournalDamagedError: the fragment's bytes are missing, or others than its SHA-1 says.
        """
        if self._position < self._wanted.fragment.end:
            raise damaged(self._wanted.fragment, f"it ends at offset {self._position}")
        yield from self._verifier.finish()
        if isinstance(self._verifier, _ByBlocks):
            self.agreed = self._verifier.agreed()


def is_short(fragment: Fragment) -> bool:
    """Tell whether a fragment is read whole, and verified by its SHA-1, whatever is wanted of it."""
    return fragment.end - fragment.begin <= SHORT_BYTES_MAX


def span_to_read(wanted: WantedSpan, known: KnownSums | None) -> tuple[int, int]:
    """Return the offsets that an uncompressed fragment is read from and to, so that what is wanted can be verified."""
    fragment = wanted.fragment
    if is_short(fragment):
        return fragment.begin, fragment.end
    if known is None:
        return wanted.begin, wanted.end
    begin = wanted.begin - (wanted.begin - fragment.begin) % BLOCK_BYTES
    end = wanted.end + (fragment.begin - wanted.end) % BLOCK_BYTES
    return begin, min(end, fragment.end)


def _verifier(wanted: WantedSpan, start: int, known: KnownSums | None) -> _Verifier:
    fragment = wanted.fragment
    if is_short(fragment):
        return _Short(wanted)
    if known is not None:
        is_whole = (wanted.begin, wanted.end) == (fragment.begin, fragment.end)
        return _ByBlocks(wanted, known.sums, compares=is_whole and not known.agree)
    return _AtEnd(wanted, compares=start == fragment.begin)


class _Short:
    """Collects the fragment."""

    is_complete = False
    """Never: the end is part of what is verified."""

    def __init__(self, wanted: WantedSpan) -> None:
        self._wanted = wanted
        self._pieces: list[bytes] = []

    def take(self, begin: int, piece: bytes) -> Iterator[bytes]:
        del begin
        self._pieces.append(piece)
        return iter(())

    def finish(self) -> Iterator[bytes]:
        wanted, content = self._wanted, b"".join(self._pieces)
        require_sum(wanted.fragment, hashlib.sha1(content, usedforsecurity=False).digest())
        yield from _pieces_of(_cut(wanted, wanted.fragment.begin, content))


class _ByBlocks:
    """Verifies whole blocks; a part of one waits for the rest."""

    def __init__(self, wanted: WantedSpan, sums: StoredSums, *, compares: bool) -> None:
        self._wanted = wanted
        self._sums = sums
        self._sha1 = hashlib.sha1(usedforsecurity=False) if compares else None
        self._next, self._last = span_to_read(wanted, KnownSums(sums, agree=False))
        """Offsets of the next block, and after the last one; blocks without a wanted byte are not looked at."""
        self._waiting = b""
        """Content from there on, less than a block."""

    @property
    def is_complete(self) -> bool:
        return self._wanted.end < self._wanted.fragment.end and self._next >= self._wanted.end

    def take(self, begin: int, piece: bytes) -> Iterator[bytes]:
        fragment, end = self._wanted.fragment, begin + len(piece)
        if self._sha1 is not None:
            self._sha1.update(piece)
        first, waiting = self._next, self._waiting
        unseen = memoryview(piece)[max(0, first - begin) : max(0, self._last - begin)]
        if not unseen:
            return
        length = len(waiting) + len(unseen)
        if end < self._last:
            length -= length % BLOCK_BYTES
        if not length:
            self._waiting = waiting + unseen
            return
        taken = length - len(waiting)
        # A piece of whole blocks, as one of an uncompressed file is, is not copied.
        whole = piece if taken == len(piece) == length else b"".join((waiting, unseen[:taken]))
        self._waiting = bytes(unseen[taken:])
        bad = self._sums.first_bad(first - fragment.begin, whole)
        if bad is None:
            self._next = first + length
            yield from _cut_pieces(self._wanted, first, whole)
            return
        bad_begin, bad_end = fragment.begin + bad[0], fragment.begin + bad[1]
        yield from _cut_pieces(self._wanted, first, whole[: bad_begin - first])
        raise damaged(fragment, f"bytes [{bad_begin}, {bad_end}) fail their checksum")

    def finish(self) -> Iterator[bytes]:
        if self._sha1 is not None:
            require_sum(self._wanted.fragment, self._sha1.digest())
        return iter(())

    def agreed(self) -> KnownSums | None:
        """Return the checksums if the SHA-1 was compared."""
        return None if self._sha1 is None else KnownSums(self._sums, agree=True)


class _AtEnd:
    """Compares the SHA-1 once all was read; one piece is held back until then, or until the next one comes."""

    def __init__(self, wanted: WantedSpan, *, compares: bool) -> None:
        self._wanted = wanted
        self._sha1 = hashlib.sha1(usedforsecurity=False) if compares else None
        self._held = b""
        self._end = 0

    @property
    def is_complete(self) -> bool:
        return self._wanted.end < self._wanted.fragment.end and self._end >= self._wanted.end

    def take(self, begin: int, piece: bytes) -> Iterator[bytes]:
        self._end = begin + len(piece)
        if self._sha1 is not None:
            self._sha1.update(piece)
        for wanted in _cut_pieces(self._wanted, begin, piece):
            held, self._held = self._held, wanted
            if held:
                yield held
        if self.is_complete:
            # What follows is not read, so nothing more can be verified.
            yield from self._released()

    def finish(self) -> Iterator[bytes]:
        if self._sha1 is not None:
            require_sum(self._wanted.fragment, self._sha1.digest())
        yield from self._released()

    def _released(self) -> Iterator[bytes]:
        held, self._held = self._held, b""
        if held:
            yield held


class SumsBuilder:
    """Makes checksums of a fragment's blocks from its encoded bytes, which must match its SHA-1."""

    def __init__(self, fragment: Fragment) -> None:
        """Begin without content.

        Raises:
            DirectReadError: the codec's library is not installed, or the codec is unknown.
        """
        self._fragment = fragment
        try:
            self._decode = decoder_of(fragment.compression_codec)
        except (ExtraMissingError, ValidationError) as error:
            raise DirectReadError(fragment, "failed", str(error)) from error
        self._sha1 = hashlib.sha1(usedforsecurity=False)
        self._sums = BlockSums()

    def feed(self, encoded: bytes) -> None:
        """Take the next encoded bytes.

        Raises:
            JournalDamagedError: they cannot be decoded, or hold more than the fragment.
        """
        fragment = self._fragment
        try:
            for piece in self._decode(encoded):
                self._sha1.update(piece)
                self._sums.update(piece)
                end = fragment.begin + self._sums.length
                if end > fragment.end:
                    raise damaged(fragment, f"it has content up to offset {end} or more")
        except DecodingError as error:
            raise damaged(fragment, f"it cannot be decoded ({error})") from error

    def built(self) -> KnownSums:
        """Return the checksums.

        Raises:
            JournalDamagedError: the fragment's bytes are missing, or others than its SHA-1 says.
        """
        fragment, length = self._fragment, self._sums.length
        if fragment.begin + length < fragment.end:
            raise damaged(fragment, f"it ends at offset {fragment.begin + length}")
        require_sum(fragment, self._sha1.digest())
        self._sums.settle()
        return KnownSums(StoredSums(length, self._sums.encoded()), agree=True)


def _cut(wanted: WantedSpan, begin: int, content: bytes) -> bytes:
    """Return the wanted part of content at an offset."""
    if wanted.begin <= begin and begin + len(content) <= wanted.end:
        return content
    return content[max(0, wanted.begin - begin) : max(0, wanted.end - begin)]


def _cut_pieces(wanted: WantedSpan, begin: int, content: bytes) -> Iterator[bytes]:
    part = _cut(wanted, begin, content)
    return iter((part,)) if part else iter(())


def _pieces_of(decoded: bytes) -> Iterator[bytes]:
    """Yield content in pieces that are not too large for those who read it."""
    if len(decoded) <= PIECE_BYTES:
        yield decoded
        return
    for begin in range(0, len(decoded), PIECE_BYTES):
        yield decoded[begin : begin + PIECE_BYTES]


def sum_of(fragment: Fragment) -> bytes:
    """Return a fragment's SHA-1, 20 bytes."""
    total = fragment.sum
    return b"".join(
        part.to_bytes(size, "big")
        for part, size in ((total.part1, 8), (total.part2, 8), (total.part3, 4))
    )


def require_length(fragment: Fragment, length: int) -> None:
    """Raise JournalDamagedError unless a fragment's uncompressed object has this length, bytes."""
    if length != fragment.end - fragment.begin:
        raise damaged(fragment, f"it has {length} bytes")


def require_sum(fragment: Fragment, digest: bytes) -> None:
    """Raise JournalDamagedError unless a fragment's content has this SHA-1."""
    if digest != sum_of(fragment):
        raise damaged(fragment, f"its SHA-1 is {digest.hex()}")


def damaged(fragment: Fragment, detail: str) -> JournalDamagedError:
    """Return the error for a stored fragment that is not what its name says."""
    store = fragment.backing_store or "its store"
    return JournalDamagedError(fragment.journal, f"{_name_of(fragment)} in {store}: {detail}")


def _name_of(fragment: Fragment) -> str:
    return f"fragment [{fragment.begin}, {fragment.end}) {sum_of(fragment).hex()}"
