"""Reads stored fragments where they lie: a file of a shared directory, or the signed URL that a broker tells.

A URL is a stranger's word. So a `file://` URL is opened only below roots that this client was given, only under the
fragment's own name and without symbolic links; others are fetched with `https` (and `http`, if permitted), without
credentials and cookies, and what they redirect to is checked, too. Whatever comes is decompressed, bounded and
verified (`broadsheet.journals.fragment_content`).

A fragment that cannot be read here raises `DirectReadError`, and the broker still has it. One that was read and is not
what its name says raises `JournalDamagedError`.

Source: gazette/core broker/client/reader.go (OpenFragmentURL), broker/protocol/fragment_extensions.go (names).
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import stat
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from http import HTTPStatus
from io import FileIO
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote, urljoin, urlsplit

from broadsheet.journals.fragment_content import (
    PIECE_BYTES,
    DirectReadError,
    FragmentContent,
    KnownSums,
    SumsBuilder,
    WantedSpan,
    is_short,
    require_length,
    span_to_read,
    sum_of,
)
from broadsheet.journals.known_sums import KnownSumsCache
from broadsheet.runtime.clock import Clock
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.journal_pb2 import CompressionCodec, Fragment

if TYPE_CHECKING:
    import aiohttp

SILENCE_SECONDS: Final = 20.0
"""Longest wait for the next bytes of a store."""
CONNECT_SECONDS: Final = 5.0
"""Longest wait for a connection to a store."""
SHUN_SECONDS: Final = 60.0
"""Duration for which a store is not asked that could not be reached."""
REDIRECTS_MAX: Final = 3
THREADS: Final = 4
"""Threads of a client that read, decompress and verify fragments."""
_BUILD_BYTES: Final = 128 << 10
"""Encoded bytes read at once while checksums are made; a buffer that stays in the processor's cache."""
_CODECS: Final = {
    CompressionCodec.NONE: "raw",
    CompressionCodec.GZIP: "gz|gzip",
    CompressionCodec.ZSTANDARD: "zst|zstandard",
    CompressionCodec.SNAPPY: "sz|snappy",
    CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION: "gzod",
}
_OPEN_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_OPEN_FILE: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class DirectFragments:
    """Rules of a client for reading stored fragments without their broker."""

    enabled: bool = True
    """False reads everything through the broker."""
    roots: tuple[Path, ...] = ()
    """Directories that hold fragments of `file://` stores, as the broker's `--file-root` does; files elsewhere are
    read through the broker."""
    allow_http: bool = False
    """Permit stores without TLS."""
    verify_first: bool = True
    """Verify a file before its first byte is used if there are no checksums of its blocks, not only as it is read."""
    silence_seconds: float = SILENCE_SECONDS
    """Longest wait for the next bytes of a store."""

    def __post_init__(self) -> None:
        """Raise ValidationError if a root is relative."""
        for root in self.roots:
            if not root.is_absolute():
                raise ValidationError("roots", f"expected absolute paths, got {root}")


class ReadTotals:
    """Content that a client's readers received, and failures of direct reads. Monotonic."""

    def __init__(self) -> None:
        self.direct_bytes = 0
        self.broker_bytes = 0
        self.failures: dict[str, int] = {}
        """By reason."""

    def on_failure(self, reason: str) -> None:
        """Count a fragment that could not be read directly."""
        self.failures[reason] = self.failures.get(reason, 0) + 1


