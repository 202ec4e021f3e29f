"""The Append RPC: one atomic, contiguous span from a stream of chunks.

Source: gazette/core broker/append_api.go, append_fsm.go (exchange, refusals, stream faults). Ours receives the content
without holding the journal, and re-checks when it commits.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

import grpc

from broadsheet.broker.append_order import AppendOrder, AppendTurn
from broadsheet.broker.catalogue import Catalogue
from broadsheet.broker.committer import AppendOutcome
from broadsheet.broker.faults import Context, RpcFault, malformed_fault, stream_fault
from broadsheet.broker.flow_control import MinimumRate, StalledSenderError
from broadsheet.broker.fragments import sha1_sum
from broadsheet.broker.journal import LiveJournal, Site
from broadsheet.broker.preconditions import (
    content_refusal,
    is_proven,
    is_suspended,
    refusal,
    suspension_level,
    updates_registers,
)
from broadsheet.broker.resolution import JournalResolution, JournalResolver
from broadsheet.broker.staging import StagedContent, StagingArea
from broadsheet.journals.append_wire import WholeAppend
from broadsheet.journals.wire import append_content, parse_append
from broadsheet.security.auth import Capability, Claims
from broadsheet.serving.tracing import APPEND_METHOD, JOURNAL_ATTRIBUTE, NO_SPAN, tracing
from broadsheet.wire.appends_pb2 import AppendStreamRequest
from broadsheet.wire.journal_pb2 import (
    AppendRequest,
    AppendResponse,
    ApplyRequest,
    CompressionCodec,
    Fragment,
    JournalSpec,
    Status,
)
from broadsheet.wire.validation_journal import validate_append_request


@dataclass(slots=True)
class _Intake:
    """An append whose content is being received for a journal."""

    journal: LiveJournal
    content: StagedContent
    chunks: int = 0
    """Messages after the first one."""
    delayed_chunks: int = 0
    """Those held back by the journal's maximum rate."""

    async def throttle(self, length: int) -> None:
        """Hold back a chunk of this many bytes while the journal's maximum rate demands it."""
        rate = self.journal.entry.spec.max_append_rate
        delay = self.journal.throttle.delay_seconds(length, bytes_per_second=rate)
        if delay > 0:
            self.delayed_chunks += 1
            await asyncio.sleep(delay)


HEAD_SECONDS_MAX = 10.0
"""Longest wait for the first message of a call, which clients send together with the call itself."""
_RESUME = AppendRequest.SUSPEND_RESUME
_UNHEALTHY = Status.FRAGMENT_STORE_UNHEALTHY
_NO_COMPRESSION = CompressionCodec.NONE
_OK = Status.OK
_WITH_REGISTERS = frozenset((Status.OK, Status.REGISTER_MISMATCH))
_Receive: TypeAlias = Callable[[_Intake], Awaitable[AppendOutcome | None]]
"""Stages an append's content, and returns a refusal met on the way."""


