"""The Read RPC: metadata and content of each fragment in turn. A reader at the tail may skip metadata.

Source: gazette/core broker/read_api.go, fragment/index.go (messages, jumps, what ends a stream).
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, TypedDict

import grpc
import structlog

from broadsheet.broker.content_file import ContentFile
from broadsheet.broker.faults import Context, RpcFault
from broadsheet.broker.fragment_checks import FragmentChecks
from broadsheet.broker.fragments import SealedFragment, sha1_sum
from broadsheet.broker.journal import LiveJournal, ReadableSpan, Site
from broadsheet.broker.journals import Journals
from broadsheet.broker.limits import CountedReader, ReaderBytes
from broadsheet.broker.preconditions import may_read
from broadsheet.broker.publishing import READ_URL_SECONDS, MissingCopyError
from broadsheet.broker.resolution import JournalResolution, JournalResolver
from broadsheet.journals.block_sums import BLOCK_BYTES, DamagedContentError
from broadsheet.journals.wire import encode_read_chunk
from broadsheet.security.auth import Claims
from broadsheet.wire.identity_pb2 import JournalIdentity
from broadsheet.wire.journal_pb2 import (
    CompressionCodec,
    Fragment,
    Header,
    JournalSpec,
    ReadRequest,
    ReadResponse,
    Status,
)
from broadsheet.wire.read_metadata import linger_seconds_of, takes_brief_tail
from broadsheet.wire.validation_journal import validate_read_request

WRITE_HEAD = -1
INLINE_BYTES_MAX = 512 << 10
"""Bytes read from the kernel's cache without a hop to a thread, which would cost more than the copy: a chunk of 256 KiB
takes 0.07 ms of processor time, and 0.15 ms by way of a thread.
"""
BRIEF_BYTES_MAX = 32 << 10
"""New content of the open fragment that is sent without metadata."""

_log = structlog.get_logger()


class _Origin(TypedDict, total=False):
    """Fields that only the first message of a stream carries."""

    header: Header
    identity: JournalIdentity


class ReadHandler:
    """Serves reads."""

    def __init__(
        self,
        resolver: JournalResolver,
        journals: Journals,
        checks: FragmentChecks,
        site: Site,
    ) -> None:
        self._resolver = resolver
        self._journals = journals
        self._checks = checks
        self._publisher = site.publisher
        self._disk = site.disk
        self._config = site.config
        self._limits = site.limits

    async def read(self, request: ReadRequest, claims: Claims, context: Context) -> None:
        """Serve one read; a blocking one ends cleanly when the journal, the broker or the token ends."""
        validate_read_request(request)
        timeout = asyncio.timeout(seconds_left(claims))
        account = self._limits.reader_bytes.open(lambda: timeout.reschedule(0.0))
        try:
            async with timeout:
                await self._read(request, claims, context, account)
        except TimeoutError:
            # The timeout is also how a stalled reader is cut off; otherwise it is the end of the
            # claims, which ends the read cleanly.
            if account.is_cut_off:
                raise _cut_off() from None
            if not timeout.expired():
                raise
        finally:
            _close_after(context, self._limits.reader_bytes, account)

    async def _read(
        self, request: ReadRequest, claims: Claims, context: Context, account: CountedReader
    ) -> None:
        resolution = await self._resolver.resolve(
            request.journal,
            claims,
            min_revision=request.min_etcd_revision,
            proxied=request.header if request.HasField("header") else None,
        )
        status = refusal(resolution)
        if resolution.entry is None or status != Status.OK:
            await context.write(ReadResponse(status=status, header=resolution.header))
            return
        with self._limits.readers.taken(resolution.name):
            served = await self._resolver.serve(resolution.entry)
            call = _Call(context, account)
            stream = _ReadStream(self, request, resolution, served.journal, call)
            try:
                await stream.run()
            finally:
                stream.close()

    @property
    def stopping(self) -> bool:
        """True if streams should end."""
        return self._journals.stopping

    async def open(self, span: ReadableSpan, journal: LiveJournal) -> ContentFile:
        """Return the file of a span; the caller releases it.

        Raises:
            OSError: it could not be opened.
            DamagedContentError: its content is not what was written.
        """
        sealed = sealed_of(span)
        return journal.view.file.acquire() if sealed is None else await self._checks.open(sealed)

    async def url_of(self, span: ReadableSpan) -> str:
        """Return a URL under which a span's whole fragment can be got for a minute; empty if there is none."""
        sealed = sealed_of(span)
        if sealed is None or sealed.stored is None:
            return ""
        return (await self._publisher.urls_of([sealed], READ_URL_SECONDS)).get(sealed, "")

    async def is_sound(self, span: ReadableSpan) -> bool:
        """Verify a span's whole fragment: if it is intact, its stored checksums were wrong, or its store healed it."""
        sealed = sealed_of(span)
        if sealed is None:
            return False
        return not await self._checks.damage_of(sealed) or await self._checks.heal(sealed)

    def start_reading(
        self, file: ContentFile, length: int, position: int
    ) -> memoryview | asyncio.Future[memoryview]:
        """Return bytes of a file that are in the kernel's cache, or start reading them in a thread."""
        if length <= INLINE_BYTES_MAX:
            content = file.read_cached_or_none(length, position)
            if content is not None:
                return content
        return self._disk.submit(lambda: file.read(length, position))

    @property
    def chunk_bytes(self) -> int:
        """Most content of one message."""
        return self._config.read_chunk_bytes


