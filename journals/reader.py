"""Reader of a journal's bytes: in order, once each, across broken connections and broker restarts.

A read ends at `end_offset`, at the write head if it does not block, or with an error that repetition would not cure.
Everything else is retried at the first undelivered byte.

Source: gazette/core broker/client/reader.go, retry_reader.go. Unlike the model, NOT_ALLOWED is surfaced, and an answer
against the protocol is after a few attempts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self

import grpc
import structlog

from broadsheet.journals.direct_fragments import FragmentOpener, FragmentStream
from broadsheet.journals.errors import (
    JournalDamagedError,
    JournalError,
    JournalNotFoundError,
    JournalProtocolError,
    JournalReplacedError,
    JournalUnavailableError,
    OffsetNotYetAvailableError,
)
from broadsheet.journals.fragment_content import DirectReadError, WantedSpan
from broadsheet.journals.guard import OffsetGuard, Present
from broadsheet.journals.request_errors import UNASSIGNED, error_of_rpc, error_of_status
from broadsheet.journals.transport import STREAM_LIFE_SECONDS, JournalTransport, cancelled_by_peer
from broadsheet.journals.wire import ReadChunk
from broadsheet.runtime.backoff import Backoff
from broadsheet.runtime.errors import EndpointError, RpcFailedError, ServiceError, ValidationError
from broadsheet.security.auth import TOKEN_LIFE_SECONDS, Capability
from broadsheet.wire.alphabet import require, split_journal
from broadsheet.wire.identity_pb2 import JournalIdentity
from broadsheet.wire.journal_pb2 import (
    Fragment,
    FragmentsResponse,
    ReadRequest,
    ReadResponse,
    Status,
)
from broadsheet.wire.read_metadata import BRIEF_TAIL, metadata_of_linger
from broadsheet.wire.validation_journal import validate_read_request
from broadsheet.wire.validation_journal_response import validate_read_chunk, validate_read_response

REFUSALS_MAX = 4
"""Number of consecutive "no such journal" answers, or answers against the protocol, after which they are believed.
Another broker may not yet know a journal that was just applied.
"""
BACKOFF_SECONDS_MAX = 2.0
"""Longest pause between attempts."""
_TOLD_ONCE = ("refused", "unreachable")
"""Reasons of direct reads that fail which are logged once for all readers of a client."""
_DOOMED_CODES = ("INVALID_ARGUMENT", "UNIMPLEMENTED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION")
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class ReadSpan:
    """Consecutive bytes of a journal."""

    offset: int
    """Offset of the first byte."""
    content: bytes
    jumped: bool = False
    """True if undelivered bytes before `offset` are gone from the journal (a hole)."""

    @property
    def end(self) -> int:
        """Offset after the last byte."""
        return self.offset + len(self.content)


@dataclass(slots=True)
class ReadProgress:
    """Progress of a read: which bytes were delivered, and whether the broker's next message follows from them.

    Pure: messages in, spans out. It outlives the RPCs of one reader, so a retry asks for the first undelivered byte.

    Source: gazette/core broker/client/reader.go (offset tracking, jumps), rpc_extensions.go (ReadResponse.Validate).
    """

    offset: int
    """First undelivered byte; -1 is the write head, until an answer tells it."""
    end_offset: int = 0
    """Offset at which reading is complete; 0 is none."""
    write_head: int = 0
    """As of the newest answer."""
    fragment: Fragment | None = None
    """The fragment that holds `offset`, as of the newest answer; without a sum if it has grown since."""
    jumped: bool = False
    """A hole was met, and the bytes after it were not delivered yet."""
    identity: JournalIdentity | None = None
    """Identity of the journal in the newest answer that had one; None from brokers that do not tell it."""
    in_fragment: bool = False
    """True if the current RPC has described the fragment that its next chunk belongs to."""

    @property
    def complete(self) -> bool:
        """True if every byte below `end_offset` was delivered or is gone."""
        return 0 < self.end_offset <= self.offset

    def on_opened(self) -> None:
        """Expect metadata before content, because a new RPC was opened."""
        self.in_fragment = False

    def on_metadata(self, response: ReadResponse) -> None:
        """Process a message without content.

        Raises:
            ValidationError: it contradicts itself or goes back.
        """
        validate_read_response(response)
        if response.HasField("identity"):
            self.identity = response.identity
        if response.status in (Status.OK, Status.OFFSET_NOT_YET_AVAILABLE):
            self.write_head = response.write_head
        if response.status != Status.OK:
            if response.status == Status.OFFSET_NOT_YET_AVAILABLE and self.offset < 0:
                self.offset = response.offset
            return
        require(
            response.HasField("fragment"), "fragment", "expected one beside status OK, got none"
        )
        require(
            response.offset >= self.offset,
            "offset",
            f"expected {self.offset} or more, which was asked for, got {response.offset}",
        )
        self.jumped |= 0 <= self.offset < response.offset
        self.offset = response.offset
        self.fragment = response.fragment
        self.in_fragment = True

    def on_listed(self, fragment: Fragment) -> None:
        """Take a listed fragment that holds `offset` as the one being read."""
        self.fragment = fragment
        self.in_fragment = True

    def on_chunk(self, chunk: ReadChunk) -> ReadSpan:
        """Process a chunk and return the span that it adds.

        A chunk that begins where an open fragment ended continues it (`broadsheet.wire.read_metadata`).

        Raises:
            ValidationError: it goes back, or leaves its fragment.
        """
        offset, content = chunk.offset, chunk.content
        end = offset + len(content)
        if self.fragment is None or not self.in_fragment:
            raise ValidationError("content", "expected metadata before content")
        if offset == self.offset == self.fragment.end and not self.fragment.mod_time:
            self._grow(self.fragment, end)
        # Not `require`, which would have both messages made for every chunk.
        if not self.offset <= offset <= end <= self.fragment.end:
            raise ValidationError(
                "offset",
                f"expected content in [{self.offset}, {self.fragment.end}), got [{offset}, {end})",
            )
        if 0 < self.end_offset < end:
            raise ValidationError(
                "offset",
                f"expected no content from end_offset {self.end_offset} on, got [{offset}, {end})",
            )
        span = ReadSpan(offset, content, jumped=self.jumped or offset > self.offset)
        self.offset = end
        self.jumped = False
        return span

    def _grow(self, fragment: Fragment, end: int) -> None:
        """Extend the open fragment, and with it the journal, to `end`."""
        fragment.end = end
        fragment.ClearField("sum")
        self.write_head = max(self.write_head, end)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderOptions:
    """The parts of a read that are not the broker's."""

    linger_seconds: float = 0.0
    """Delay of content at the write head; see `broadsheet.wire.read_metadata`."""
    guard: OffsetGuard | None = None
    """Ends the read with JournalReplacedError if the journal no longer holds what was read before."""
    stored: Sequence[FragmentsResponse.ListedFragment] = ()
    """Fragments with signed URLs, which are read without asking a broker."""