class FragmentOpener:
    """Opens stored fragments. Belongs to one event loop; files and codecs are worked on in a few threads."""

    def __init__(self, policy: DirectFragments, clock: Clock, sums: KnownSumsCache) -> None:
        self.policy = policy
        self._clock = clock
        self._sums = sums
        self._shunned_until: dict[str, float] = {}
        """By host of a store that could not be reached, monotonic seconds."""
        self._threads: ThreadPoolExecutor | None = None
        self._session: aiohttp.ClientSession | None = None

    async def open(self, wanted: WantedSpan) -> FragmentStream:
        """Open a fragment at an offset.

        Raises:
            DirectReadError: it cannot be read here.
            JournalDamagedError: it is not what its name says.
        """
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="fragments")
        try:
            scheme = urlsplit(wanted.url).scheme
        except ValueError as error:
            raise DirectReadError(wanted.fragment, "refused", f"its URL: {error}") from error
        if scheme == "file":
            return await self._open_file(wanted, self._threads)
        return await self._open_url(wanted, self._threads)

    async def close(self) -> None:
        """Close connections and end the threads. Idempotent."""
        if self._session is not None:
            await self._session.close()
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)
        self._session = self._threads = None

    async def _open_file(self, wanted: WantedSpan, threads: ThreadPoolExecutor) -> FragmentStream:
        opening = partial(open_below, wanted.fragment, wanted.url, self.policy.roots)
        fd = await asyncio.get_running_loop().run_in_executor(threads, opening)
        file = FileIO(fd)
        try:
            known = await self._known(wanted)
        except BaseException:
            file.close()
            raise
        return FragmentStream(threads, self._file_pieces(file, wanted, known), None, file)

    async def _known(self, wanted: WantedSpan) -> KnownSums | None:
        """Return the checksums of a fragment's blocks, if they are needed and there are any."""
        return None if is_short(wanted.fragment) else await self._sums.find(wanted.fragment)

    def _file_pieces(
        self, file: FileIO, wanted: WantedSpan, known: KnownSums | None
    ) -> Iterator[bytes]:
        """Yield the wanted content of a file, and close it. In a thread."""
        fragment = wanted.fragment
        with file:
            start = fragment.begin
            try:
                if fragment.compression_codec == CompressionCodec.NONE:
                    require_length(fragment, os.fstat(file.fileno()).st_size)
                if known is None and self.policy.verify_first and not is_short(fragment):
                    known = self._built(file, fragment)
                if fragment.compression_codec == CompressionCodec.NONE:
                    start, _ = span_to_read(wanted, known)
                file.seek(start - fragment.begin)
                content = FragmentContent(wanted, start, known=known)
                while encoded := file.read(PIECE_BYTES):
                    yield from content.feed(encoded)
                    if content.is_complete:
                        return
            except OSError as error:
                raise DirectReadError(fragment, "failed", f"its file: {error}") from error
            yield from self._finished(content, fragment)

    def _built(self, file: FileIO, fragment: Fragment) -> KnownSums:
        """Return checksums of a file's content, which matches its SHA-1: the next read of it is verified by them."""
        builder = SumsBuilder(fragment)
        while encoded := file.read(_BUILD_BYTES):
            builder.feed(encoded)
        known = builder.built()
        self._sums.keep(fragment, known)
        return known

    def _finished(self, content: FragmentContent, fragment: Fragment) -> Iterator[bytes]:
        """Yield the last content, and remember what it has proven."""
        yield from content.finish()
        if content.agreed is not None:
            self._sums.keep(fragment, content.agreed)

    async def _open_url(self, wanted: WantedSpan, threads: ThreadPoolExecutor) -> FragmentStream:
        import aiohttp  # here, because it takes as long as all the rest, and most clients do not need it

        if self._session is None:
            silence = self.policy.silence_seconds
            timeout = aiohttp.ClientTimeout(
                total=None, sock_connect=min(CONNECT_SECONDS, silence), sock_read=silence
            )
            self._session = aiohttp.ClientSession(
                timeout=timeout,
                cookie_jar=aiohttp.DummyCookieJar(),
                auto_decompress=False,  # the codec decides, not the store's headers
                read_bufsize=PIECE_BYTES,
                skip_auto_headers=("Accept-Encoding", "User-Agent"),
            )
        host, now = urlsplit(wanted.url).netloc, self._clock.monotonic_seconds()
        if now < self._shunned_until.get(host, now):
            raise DirectReadError(
                wanted.fragment, "unreachable", "its store could not be reached before"
            )
        self._require_permitted(wanted.url, wanted.fragment)
        known = await self._known(wanted)
        try:
            response = await self._get(self._session, wanted, known)
        except (aiohttp.ClientError, TimeoutError, OSError, ValueError) as error:
            if isinstance(error, (aiohttp.ClientConnectionError, TimeoutError)):
                # Else each reader would wait for it again and again.
                self._shun(host, now)
            raise _failed(wanted.fragment, error) from error
        try:
            start, is_gzip = _answered(wanted, response, span_to_read(wanted, known)[0])
            content = FragmentContent(wanted, start, is_gzip=is_gzip, known=known)
        except BaseException:
            response.close()
            raise
        finish = partial(self._finished, content, wanted.fragment)
        return FragmentStream(threads, None, _Body(response, content, wanted.fragment, finish))

    def _shun(self, host: str, now: float) -> None:
        past = [each for each, until in self._shunned_until.items() if until <= now]
        for each in past:
            del self._shunned_until[each]
        self._shunned_until[host] = now + SHUN_SECONDS

    async def _get(
        self, session: aiohttp.ClientSession, wanted: WantedSpan, known: KnownSums | None
    ) -> aiohttp.ClientResponse:
        """Return the answer of the store, redirections followed."""
        from yarl import URL

        url = wanted.url
        for _ in range(REDIRECTS_MAX + 1):
            self._require_permitted(url, wanted.fragment)
            response = await session.get(
                # As it is, because the store signed it so.
                URL(url, encoded=True),
                headers=_headers(wanted, known),
                allow_redirects=False,
            )
            if response.status not in (301, 302, 303, 307, 308):
                return response
            response.close()
            target = urljoin(url, response.headers.get("Location", ""))
            # From TLS to clear text, the signature in the URL would be readable on the way.
            if urlsplit(url).scheme == "https" and urlsplit(target).scheme != "https":
                detail = "its store redirects from https elsewhere"
                raise DirectReadError(wanted.fragment, "refused", detail)
            url = target
        detail = f"its store redirects more than {REDIRECTS_MAX} times"
        raise DirectReadError(wanted.fragment, "refused", detail)

    def _require_permitted(self, url: str, fragment: Fragment) -> None:
        parsed = urlsplit(url)
        schemes = ("https", "http") if self.policy.allow_http else ("https",)
        if parsed.scheme not in schemes:
            detail = f"expected a URL with {' or '.join(schemes)}, got {parsed.scheme or 'none'}"
            raise DirectReadError(fragment, "refused", detail)
        if not parsed.hostname or parsed.username is not None or parsed.password is not None:
            raise DirectReadError(fragment, "refused", "expected a URL of a host, without a user")