@dataclass(frozen=True, slots=True)
class _Call:
    """Destination of the content, and the account of bytes on their way."""

    context: Context
    account: CountedReader

    async def write(self, message: ReadResponse | bytes, counted: int = 0) -> None:
        """Send a message with this many counted bytes; waits for a reader that takes nothing."""
        with self.account.sending(counted):
            await self.context.write(message)


@dataclass(frozen=True, slots=True)
class _Chunk:
    """Content of a file, or the read of it."""

    content: memoryview | asyncio.Future[memoryview]
    counted: int
    """Number of its bytes in the reader's account."""


class _ReadStream:
    """One read as it moves through the journal."""

    def __init__(
        self,
        handler: ReadHandler,
        request: ReadRequest,
        resolution: JournalResolution,
        journal: LiveJournal,
        call: _Call,
    ) -> None:
        self._handler = handler
        self._request = request
        self._journal = journal
        self._call = call
        self._header: Header | None = resolution.header
        self._name = resolution.name
        head = journal.view.head
        self._offset = head if request.offset == WRITE_HEAD else request.offset
        self._file: ContentFile | None = None
        self._file_begin = 0
        self._brief = takes_brief_tail(call.context.invocation_metadata())
        self._linger_seconds = linger_seconds_of(call.context.invocation_metadata())
        self._described_to = -1
        """End of the content sent from the open fragment that was last described; -1 if none was."""

    async def run(self) -> None:
        """Send until the stream ends."""
        while not self._is_over():
            begin_mod_time = self._request.begin_mod_time
            if begin_mod_time:
                # Also if no content follows, because the answer then tells the read's position
                # after the skipped fragments.
                self._offset = self._journal.skip_older(self._offset, begin_mod_time)
            span = self._journal.locate(self._offset)
            if span is not None:
                url = "" if span.stored is None else await self._handler.url_of(span)
                # Its content is not needed here, so it is not fetched from its store.
                is_left_out = bool(url) and (
                    self._request.do_not_proxy or self._request.metadata_only
                )
                # The file of an open fragment is taken before the first await, while the span
                # surely matches the view.
                if not is_left_out and not await self._hold(span):
                    continue
                self._offset = max(self._offset, span.begin)
                if not self._goes_on(span):
                    await self._send_metadata(span, url)
                if is_left_out or self._request.metadata_only or self._is_past_end():
                    return
                await self._send_content(span)
                self._described_to = self._offset if span.path is None else -1
                if self._is_past_end():
                    return
            elif self._request.block:
                await self._journal.changed.wait()
                if self._linger_seconds:
                    await asyncio.sleep(self._linger_seconds)
            else:
                await self._send_not_yet()
                return

    def _goes_on(self, span: ReadableSpan) -> bool:
        """Tell whether the next content needs no metadata: the reader knows the open fragment, and is at its end."""
        return (
            self._brief
            and self._described_to == self._offset > span.begin
            and span.path is None
            and span.end - self._offset <= BRIEF_BYTES_MAX
        )

    def _is_over(self) -> bool:
        return self._journal.deleted or self._handler.stopping

    def _is_past_end(self) -> bool:
        return 0 < self._request.end_offset <= self._offset

    async def _send_not_yet(self) -> None:
        await self._call.write(
            ReadResponse(
                status=Status.OFFSET_NOT_YET_AVAILABLE,
                **self._taken_origin(),
                offset=self._offset,
                write_head=self._journal.view.head,
            )
        )

    async def _send_metadata(self, span: ReadableSpan, url: str) -> None:
        await self._call.write(
            ReadResponse(
                status=Status.OK,
                **self._taken_origin(),
                offset=self._offset,
                write_head=self._journal.view.head,
                fragment=fragment_message(self._name, span),
                fragment_url=url,
            )
        )

    def _taken_origin(self) -> _Origin:
        """Return the header and identity for the first message; empty afterwards."""
        header, self._header = self._header, None
        if header is None:
            return {}
        return {"header": header, "identity": self._journal.identity}

    async def _hold(self, span: ReadableSpan) -> bool:
        """Hold the file of a span; an open fragment that was sealed in the meantime is the same file.

        Returns:
            False if the file was removed in the meantime, with its journal or by retention.
        """
        if (
            self._file is not None
            and self._file_begin == span.begin
            and self._file.holds(span.end - span.begin)
        ):
            return True
        self.close()
        try:
            self._file = await self._handler.open(span, self._journal)
        except (DamagedContentError, OSError) as error:
            # What was removed in the meantime is jumped over.
            if self._is_over() or not self._is_listed(span):
                return False
            if isinstance(error, MissingCopyError) and self._forget_gone(span):
                return False
            raise self._fault_of(error, span) from error
        self._file_begin = span.begin
        return True

    def _is_listed(self, span: ReadableSpan) -> bool:
        return self._journal.locate(span.begin) == span

    def _forget_gone(self, span: ReadableSpan) -> bool:
        """Take a fragment out of the index whose removal was interrupted before that; return whether it is such a one.

        Any other whose only copy is missing stays: its store may come back, as a mount does.
        """
        sealed = sealed_of(span)
        if sealed is None or not self._journal.is_declared_gone(span):
            return False
        self._journal.index.remove(sealed)
        _log.info("fragment.was_gone", journal=self._name, begin=span.begin, end=span.end)
        return True

    def _fault_of(self, error: DamagedContentError | OSError, span: ReadableSpan) -> Exception:
        if isinstance(error, DamagedContentError):
            return _damaged(self._name, span, error)
        if span.stored is None:
            return error
        # Not the disk's failure: the content is in a store.
        _log.warning(
            "fragment.not_fetched", journal=self._name, begin=span.begin, detail=str(error)
        )
        return RpcFault(
            grpc.StatusCode.UNAVAILABLE,
            f"journal {self._name}: fragment [{span.begin}, {span.end}) with SHA-1 {span.sum.hex()} cannot be fetched: "
            f"{error}: bring its store back, or give the fragment up with "
            f"shardctl journals verify {self._name} --discard-damaged",
        )

    async def _send_content(self, span: ReadableSpan) -> None:
        """Send a span's bytes, up to the first damaged ones."""
        end = min(span.end, self._request.end_offset or span.end)
        try:
            await self._send_verified(span, end)
        except DamagedContentError as error:
            account = self._call.account
            account.give_back(account.held)
            if span.path is not None and not self._is_listed(span):
                # It was removed in the meantime, or damaged parts were given up.
                self.close()
                return
            # The checksums were rebuilt, so the next round continues here.
            self.close()
            if await self._handler.is_sound(span):
                return
            if await self._hold(span):
                await self._send_verified(span, min(end, span.begin + error.begin))
            raise _damaged(self._name, span, error) from error

    async def _send_verified(self, span: ReadableSpan, end: int) -> None:
        """Send bytes of a span; while one chunk is sent, the disk reads the next one, if there is room for it."""
        account = self._call.account
        following: _Chunk | None = None
        while self._offset < end and not self._is_over():
            if following is None:
                following = self._start_reading(span, account.take(self._wanted(span, end)))
            chunk = following
            is_cached = isinstance(chunk.content, memoryview)
            content = await _arrived(chunk.content)
            offset = self._offset
            self._offset += len(content)
            # What is in memory is copied by the loop itself, so to read it now would only delay this chunk.
            ahead = 0 if is_cached else account.take_ahead(self._wanted(span, end))
            following = self._start_reading(span, ahead) if ahead else None
            await self._call.write(encode_read_chunk(offset, content), chunk.counted)

    def _wanted(self, span: ReadableSpan, end: int) -> int:
        # Later chunks begin at a block boundary, so that nothing is read twice for its
        # verification.
        into_block = (self._offset - span.begin) % BLOCK_BYTES
        return min(max(self._handler.chunk_bytes - into_block, 1), end - self._offset)

    def _start_reading(self, span: ReadableSpan, length: int) -> _Chunk:
        assert self._file is not None, "content without metadata"
        position = self._offset - span.begin
        return _Chunk(self._handler.start_reading(self._file, length, position), length)

    def close(self) -> None:
        """Release the file."""
        if self._file is not None:
            self._file.release()
            self._file = None


