"""Background appends: in order, grouped, each after its dependencies.

Promises:

* Appends of one journal reach it in the order of the calls. An append that waits for its dependencies holds up later
  ones, so whatever follows an acknowledgement stays behind it.
* A dependency that fails, or a refusal that repetition would not cure, fails the append and every later one of that
  journal, for the life of the service. A register mismatch is such a refusal at once, because a fenced writer must
  learn of it.
* With `turns`, an append whose dependencies are on their way to the same broker is sent right after them, and the
  broker keeps the order: chains of small appends take one round trip, not one each.
* Everything else is repeated with back-off until it succeeds or the service closes. **An append whose answer was lost
  is repeated too, so its bytes may be in the journal twice**: delivery is at least once. Readers that sequence messages
  by their UUIDs drop the second copy, which makes it exactly once. Nothing is ever reordered or left out: a copy is
  followed by everything that was queued after it. With a `WriterEpochRegister` this also holds for copies that the
  service gave up waiting for: none lands after appends that were queued later.

Source: gazette/core broker/client/append_service.go. Unlike the model, `check_registers` does not turn refusals into
endless repetition, and memory is bounded by `wait_for_room` rather than by spilling to files.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Self

import structlog

from broadsheet.journals.append_dependencies import AnyFuture, await_committed_or_sent, succeed
from broadsheet.journals.append_fence import DuplicateFence, RefusalMeaning, WriterEpochRegister
from broadsheet.journals.append_queue import AppendGroup, AppendQueue, new_future
from broadsheet.journals.appender import APPEND_BYTES_PER_SECOND_MIN, check_append
from broadsheet.journals.client import JournalClient
from broadsheet.journals.errors import (
    AppendOutcomeUnknownError,
    JournalError,
    JournalNotFoundError,
    JournalUnavailableError,
    PredecessorNotCommittedError,
    RegisterMismatchError,
)
from broadsheet.journals.pipelining import (
    Pipelined,
    TokenSource,
)
from broadsheet.runtime.backoff import Backoff
from broadsheet.runtime.errors import EndpointError, RpcFailedError, ServiceError
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.serving.tracing import tracing
from broadsheet.wire.journal_pb2 import AppendRequest, AppendResponse, LabelSelector, LabelSet

ROOM_BYTES = 128 << 20
"""Queued bytes above which `wait_for_room` waits, unless the caller sets another bound."""
BACKOFF_SECONDS_MAX = 5.0
"""Longest pause between attempts of one append."""
REFUSALS_MAX = 4
"""Number of "no such journal" answers after which they are believed. Another broker may not yet know a journal that
was just applied. If the journal does exist, an acknowledgement dropped because of such an answer would never be
written.
"""
FAILURES_MAX = 10
"""Attempts after which failures with an unexpected gRPC status, from a reachable broker, are believed. A writer that
stalls for a second is aborted in this way, so the first ones mean little.
"""
_log = structlog.get_logger()


class AppendService:
    """Queue of appends that runs them in background tasks; every method is called on the event loop.

    Enter it, or `run` it in a task. It accepts appends before that, too, and performs them once running.
    """

    def __init__(
        self,
        client: JournalClient,
        *,
        room_bytes: int = ROOM_BYTES,
        copies: WriterEpochRegister | None = None,
        turns: TokenSource | None = None,
    ) -> None:
        """Create the service; nothing is sent before it runs.

        Args:
            client: Performs the appends; it must outlive the service.
            room_bytes: Bound on queued content that `wait_for_room` keeps to, bytes.
            copies: Keeps late copies out, except of appends that use registers themselves.
            turns: Names appends, so that dependent ones can be pipelined; if None, those wait for the answers.
        """
        self._client = client
        self._room_bytes = room_bytes
        self._copies = copies
        self._turns = turns
        self._tracing = tracing()
        self._fences: dict[str, DuplicateFence] = {}
        self._queued_bytes = 0
        self._queues: dict[str, AppendQueue] = {}
        self._group: TaskGroup | None = None
        self._closing = asyncio.Event()
        self._finished = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._has_room = True
        """The state of `_room`: True if it is set."""
        self._own_tasks: TaskGroup | None = None

    @property
    def queued_bytes(self) -> int:
        """Queued content that is not known to be written, bytes."""
        return self._queued_bytes

    def overdue(self, seconds: float) -> str:
        """Return a journal with an append that has been tried for this long without an answer; empty if none.

        A large append may take as much longer as the slowest permitted sender needs, because one may hold it back.
        """
        now = asyncio.get_running_loop().time()
        for journal, queue in self._queues.items():
            if queue.under_way_since is None or not queue.groups:
                continue
            patience = seconds + queue.groups[0].size / APPEND_BYTES_PER_SECOND_MIN
            if now - queue.under_way_since >= patience:
                return journal
        return ""

    def append(
        self,
        journal: str,
        content: bytes | Sequence[bytes],
        *,
        after: Iterable[AnyFuture] = (),
        check_registers: LabelSelector | None = None,
        union_registers: LabelSet | None = None,
    ) -> Future[AppendResponse]:
        """Queue an append; never blocks.

        Appends that are sent together share one future, whose `commit` covers them all. It cannot be cancelled.

        Args:
            journal: Its name; may carry `;meta`.
            content: The bytes, or pieces of them in order; they must not change afterwards. None at all makes a
                barrier, whose response tells the write head.
            after: What must succeed before this append is sent.
            check_registers: Must match the journal's registers.
            union_registers: Set in the registers with the append.

        Raises:
            ValidationError: an argument is malformed. Nothing was queued.
        """
        pieces = (content,) if isinstance(content, bytes) else content
        size = sum(map(len, pieces))
        request = AppendRequest(
            journal=journal, check_registers=check_registers, union_registers=union_registers
        )
        queue = self._queues.get(journal)
        # Most appends repeat the previous one's parameters, which were checked then.
        if queue is None or size == 0 or not queue.knows(request):
            check_append(request, size)
        if queue is None:
            queue = self._queues[journal] = AppendQueue()
        poison = queue.poison or (self._closed_error(journal) if self._closing.is_set() else None)
        if poison is not None:
            return _failed(poison)
        # A dependency that has succeeded no longer matters; one that has failed must still poison
        # the journal.
        waits = {future for future in after if not _succeeded(future)}
        future = queue.put(request, pieces, size, waits)
        if self._tracing is not None:
            group = queue.groups[-1]
            group.trace = group.trace or self._tracing.captured()
        self._count(size)
        self._drain_soon(journal, queue)
        return future

    def pending(self) -> frozenset[Future[AppendResponse]]:
        """Return, for each journal, the future that resolves last, or the failure that poisons the journal."""
        return self.pending_except("")

    def pending_except(self, journal: str) -> frozenset[Future[AppendResponse]]:
        """Return `pending` without one journal: a barrier after everything else that was queued so far."""
        found: set[Future[AppendResponse]] = set()
        for name, queue in self._queues.items():
            if name == journal:
                continue
            newest = queue.newest()
            if queue.poison is not None:
                found.add(_failed(queue.poison))
            elif newest is not None:
                found.add(newest)
        return frozenset(found)

    def read_back(self, journal: str, begin: int, end: int) -> Future[list[bytes]]:
        """Read the bytes [begin, end) of a journal in a background task; never blocks.

        The future fails with the reader's error, with `JournalError` if a part of them is gone, and when the service
        closes. It cannot be cancelled.
        """
        future: Future[list[bytes]] = Future()
        future.set_running_or_notify_cancel()
        if self._group is None or self._closing.is_set():
            future.set_exception(self._closed_error(journal))
            return future
        reading = self._read_back(journal, begin, end, future)
        task = self._group.start_soon(reading, name=f"read back:{journal}")

        def on_ended(_: object) -> None:
            # Also if the task is cancelled before its first step.
            if not future.done():
                future.set_exception(self._closed_error(journal))

        task.add_done_callback(on_ended)
        return future

    async def _read_back(
        self, journal: str, begin: int, end: int, future: Future[list[bytes]]
    ) -> None:
        contents: list[bytes] = []
        at = begin
        try:
            async for span in self._client.reader(journal, offset=begin, end_offset=end):
                if span.offset != at:
                    raise JournalError(journal, f"bytes {at} to {span.offset} are gone")
                contents.append(span.content)
                at = span.end
        except ServiceError as error:
            future.set_exception(error)
        else:
            future.set_result(contents)

    async def wait_for_room(self) -> None:
        """Wait until less than `room_bytes` are queued. Called between appends, it keeps memory bounded."""
        if not self._has_room:
            await self._room.wait()

    async def run(self) -> None:
        """Perform appends until `close` is called; unfinished ones then fail."""
        try:
            async with TaskGroup() as group:
                self._group = group
                for journal, queue in self._queues.items():
                    self._drain_soon(journal, queue)
                try:
                    await self._closing.wait()
                finally:
                    # Also on cancellation, so that the group takes no more tasks while its last
                    # ones end.
                    self._closing.set()
                group.stop()
        finally:
            self._group = None
            self._fail_unfinished()
            self._finished.set()

    async def close(self) -> None:
        """Stop, fail unfinished appends, and wait for `run` to return. Idempotent, and safe before `run`."""
        self._closing.set()
        if self._group is None:
            self._fail_unfinished()
            return
        await self._finished.wait()

    async def __aenter__(self) -> Self:
        self._own_tasks = await TaskGroup().__aenter__()
        self._own_tasks.start_soon(self.run(), name="append_service")
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._closing.set()
        if self._own_tasks is not None:
            await self._own_tasks.__aexit__(kind, error, trace)

    def _drain_soon(self, journal: str, queue: AppendQueue) -> None:
        if self._group is None or self._closing.is_set() or queue.draining or not queue.groups:
            return
        queue.draining = True
        self._group.start_soon(self._drain(journal, queue), name=f"append:{journal}")

    async def _drain(self, journal: str, queue: AppendQueue) -> None:
        """Perform the groups of one journal, one after the other, until none is left."""
        try:
            while queue.groups:
                group = queue.groups[0]
                try:
                    await self._depend(group)
                    group.under_way = True
                    queue.under_way_since = asyncio.get_running_loop().time()
                    if self._tracing is None:
                        response = await self._perform(group)
                    else:
                        # Also without a trace: this task began in the context of some other append.
                        with self._tracing.restored(group.trace):
                            response = await self._perform(group)
                except ServiceError as error:
                    # Later appends of the journal must not overtake a failed one.
                    self._poison(queue, error)
                    return
                queue.under_way_since = None
                queue.groups.popleft()
                self._count(-group.size)
                group.future.set_result(response)
        finally:
            queue.draining = False
            queue.under_way_since = None
            # A poisoned queue is kept, so that it refuses later appends.
            if not queue.groups and queue.poison is None:
                del self._queues[journal]

    async def _depend(self, group: AppendGroup) -> None:
        """Wait until a group's dependencies have succeeded, or are on their way to the same broker."""
        if self._turns is None:
            await succeed(group.request.journal, group.after)
            return
        after = await await_committed_or_sent(group.request.journal, group.after)
        group.in_turn = Pipelined(self._turns.next(), after, group.future.sent)

    async def _perform(self, group: AppendGroup) -> AppendResponse:
        """Append a group repeatedly until it succeeds or is refused for good."""
        request = group.request
        fence = self._fence_or_none(group)
        backoff: Backoff | None = None
        failures = refusals = 0
        while True:
            try:
                return await self._send(group) if fence is None else await self._land(group, fence)
            except (JournalUnavailableError, EndpointError, AppendOutcomeUnknownError) as error:
                failed: ServiceError = error
            except JournalNotFoundError as error:
                refusals += 1
                if refusals > REFUSALS_MAX:
                    raise
                failed = error
            except RpcFailedError as error:
                failures += 1
                if failures >= FAILURES_MAX:
                    raise
                failed = error
            except PredecessorNotCommittedError:
                # Nothing was written: send it again, without pipelining, once the predecessors are
                # answered.
                group.future.turn = None
                await succeed(request.journal, group.after)
                continue
            # Only the first copy is pipelined. From here on the group has no open dependencies, and
            # nothing was sent after it.
            group.future.turn = None
            await succeed(request.journal, group.after)
            backoff = backoff or Backoff(max_seconds=BACKOFF_SECONDS_MAX)
            _log.warning(
                "append.retrying",
                journal=request.journal,
                bytes=group.size,
                attempt=backoff.attempt + 1,
                may_repeat_bytes=isinstance(failed, AppendOutcomeUnknownError),
                error=str(failed),
            )
            await self._client.pause(backoff.next_seconds())

    async def _send(
        self, group: AppendGroup, fence: DuplicateFence | None = None
    ) -> AppendResponse:
        request = group.request
        in_turn, group.in_turn = group.in_turn, None
        check = request.check_registers if request.HasField("check_registers") else None
        union = request.union_registers if request.HasField("union_registers") else None
        return await self._client.append(
            request.journal,
            group.content,
            check_registers=check if fence is None else fence.demanded,
            union_registers=union if fence is None else fence.change,
            retry=False,
            in_turn=in_turn,
        )

    def _fence_or_none(self, group: AppendGroup) -> DuplicateFence | None:
        request = group.request
        # Appends that use registers themselves are not fenced; those without content leave no copy
        # behind.
        has_own = request.HasField("check_registers") or request.HasField("union_registers")
        if self._copies is None or has_own or not group.size:
            return None
        fence = self._fences.get(request.journal)
        if fence is None:
            fence = self._fences[request.journal] = DuplicateFence(self._copies)
        return fence

    async def _land(self, group: AppendGroup, fence: DuplicateFence) -> AppendResponse:
        """Send one more copy of a group, unless one has landed without an answer.

        Returns an answer whose offsets are an upper bound of where the copy ended.

        Raises:
            RegisterMismatchError: it is unknown whether a copy has landed, or may yet.
        """
        while not group.landed:
            try:
                response = await self._send(group, fence)
            except AppendOutcomeUnknownError:
                fence.on_doubt()
                raise
            except RegisterMismatchError as error:
                refused = fence.on_refused(error.registers)
                if refused is RefusalMeaning.UNKNOWN:
                    raise
                group.landed = refused is RefusalMeaning.LANDED
            else:
                fence.on_landed()
                return response
        # The barrier's answer tells the write head, an upper bound of where the copy ended.
        return await self._client.append(group.request.journal, b"", retry=False)

    def _poison(self, queue: AppendQueue, error: BaseException) -> None:
        queue.poison = error
        while queue.groups:
            group = queue.groups.popleft()
            self._count(-group.size)
            group.future.set_exception(error)

    def _fail_unfinished(self) -> None:
        for journal, queue in self._queues.items():
            # Unlike the later groups, the one in progress may have been written.
            if queue.groups and queue.groups[0].under_way:
                first = queue.groups.popleft()
                self._count(-first.size)
                first.future.set_exception(
                    AppendOutcomeUnknownError(
                        journal, "the append service was closed before the answer came"
                    )
                )
            if queue.groups:
                self._poison(queue, self._closed_error(journal))

    def _closed_error(self, journal: str) -> JournalError:
        return JournalUnavailableError(journal, "the append service is closed")

    def _count(self, size: int) -> None:
        self._queued_bytes += size
        has_room = self._queued_bytes < self._room_bytes
        if has_room is not self._has_room:
            self._has_room = has_room
            (self._room.set if has_room else self._room.clear)()


def _failed(error: BaseException) -> Future[AppendResponse]:
    future = new_future()
    future.set_exception(error)
    return future


def _succeeded(future: AnyFuture) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None