class FragmentStream:
    """The wanted content of one fragment, piece by piece. A cancelled `next` loses nothing."""

    def __init__(
        self,
        threads: ThreadPoolExecutor,
        pieces: Iterator[bytes] | None,
        body: _Body | None,
        file: FileIO | None = None,
    ) -> None:
        """Begin.

        Args:
            threads: Where pieces are made.
            pieces: All of them, for a file.
            body: Where encoded bytes come from, otherwise.
            file: That the pieces are read from.
        """
        self._file = file
        self._threads = threads
        self._pieces = pieces
        self._body = body
        self._job: asyncio.Future[bytes | None] | None = None

    async def next(self) -> bytes:
        """Return the next content; none at the end.

        Raises:
            DirectReadError: the store failed.
            JournalDamagedError: the fragment is not what its name says.
        """
        while True:
            if self._job is None:
                if self._pieces is None:
                    if self._body is None:
                        return b""
                    self._pieces = await self._body.next()
                    if self._pieces is None:
                        self.close()
                        return b""
                self._job = asyncio.get_running_loop().run_in_executor(
                    self._threads, next, self._pieces, None
                )
            # The thread works on even if the caller is cancelled, and then the next call gets its result.
            piece = await asyncio.shield(self._job)
            self._job = None
            if piece is not None:
                return piece
            self._pieces = None

    def close(self) -> None:
        """Release the file or the connection; idempotent."""
        if self._body is not None:
            self._body.close()
        pieces, job = self._pieces, self._job
        self._pieces = self._body = self._job = None
        if job is not None and not job.done():
            # The file is closed by the thread that reads it.
            job.add_done_callback(partial(_close_pieces, pieces, self._file))
        else:
            _close_pieces(pieces, self._file, job)