async def _arrived(content: memoryview | asyncio.Future[memoryview]) -> memoryview:
    return content if isinstance(content, memoryview) else await content


def fragment_message(name: str, span: ReadableSpan) -> Fragment:
    """Return a span as a message to clients: as its copy in a store, else uncompressed and without a store."""
    message = Fragment(
        journal=name,
        begin=span.begin,
        end=span.end,
        sum=sha1_sum(span.sum),
        compression_codec=CompressionCodec.NONE,
        mod_time=span.mod_time,
    )
    if span.stored is not None:
        message.compression_codec = CompressionCodec.ValueType(span.stored.codec)
        message.backing_store = span.stored.store
        message.path_postfix = span.stored.postfix
    return message


def sealed_of(span: ReadableSpan) -> SealedFragment | None:
    """Return a span's sealed fragment; None if it is open."""
    if span.path is None:
        return None
    return SealedFragment(span.begin, span.end, span.sum, span.mod_time, span.path, span.stored)


def _damaged(name: str, span: ReadableSpan, error: DamagedContentError) -> RpcFault:
    """Return the fault for content that fails its checksum."""
    begin, end = span.begin + error.begin, span.begin + error.end
    return RpcFault(
        grpc.StatusCode.DATA_LOSS,
        f"journal {name}: bytes [{begin}, {end}) of fragment [{span.begin}, {span.end}) with SHA-1 {span.sum.hex()} "
        f"are damaged {error.where}: restore its file from a backup, or give them up with "
        f"shardctl journals verify {name} --discard-damaged",
    )