class Reader:
    """An asynchronous iterator of `ReadSpan`s. Iterate it from one task at a time; `aclose` it if you stop early.

    A cancelled iteration loses nothing: the next one continues at the first undelivered byte.
    """

    def __init__(
        self,
        transport: JournalTransport,
        fragments: FragmentOpener,
        request: ReadRequest,
        options: ReaderOptions | None = None,
    ) -> None:
        """Create the reader; nothing is sent until the first iteration.

        Args:
            transport: Reaches brokers.
            fragments: Opens stored fragments where they lie.
            request: The bytes to read.
            options: The rest; the defaults if None.

        Raises:
            ValidationError: the request is malformed, or lingers for too long.
        """
        validate_read_request(request)
        options = options or ReaderOptions()
        self._options = (BRIEF_TAIL, *metadata_of_linger(options.linger_seconds))
        self._transport = transport
        self._fragments = fragments
        self._request = request
        self._clock = transport.clock
        self._progress = ReadProgress(request.offset, request.end_offset)
        self._guard = options.guard
        self._backoff = Backoff(max_seconds=BACKOFF_SECONDS_MAX)
        self._call: grpc.aio.UnaryStreamCall[ReadRequest, ReadChunk | ReadResponse] | None = None
        self._endpoint = ""
        self._heard = False
        self._refusals = 0
        self._waiting_since: float | None = None
        self._finished = False
        self._stored = [each for each in reversed(options.stored) if each.signed_url]
        """Listed fragments, the first one last."""
        self._direct: FragmentStream | None = None
        self._wants_direct = transport.policy.fragments.enabled and not request.metadata_only
        self._stored_url = ""
        """Where the fragment is that the current RPC described and did not deliver."""
        self._direct_failures = 0
        """Consecutive fragments that could not be read directly."""
        self._through_broker_to: int | None = None
        """End of what the next RPC delivers even if it is stored, 0 for all; None leaves that to us."""
        self._was_sent_on = False
        """Whether a broker without the journal has answered since the last content."""
        self._asked_direct = False
        """Whether the current RPC leaves stored fragments to us."""

    @property
    def journal(self) -> str:
        """The journal as requested, with its `;meta` if it had one."""
        return self._request.journal

    @property
    def offset(self) -> int:
        """First undelivered byte."""
        return self._progress.offset

    @property
    def write_head(self) -> int:
        """The journal's write head as of the newest answer, bytes; 0 before the first one."""
        return self._progress.write_head

    @property
    def identity(self) -> JournalIdentity | None:
        """Identity of the journal in the newest answer; None if no broker has told it."""
        return self._progress.identity

    @property
    def fragment(self) -> Fragment | None:
        """The fragment being read, as of the newest answer."""
        return self._progress.fragment

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> ReadSpan:
        while not self._is_finished():
            try:
                span = await self._step()
            except grpc.aio.AioRpcError as error:
                self._drop_call()
                await self._on_rpc_error(error)
            except ValidationError as error:
                self._drop_call()
                wrong = JournalProtocolError(self.journal, f"{self._endpoint}: {error}")
                wrong.__cause__ = error
                await self._refused(wrong)
            except asyncio.CancelledError:
                self._drop_call()
                if not cancelled_by_peer():
                    raise
                if self._is_finished():
                    break  # another task closed the reader
                await self._pause(EndpointError(self._endpoint, "the broker cancelled the read"))
            else:
                if span is not None:
                    return span
        raise StopAsyncIteration

    async def aclose(self) -> None:
        """End the read; iteration then ends too."""
        self._finished = True
        self._drop_call()
        self._drop_direct()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.aclose()

    async def _step(self) -> ReadSpan | None:
        """Read one message; return the span that it adds, if any."""
        if self._direct is not None:
            return await self._read_direct(self._direct)
        if self._call is None:
            if self._progress.complete:
                self._finished = True
                return None
            if await self._open_listed():
                return None
            await self._open()
            if self._call is None:
                return None  # the head is known now, or a pause was made
        response = await self._call.read()
        if response is grpc.aio.EOF:
            await self._on_clean_end()
            return None
        if isinstance(response, ReadChunk):
            return self._delivered(response)
        assert isinstance(response, ReadResponse), "anything but EOF is a response"
        if response.content:
            validate_read_chunk(response)
            return self._delivered(ReadChunk(response.offset, response.content))
        await self._on_metadata(response)
        return None

    async def _on_metadata(self, response: ReadResponse) -> None:
        asked = self._progress.offset
        self._progress.on_metadata(response)
        if self._guard is not None and response.HasField("identity"):
            self._guard.on_answer(self._read_before(asked), response.identity, response.write_head)
        self._tell_head()
        if response.HasField("header"):
            self._transport.learn(self.journal, response.header)
        if response.status == Status.OK:
            self._stored_url = response.fragment_url
            # The first answer has all that a metadata-only read asks for.
            self._finished = self._request.metadata_only
            if self._finished:
                self._drop_call()
        else:
            self._drop_call()
            await self._on_status(response.status)

    def _delivered(self, chunk: ReadChunk) -> ReadSpan:
        span = self._progress.on_chunk(chunk)
        self._stored_url = ""
        self._transport.read_totals.broker_bytes += len(span.content)
        self._note_success()
        self._tell_head()
        return span

    def _tell_head(self) -> None:
        if self._guard is not None:
            self._guard.on_head(self._progress.write_head)

    async def _open(self) -> None:
        if self._progress.offset < 0 and self._request.block:
            # At each retry the broker would use the head of that moment, and bytes in between would
            # be missed.
            await self._find_head()
            return
        if self._guard is not None and not self._guard.looked:
            await self._look(self._guard)
            return
        request = ReadRequest()
        request.CopyFrom(self._request)
        request.offset = self._progress.offset
        request.min_etcd_revision = self._transport.revision_floor(request.min_etcd_revision)
        request.do_not_proxy = self._wants_direct and self._through_broker_to is None
        if self._through_broker_to:
            own_end = request.end_offset or self._through_broker_to
            request.end_offset = min(own_end, self._through_broker_to)
        self._through_broker_to = None
        self._asked_direct = request.do_not_proxy
        self._stored_url = ""
        await self._transport.channels.sweep()
        peer = self._transport.peer_for(self.journal, primary=False)
        self._endpoint = peer.endpoint
        metadata = self._transport.journal_metadata(
            Capability.READ, self.journal, life_seconds=TOKEN_LIFE_SECONDS
        )
        self._call = peer.bulk.read(
            request, metadata=(*metadata, *self._options), timeout=STREAM_LIFE_SECONDS
        )
        self._transport.channels.track(peer.endpoint, self._call)
        self._heard = False
        if self._guard is not None:
            # Look again after this read, because what ends it may have replaced the journal.
            self._guard.looked = False
        self._progress.on_opened()

    async def _find_head(self) -> None:
        probe = await self._probe()
        if probe is not None:
            self._progress.offset = probe.offset
            self._progress.write_head = probe.write_head

    async def _look(self, guard: OffsetGuard) -> None:
        """Let the guard judge the offset, because a read that waits beyond the head would get no answer."""
        probe = await self._probe()
        if probe is None:
            return
        offset = self._read_before(self._progress.offset)
        present = Present(probe.write_head, probe.identity)
        try:
            is_there = guard.look(present, self._clock.monotonic_seconds(), offset=offset)
        except JournalReplacedError as error:
            if not await guard.is_refuted(error):
                raise
            is_there = False
        if not is_there:
            await self._pause(
                OffsetNotYetAvailableError(self.journal, offset=offset, write_head=probe.write_head)
            )

    def _read_before(self, offset: int) -> int:
        """Return the offset up to which the journal was read before this read reached an offset, bytes."""
        # Everything that a bounded read covers was read before.
        return max(offset, self._request.end_offset)

    async def _probe(self) -> Reader | None:
        """Return a read that has found the write head; None, after a pause, if no broker tells it."""
        request = ReadRequest()
        request.CopyFrom(self._request)
        request.offset, request.end_offset = -1, 0
        request.block, request.metadata_only = False, True
        try:
            async with Reader(self._transport, self._fragments, request) as probe:
                async for _ in probe:
                    raise AssertionError("a metadata-only read delivers nothing")
        except (EndpointError, JournalUnavailableError, RpcFailedError) as error:
            if _is_doomed(error):
                raise
            # The probe lost patience; a blocking read does not.
            await self._pause(error)
            return None
        return probe

    async def _open_listed(self) -> bool:
        """Open the listed fragment that holds the next byte; return whether there was one."""
        if not self._wants_direct or not self._stored:
            return False
        offset = self._progress.offset
        while self._stored and self._stored[-1].spec.end <= offset:
            self._stored.pop()
        if not self._stored or not self._stored[-1].spec.begin <= offset:
            return False
        listed = self._stored[-1]
        self._progress.on_listed(listed.spec)
        await self._open_direct(listed.spec, listed.signed_url)
        return True

    async def _open_direct(self, fragment: Fragment, url: str) -> None:
        end = min(fragment.end, self._request.end_offset or fragment.end)
        wanted = WantedSpan(fragment, url, self._progress.offset, end)
        try:
            if fragment.journal != split_journal(self.journal)[0]:
                raise DirectReadError(fragment, "refused", f"it is one of {fragment.journal}")
            self._direct = await self._fragments.open(wanted)
        except DirectReadError as error:
            self._on_direct_failure(error, fragment)

    async def _read_direct(self, stream: FragmentStream) -> ReadSpan | None:
        fragment = self._progress.fragment
        assert fragment is not None, "a fragment is open"
        try:
            content = await stream.next()
        except DirectReadError as error:
            self._drop_direct()
            self._on_direct_failure(error, fragment)
            return None
        if not content:
            self._drop_direct()
            return None
        span = self._progress.on_chunk(ReadChunk(self._progress.offset, content))
        self._transport.read_totals.direct_bytes += len(content)
        self._direct_failures = 0
        self._note_success()
        self._tell_head()
        return span

    def _on_direct_failure(self, error: DirectReadError, fragment: Fragment) -> None:
        """Continue at the broker: with a new URL if that may help, else with what it delivers itself."""
        totals = self._transport.read_totals
        # Our own rules and a store that is left alone are no news to each reader.
        if error.reason not in _TOLD_ONCE or error.reason not in totals.failures:
            _log.warning(
                "read.direct_failed",
                journal=self.journal,
                offset=self.offset,
                reason=error.reason,
                error=str(error),
            )
        totals.on_failure(error.reason)
        if error.reason == "refused":
            self._wants_direct = False  # by our own rules, which do not change
            return
        if self._stored:
            # The URLs may have expired, all at once. The broker tells a new one for each fragment.
            self._stored = []
            return
        # The second time in a row, the broker delivers all that it has, and we try again when that read ends.
        self._through_broker_to = 0 if self._direct_failures else fragment.end
        self._direct_failures += 1

    async def _on_clean_end(self) -> None:
        """Ask again after the broker stopped, the journal moved, or a token expired.

        It pauses first only if this call delivered no bytes.
        """
        self._drop_call()
        fragment, url = self._progress.fragment, self._stored_url
        if url and fragment is not None and self._asked_direct and not self._progress.complete:
            await self._open_direct(fragment, url)
            return
        if not self._heard and not self._progress.complete:
            await self._pause(EndpointError(self._endpoint, "the broker ended the read"))

    async def _on_status(self, status: Status.ValueType) -> None:
        error = error_of_status(self.journal, status)
        if status == Status.OFFSET_NOT_YET_AVAILABLE:
            if not self._request.block:
                self._finished = True
                return
            await self._pause(error)
        elif status == Status.NOT_JOURNAL_BROKER and self._asked_direct:
            # Its answer may have told us a broker that serves the journal. Otherwise let brokers proxy.
            peer = self._transport.peer_for(self.journal, primary=False)
            if self._was_sent_on or peer.endpoint == self._endpoint:
                self._through_broker_to = 0
            self._was_sent_on = True
        elif status in UNASSIGNED:
            await self._pause(error)
        # Possibly transient: another broker may not yet know a journal that was just applied.
        elif isinstance(error, (JournalNotFoundError, JournalProtocolError)):
            await self._refused(error)
        else:
            raise error

    async def _on_rpc_error(self, error: grpc.aio.AioRpcError) -> None:
        self._transport.note_failure(self.journal, error)
        had_its_time = self._request.block or self._heard
        # The deadline ends every long stream. Only a non-blocking read that got nothing has failed.
        if error.code() == grpc.StatusCode.DEADLINE_EXCEEDED and had_its_time:
            return
        if error.code() == grpc.StatusCode.DATA_LOSS:
            raise JournalDamagedError(self.journal, error.details() or "") from error
        translated = error_of_rpc(self._endpoint, error)
        if not isinstance(translated, (EndpointError, RpcFailedError)) or _is_doomed(translated):
            raise translated from error
        translated.__cause__ = error
        await self._pause(translated)

    async def _refused(self, error: JournalError) -> None:
        """Count an answer that is probably final; believe it after a few."""
        self._refusals += 1
        if self._refusals > REFUSALS_MAX:
            raise error
        await self._pause(error)

    async def _pause(self, error: ServiceError) -> None:
        """Pause before asking again; raise the error if the read does not block and patience is over."""
        now = self._clock.monotonic_seconds()
        if self._waiting_since is None:
            self._waiting_since = now
        waited_seconds = now - self._waiting_since
        # Patience counts from the first failure since the last content.
        if not self._request.block and waited_seconds > self._transport.policy.patience_seconds:
            raise error
        _log.warning(
            "read.retrying",
            journal=self.journal,
            offset=self.offset,
            attempt=self._backoff.attempt + 1,
            waited_seconds=round(waited_seconds, 3),
            error=str(error),
        )
        await self._transport.pause(self._backoff.next_seconds(), self._endpoint)

    def _note_success(self) -> None:
        """Reset the failure counts. Only bytes count as success, because metadata alone must not reset them."""
        self._heard = True
        self._was_sent_on = False
        self._refusals = 0
        self._waiting_since = None
        if self._backoff.attempt:
            self._backoff.reset()

    def _is_finished(self) -> bool:
        # A method, because another task may close the reader while it waits, which type checkers do
        # not expect of a field.
        return self._finished

    def _drop_direct(self) -> None:
        if self._direct is not None:
            self._direct.close()
            self._direct = None

    def _drop_call(self) -> None:
        if self._call is not None:
            self._call.cancel()
            self._call = None


def _is_doomed(error: ServiceError) -> bool:
    """Tell whether a request that failed with this error would fail again."""
    return isinstance(error, RpcFailedError) and error.code in _DOOMED_CODES