class _Body:
    """The encoded bytes of an answer."""

    def __init__(
        self,
        response: aiohttp.ClientResponse,
        content: FragmentContent,
        fragment: Fragment,
        finish: Callable[[], Iterator[bytes]],
    ) -> None:
        self._response = response
        self._content = content
        self._fragment = fragment
        self._finish = finish
        self._ended = False

    async def next(self) -> Iterator[bytes] | None:
        """Return the content of the next bytes; None after the last ones."""
        import aiohttp

        if self._ended or self._content.is_complete:
            return None
        try:
            encoded = await self._response.content.read(PIECE_BYTES)
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _failed(self._fragment, error) from error
        if encoded:
            return self._content.feed(encoded)
        self._ended = True
        return self._finish()

    def close(self) -> None:
        """Release the connection."""
        if self._ended:
            self._response.release()
        else:
            self._response.close()


def _close_pieces(
    pieces: Iterator[bytes] | None,
    file: FileIO | None,
    job: asyncio.Future[bytes | None] | None,
) -> None:
    if job is not None and not job.cancelled():
        job.exception()  # Retrieved, because its reader has gone; else asyncio would report it.
    close = getattr(pieces, "close", None)
    if close is not None:
        close()
    if file is not None:
        # Pieces that were never asked for have not begun, and do not close it.
        file.close()


def fragment_paths(fragment: Fragment) -> tuple[tuple[str, ...], re.Pattern[str]]:
    """Return the directories of a fragment below its store, and the pattern of its file's name."""
    journal, postfix = fragment.journal.split("/"), fragment.path_postfix.strip("/")
    directories = (*journal, *(postfix.split("/") if postfix else ()))
    stem = f"{fragment.begin:016x}-{fragment.end:016x}-{sum_of(fragment).hex()}"
    extensions = _CODECS.get(fragment.compression_codec, "")
    optional = "?" if fragment.compression_codec == _OFFLOADED else ""
    return directories, re.compile(rf"{stem}(\.({extensions})){optional}", re.IGNORECASE)


_OFFLOADED: Final = CompressionCodec.GZIP_OFFLOAD_DECOMPRESSION


def open_below(fragment: Fragment, url: str, roots: tuple[Path, ...]) -> int:
    """Open the file of a fragment below one of the roots; return its descriptor. Blocking.

    A URL has the file's path, as this project's brokers tell it, or that below the root, as Gazette's do.

    Raises:
        DirectReadError: the URL is not that of the fragment below a root, or there is no such file.
    """
    try:
        parsed = urlsplit(url)
    except ValueError as error:
        raise DirectReadError(fragment, "refused", f"its URL: {error}") from error
    parts = tuple(unquote(parsed.path).split("/"))[1:]
    directories, name = fragment_paths(fragment)
    if parsed.netloc not in ("", "localhost") or not name.fullmatch(parts[-1] if parts else ""):
        raise DirectReadError(fragment, "refused", "its URL is not that of a file of its name")
    if parts[-1 - len(directories) : -1] != directories:
        raise DirectReadError(fragment, "refused", "its URL leads to another journal's directory")
    if any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise DirectReadError(fragment, "refused", "its URL has a path with dots")
    if not roots:
        raise DirectReadError(fragment, "refused", "no directory of fragments is configured")
    problem: OSError | None = None
    for root in roots:
        own = root.parts[1:]
        inner = parts[len(own) :] if parts[: len(own)] == own else parts
        try:
            return _open_inner(root, inner)
        except OSError as error:
            problem = error
    detail = f"no file of it below {', '.join(map(str, roots))} ({problem})"
    raise DirectReadError(fragment, "missing", detail) from problem