class AppendHandler:
    """Serves appends."""

    def __init__(
        self,
        resolver: JournalResolver,
        catalogue: Catalogue,
        staging: StagingArea,
        site: Site,
    ) -> None:
        self._resolver = resolver
        self._catalogue = catalogue
        self._staging = staging
        self._clock = site.clock
        self._config = site.config
        self._limits = site.limits
        self._turns = AppendOrder()
        self._tracing = tracing()

    async def append(self, requests: object, context: Context) -> AppendResponse:
        """Serve one append. Messages are read as raw bytes, see `wire`."""
        del requests  # read from the context, because that can be cut off by a deadline
        claims = await self._resolver.authorize(context, Capability.APPEND)
        request = await self._first_request(context)
        receive = partial(self._receive_at_pace, context, request)
        with self._traced(request, context.invocation_metadata):
            return await self._append(request, claims, receive, AppendTurn(), summed=True)

    async def append_whole(self, whole: WholeAppend, context: Context) -> AppendResponse:
        """Serve an append whose content is complete, once its predecessors have succeeded.

        Args:
            whole: The append.
            context: Of the stream that it came by.

        Raises:
            Exception: any that `fault_of` accepts.
        """
        append = whole.append
        request = append.parameters
        # Checked before the append takes its place, because names are kept and each predecessor is
        # awaited.
        claims = await self._resolver.authorize(
            context, Capability.APPEND, metadata=append.metadata.items()
        )
        self._require_bounded_turn(append)
        validate_append_request(request, first=True)
        with self._turns.turn(append.name, append.after) as turn:
            receive = partial(self._take_whole, request, whole.content)
            with self._traced(request, append.metadata.items):
                return await self._append(request, claims, receive, turn, summed=False)

    def _traced(
        self,
        request: AppendRequest,
        metadata: Callable[[], Iterable[tuple[str, str | bytes]] | None],
    ) -> AbstractContextManager[object]:
        """Return the block of an append's span; only appends that are part of a verified caller's trace have one."""
        if self._tracing is None:
            return NO_SPAN
        attributes = {JOURNAL_ATTRIBUTE: request.journal}
        return self._tracing.serving_part(APPEND_METHOD, metadata(), attributes)

    async def _append(
        self,
        request: AppendRequest,
        claims: Claims,
        receive: _Receive,
        turn: AppendTurn,
        *,
        summed: bool,
    ) -> AppendResponse:
        """Append what `receive` stages, in its turn; the answer has the content's SHA-1 if it is `summed`."""
        resolution = await self._resolver.resolve(
            request.journal,
            claims,
            min_revision=request.min_etcd_revision,
            proxied=request.header if request.HasField("header") else None,
        )
        if resolution.entry is None:
            return AppendResponse(status=resolution.status, header=resolution.header)
        if is_suspended(resolution.entry.spec, request.suspend):
            return AppendResponse(status=Status.SUSPENDED, header=resolution.header)
        served = await self._resolver.serve(resolution.entry)
        # An early refusal does not hold for a pipelined append: its predecessors may change the
        # state.
        early = None if turn.waits else self._early_refusal(request, served.journal)
        if early is not None:
            return self._response(resolution, early)
        if request.suspend == _RESUME and _is_suspended(served.journal):
            await self._resume(served.journal)
        content = StagedContent(self._staging, summed=summed)
        try:
            intake = _Intake(served.journal, content)
            refused = await receive(intake)
            if refused is not None:
                return self._response(resolution, refused)
            if not content.length and updates_registers(request):
                raise stream_fault("registers change only with content, but the append has none")
            await turn.wait()
            # Content takes its place in the journal's order only once it is complete, so that no
            # slow sender can block others.
            outcome = await served.committer.commit(request, content)
            turn.end(succeeded=is_proven(request, outcome.status, outcome.registers))
            if outcome.status == _OK and await self._suspends(request, served.journal):
                header = self._resolver.header(routed=True)
                return AppendResponse(status=Status.SUSPENDED, header=header)
            return self._response(resolution, outcome, intake)
        finally:
            if not content.handed_over:
                content.discard()

    def _require_bounded_turn(self, append: AppendStreamRequest.Append) -> None:
        """Raise ValidationError if the append's name is too long, or it names too many predecessors."""
        bounds, refusals = self._limits.bounds, self._limits.refusals
        name_bytes = max(map(len, (append.name, *append.after)))
        if (
            len(append.after) <= bounds.append_after_max
            and name_bytes <= bounds.append_name_bytes_max
        ):
            return  # Nearly always; the field that is wrong is looked for only if one is.
        refusals.require(len(append.after), bounds, "append_after_max", "after")
        for field, name in (("name", append.name), *(("after", each) for each in append.after)):
            refusals.require(len(name), bounds, "append_name_bytes_max", field)

    def refuse_waiting(self) -> int:
        """Refuse appends that wait for predecessors, and return how many; clients send them again without waiting."""
        return self._turns.refuse_waiting()

    async def _first_request(self, context: Context) -> AppendRequest:
        try:
            async with asyncio.timeout(HEAD_SECONDS_MAX):
                message = await context.read()
        except TimeoutError:
            raise stream_fault(f"no first message in {HEAD_SECONDS_MAX:.0f} s") from None
        if message is grpc.aio.EOF:
            raise stream_fault("unexpected EOF")
        bounds = self._limits.bounds
        self._limits.refusals.require(len(message), bounds, "request_bytes_max", "request")
        request = _parsed(message)
        # A first message without a journal is a chunk, and no token is limited to such a journal.
        validate_append_request(request, first=bool(request.journal))
        return request

    def _early_refusal(self, request: AppendRequest, journal: LiveJournal) -> AppendOutcome | None:
        """Refuse at once what the published state already refuses."""
        position = journal.view.position
        if journal.store_error:
            return AppendOutcome(
                Status.FRAGMENT_STORE_UNHEALTHY, position.registers, detail=journal.store_error
            )
        status = refusal(request, journal.entry.spec, position)
        return None if status == _OK else AppendOutcome(status, position.registers)

    async def _resume(self, journal: LiveJournal) -> None:
        """Resume a suspended journal: its spec keeps only the offset."""
        entry = journal.entry
        spec = JournalSpec()
        spec.CopyFrom(entry.spec)
        spec.suspend.level = JournalSpec.Suspend.NONE
        change = ApplyRequest.Change(expect_mod_revision=entry.mod_revision, upsert=spec)
        # If another writer changed the spec first, the committer judges by that writer's spec.
        await self._catalogue.apply([change])

    async def _suspends(self, request: AppendRequest, journal: LiveJournal) -> bool:
        """Suspend a journal if an append that was accepted asks for it; return whether it is suspended now."""
        if request.suspend == _RESUME:
            # Another append may have suspended the journal since this one resumed it, and it now
            # has content again.
            if _is_suspended(journal):
                await self._resume(journal)
            return False
        spec = journal.entry.spec
        level = suspension_level(
            request.suspend,
            is_empty=journal.is_empty,
            flushed_seconds=journal.flushed_seconds(self._clock.wall_seconds()),
            flush_interval_seconds=spec.fragment.flush_interval.ToTimedelta().total_seconds(),
        )
        if level is None or journal.deleted:
            return False
        if spec.suspend.level >= level:
            return True
        wanted = JournalSpec()
        wanted.CopyFrom(spec)
        wanted.suspend.level = level
        wanted.suspend.offset = max(spec.suspend.offset, journal.view.head)
        change = ApplyRequest.Change(expect_mod_revision=journal.entry.mod_revision, upsert=wanted)
        return await self._catalogue.apply([change])

    async def _take_whole(
        self,
        request: AppendRequest,
        whole: Sequence[bytes | memoryview],
        intake: _Intake,
    ) -> AppendOutcome | None:
        """Stage content that is complete; return a refusal met on the way."""
        pieces = [memoryview(piece) for piece in whole if piece]
        intake.chunks = 1 + len(pieces)  # Checked as if the content had come in a stream.
        if not pieces:
            return None
        refused = _content_refused(request, intake.journal)
        if refused is not None:
            return refused
        for piece in pieces:
            await self._stage(intake, piece)
        await intake.content.settle()
        return None

    async def _receive_at_pace(
        self,
        context: Context,
        request: AppendRequest,
        intake: _Intake,
    ) -> AppendOutcome | None:
        """Do as `_receive`, and give up on a sender that is too slow."""
        try:
            async with MinimumRate(
                self._clock, bytes_per_second=self._config.min_append_rate
            ) as pace:
                with intake.journal.receivers.receiving(pace):
                    return await self._receive(context, request, intake, pace)
        except StalledSenderError as error:
            raise stream_fault(str(error)) from error

    async def _receive(
        self,
        context: Context,
        request: AppendRequest,
        intake: _Intake,
        pace: MinimumRate,
    ) -> AppendOutcome | None:
        """Stage content up to the commit and the clean half-close; return a refusal met on the way."""
        while True:
            message = await context.read()
            if message is grpc.aio.EOF:
                # Refusals that already hold take precedence over the fault.
                early = self._early_refusal(request, intake.journal)
                if early is not None:
                    return early
                raise stream_fault("unexpected EOF")
            # The broker's own work does not count against the client's rate.
            pace.pause()
            chunk = _chunk_of(message)
            intake.chunks += 1
            if not chunk:
                await intake.content.settle()
                pace.resume()
                await self._expect_half_close(context)
                return None
            refused = _content_refused(request, intake.journal)
            if refused is not None:
                return refused
            await self._stage(intake, chunk)
            pace.earn(len(chunk))
            pace.resume()

    async def _stage(self, intake: _Intake, chunk: memoryview) -> None:
        await intake.content.add(chunk)
        if intake.content.exceeds_bound:
            bound = self._config.append_bytes_max
            raise RpcFault(
                grpc.StatusCode.RESOURCE_EXHAUSTED, f"an append may have {bound} bytes at most"
            )
        await intake.throttle(len(chunk))

    async def _expect_half_close(self, context: Context) -> None:
        message = await context.read()
        if message is not grpc.aio.EOF:
            raise stream_fault("expected a half-close after the empty chunk, got another message")
        # A cancelled call looks like a clean half-close first; the cancellation arrives at the next await.
        await asyncio.sleep(0)

    def _response(
        self,
        resolution: JournalResolution,
        outcome: AppendOutcome,
        intake: _Intake | None = None,
    ) -> AppendResponse:
        response = AppendResponse(status=outcome.status, header=resolution.header)
        if outcome.status == _UNHEALTHY:
            response.store_health_error = outcome.detail
        if outcome.status in _WITH_REGISTERS:
            # An empty set must still be present on the wire.
            response.registers.SetInParent()
            response.registers.CopyFrom(outcome.registers)
        if outcome.status == _OK and intake is not None:
            content = intake.content
            response.commit.CopyFrom(
                Fragment(
                    journal=resolution.name,
                    begin=outcome.begin,
                    end=outcome.end,
                    sum=sha1_sum(content.sum) if content.summed else None,
                    compression_codec=_NO_COMPRESSION,
                )
            )
            response.total_chunks = intake.chunks
            response.delayed_chunks = intake.delayed_chunks
        return response


def _content_refused(request: AppendRequest, journal: LiveJournal) -> AppendOutcome | None:
    """Refuse content that the journal does not take."""
    status = content_refusal(request, journal.entry.spec)
    return None if status == _OK else AppendOutcome(status, journal.view.position.registers)


def _is_suspended(journal: LiveJournal) -> bool:
    return journal.entry.spec.suspend.level != JournalSpec.Suspend.NONE


def _parsed(message: bytes) -> AppendRequest:
    try:
        return parse_append(message)
    except ValueError as error:
        raise malformed_fault(f"append: {error}") from error


def _chunk_of(message: bytes) -> memoryview:
    try:
        chunk = append_content(message)
    except ValueError as error:
        raise malformed_fault(f"append: {error}") from error
    if chunk is None:
        raise stream_fault("expected only content after the first message")
    return chunk