def seconds_left(claims: Claims) -> float | None:
    """Return the remaining lifetime of claims, seconds; None if unlimited."""
    if claims.expires_at is None:
        return None
    return max(0.0, (claims.expires_at - datetime.now(UTC)).total_seconds())


def _close_after(context: Context, readers: ReaderBytes, account: CountedReader) -> None:
    """Close an account when the call ends, because gRPC holds the bytes of an interrupted write until then."""
    readers.end(account)
    if account.silent_since is None:
        account.give_back(account.held)
    else:
        account.give_back(account.held - account.in_writing)
        # `Any`, because the stubs ask for a class where gRPC takes a function.
        over: Any = lambda _: account.give_back(account.held)  # noqa: E731
        context.add_done_callback(over)


def _cut_off() -> RpcFault:
    return RpcFault(
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        "the reader takes nothing, and others need the memory that its content holds: read on from the last offset",
    )


def refusal(resolution: JournalResolution) -> Status.ValueType:
    """Return the status with which a journal's content is refused; OK if it may be read."""
    if resolution.entry is None:
        return resolution.status
    spec = resolution.entry.spec
    if spec.suspend.level == JournalSpec.Suspend.FULL:
        return Status.SUSPENDED
    return Status.OK if may_read(spec) else Status.NOT_ALLOWED