def _open_inner(root: Path, parts: tuple[str, ...]) -> int:
    """Open a regular file below a root, which is reached without symbolic links."""
    directory = os.open(root, _OPEN_DIRECTORY)
    try:
        for part in parts[:-1]:
            inner = os.open(part, _OPEN_DIRECTORY | os.O_NOFOLLOW, dir_fd=directory)
            os.close(directory)
            directory = inner
        fd = os.open(parts[-1], _OPEN_FILE, dir_fd=directory)
    finally:
        os.close(directory)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "it is no regular file")
    return fd


def _headers(wanted: WantedSpan, known: KnownSums | None) -> dict[str, str]:
    """Return the headers of a request, which never include credentials."""
    fragment = wanted.fragment
    if fragment.compression_codec == CompressionCodec.GZIP:
        # Otherwise some stores would decompress it on the way.
        return {"Accept-Encoding": "gzip"}
    headers = {"Accept-Encoding": "identity"}
    begin, end = span_to_read(wanted, known)
    is_whole = (begin, end) == (fragment.begin, fragment.end)
    if fragment.compression_codec == CompressionCodec.NONE and not is_whole:
        first, last = begin - fragment.begin, end - fragment.begin - 1
        headers["Range"] = f"bytes={first}-{last}"
    return headers


def _answered(
    wanted: WantedSpan, response: aiohttp.ClientResponse, begin: int
) -> tuple[int, bool | None]:
    """Return the offset at which an answer's content begins, and whether gzip replaces the codec.

    Args:
        wanted: The fragment.
        response: The answer.
        begin: Offset of the first byte of the range that was asked for.

    Raises:
        DirectReadError: the store refused, or answered otherwise than it was asked.
        JournalDamagedError: the object has another length.
    """
    fragment, codec = wanted.fragment, wanted.fragment.compression_codec
    if response.status not in (HTTPStatus.OK, HTTPStatus.PARTIAL_CONTENT):
        raise DirectReadError(fragment, _REASONS.get(response.status, "failed"), _told(response))
    if response.content_length is None and "Transfer-Encoding" not in response.headers:
        # Its end could not be told from a broken connection.
        raise DirectReadError(fragment, "failed", "its store did not tell the length")
    encoding = response.headers.get("Content-Encoding", "identity").lower()
    if codec == _OFFLOADED and encoding in ("gzip", "identity"):
        return fragment.begin, encoding == "gzip"
    if encoding != "identity" and not (codec == CompressionCodec.GZIP and encoding == "gzip"):
        raise DirectReadError(fragment, "failed", f"its store sent it with encoding {encoding}")
    if response.status == HTTPStatus.PARTIAL_CONTENT:
        found = _RANGE.fullmatch(response.headers.get("Content-Range", ""))
        if found is None or int(found[1]) != begin - fragment.begin:
            raise DirectReadError(fragment, "failed", "its store sent another range")
        require_length(fragment, int(found[3]))
        return begin, None
    if codec == CompressionCodec.NONE and response.content_length is not None:
        require_length(fragment, response.content_length)
    return fragment.begin, None


_REASONS: Final[dict[int, str]] = {
    HTTPStatus.UNAUTHORIZED: "expired",
    HTTPStatus.FORBIDDEN: "expired",
    HTTPStatus.GONE: "missing",
    HTTPStatus.NOT_FOUND: "missing",
}


def _told(response: aiohttp.ClientResponse) -> str:
    return f"its store answered {response.status} {response.reason or ''}".rstrip()


def _failed(fragment: Fragment, error: Exception) -> DirectReadError:
    # Not the error's text, because aiohttp's may contain the URL, which by itself gives access to the fragment.
    return DirectReadError(fragment, "failed", f"its store failed ({type(error).__name__})")
