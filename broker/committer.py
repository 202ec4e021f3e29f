"""Group commit: all waiting appends become durable together, in order, or are refused.

Each append is judged against the state that its predecessors in the batch leave behind. No answer, not even a refusal,
is sent before the batch is durable, because a refusal would reveal state that could still vanish.
"""

from __future__ import annotations

import asyncio
import errno
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import grpc
import structlog

from broadsheet.broker.faults import RpcFault
from broadsheet.broker.journal import LiveJournal, Site
from broadsheet.broker.preconditions import (
    REGISTERS_BYTES_MAX,
    JournalEnd,
    confirms_loss,
    content_refusal,
    refusal,
    registers_after,
)
from broadsheet.broker.staging import Batch, StagedContent
from broadsheet.broker.store import JournalStore, JournalStoreError
from broadsheet.wire.journal_pb2 import AppendRequest, JournalSpec, LabelSet, Status

BATCH_BYTES_MAX = 32 << 20
"""Most content of a batch; a longer one would only delay the first of its appends."""
ADOPT_BYTES_MIN = 16 << 20
"""Length from which a staged file that is also at least a quarter of a fragment becomes a fragment without a copy."""
ADOPT_FRACTION = 4
_OK = Status.OK

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class AppendOutcome:
    """The answer to one append."""

    status: Status.ValueType
    registers: LabelSet
    """Registers after the append; with REGISTER_MISMATCH, the ones that did not match."""
    begin: int = 0
    end: int = 0
    detail: str = ""
    """Reason why the store is unhealthy."""


@dataclass(slots=True, eq=False)
class QueuedAppend:
    """An append whose client has committed it."""

    request: AppendRequest
    content: StagedContent
    waiter: asyncio.Future[AppendOutcome]
    """Owned by the caller alone, who may have cancelled it."""

    def answer(self, outcome: AppendOutcome) -> None:
        """Give the caller the outcome, if it still waits."""
        self.content.discard()
        if not self.waiter.done():
            self.waiter.set_result(outcome)

    def fail(self, error: Exception) -> None:
        """Tell the caller, if it still waits, that the outcome is unknown."""
        self.content.discard()
        if not self.waiter.done():
            self.waiter.set_exception(error)

    def cancel(self) -> None:
        """Leave the caller without an answer."""
        self.content.discard()
        self.waiter.cancel()


@dataclass(slots=True)
class _Plan:
    """A batch while it is assembled."""

    position: JournalEnd
    taken: list[tuple[QueuedAppend, AppendOutcome]]
    contents: list[StagedContent]
    changed_registers: bool = False
    confirms: bool = False
    bytes: int = 0


@dataclass(slots=True, eq=False)
class _Drop:
    """Sealed fragments that are about to be removed."""

    declared: asyncio.Future[None]
    spans: Sequence[tuple[int, int]] = ()
    """Their bytes [begin, end), if fragments before them stay."""
    first: int = 0
    """First offset of the journal without them, bytes, if they are its first fragments."""


class Committer:
    """Commits the appends of one journal; runs only while appends wait."""

    def __init__(self, site: Site, journal: LiveJournal) -> None:
        self._site = site
        self._journal = journal
        self._queue: deque[QueuedAppend] = deque()
        self._running: asyncio.Task[None] | None = None
        self._roll_wanted = False
        self._sync_wanted = False
        self._drops: list[_Drop] = []

    async def commit(self, request: AppendRequest, content: StagedContent) -> AppendOutcome:
        """Commit one append; a caller that gives up does not stop it.

        Raises:
            RpcFault: the outcome cannot be told.
        """
        waiter: asyncio.Future[AppendOutcome] = asyncio.get_running_loop().create_future()
        # A caller that goes away must not take the content with it, because it may be on its way to
        # the disk.
        content.handed_over = True
        direct = self._site.direct
        direct.pending += 1
        try:
            self._queue.append(QueuedAppend(request, content, waiter))
            self._wake()
            return await waiter
        finally:
            direct.pending -= 1

    def request_roll(self) -> None:
        """Ask for the open fragment to be sealed soon."""
        self._roll_wanted = True
        self._wake()

    def request_sync(self) -> None:
        """Ask for unsynced commits to be forced to the disk soon."""
        self._sync_wanted = True
        self._wake()

    async def declare_holes(self, spans: Sequence[tuple[int, int]]) -> None:
        """Record durably that spans [begin, end), bytes, are holes, so that their fragments may be removed.

        Without this record, the next start would take the missing bytes for acknowledged content that was lost.

        Raises:
            JournalStoreError: the disk failed, or the journal was deleted.
        """
        declared: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._drops.append(_Drop(declared, spans=spans))
        self._wake()
        await asyncio.shield(declared)

    async def declare_beginning(self, first: int) -> None:
        """Record durably that the journal begins at an offset, bytes, so that the fragments before it may be removed.

        Raises:
            JournalStoreError: the disk failed, or the journal was deleted.
        """
        declared: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._drops.append(_Drop(declared, first=first))
        self._wake()
        await asyncio.shield(declared)

    def _wake(self) -> None:
        if self._running is None:
            self._running = self._site.group.start_soon(
                self._run(), name=f"commit:{self._journal.name}"
            )

    @property
    def is_idle(self) -> bool:
        """True if nothing is queued, and nothing runs."""
        return self._running is None

    async def drain(self) -> None:
        """Return when nothing is queued."""
        while self._running is not None:
            await asyncio.shield(self._running)

    async def _run(self) -> None:
        try:
            while self._queue or self._roll_wanted or self._sync_wanted or self._drops:
                await self._step()
        finally:
            self._running = None
            for drop in self._drops:
                drop.declared.cancel()
            self._drops.clear()
            for pending in self._queue:
                pending.cancel()
            self._queue.clear()

    async def _step(self) -> None:
        journal = self._journal
        await journal.ready()
        if journal.deleted:
            self._refuse_all(Status.JOURNAL_NOT_FOUND)
        elif journal.store_error or journal.store is None:
            self._refuse_all(Status.FRAGMENT_STORE_UNHEALTHY, journal.store_error)
        else:
            try:
                await self._advance(journal.store)
            except JournalStoreError as error:
                journal.fail(str(error))
                self._roll_wanted = self._sync_wanted = False

    async def _advance(self, store: JournalStore) -> None:
        spec = self._journal.entry.spec
        # The spec records an offset beyond the head: skip to it. The first roll seals the open
        # fragment, which must be empty for that.
        if spec.suspend.offset > store.head:
            await self._roll(store)
            await self._roll(store, begin=spec.suspend.offset)
        if self._drops:
            await self._declare(store)
        # Appends without content do not need a new fragment.
        has_content = bool(self._queue and self._queue[0].content.length)
        if self._roll_wanted or (has_content and self._is_roll_due(store, spec)):
            self._roll_wanted = False
            await self._roll(store)
        if self._sync_wanted:
            self._sync_wanted = False
            await self._site.disk.run(store.sync)
        if not self._queue:
            return
        plan = self._plan(store, spec)
        try:
            await self._perform(store, plan)
        except JournalStoreError as error:
            self._fail(plan, error)
            # A full disk refuses a batch before the store is touched, which stays usable then.
            if store.failed:
                raise
            return
        except BaseException:
            # Cancelled, perhaps while a thread still writes, so the outcome is unknown.
            self._fail(plan, _stopped())
            raise
        for pending, outcome in plan.taken:
            pending.answer(outcome)

    def _is_roll_due(self, store: JournalStore, spec: JournalSpec) -> bool:
        return store.open_bytes > spec.fragment.length or store.log_is_long

    async def _roll(self, store: JournalStore, begin: int | None = None) -> None:
        if store.open_bytes or begin is not None:
            self._journal.note_rolled(await self._site.disk.run(store.roll, begin=begin))

    async def _declare(self, store: JournalStore) -> None:
        drops, self._drops = self._drops, []
        spans = [span for drop in drops for span in drop.spans]
        try:
            await self._site.disk.run(store.trim, max(drop.first for drop in drops))
            if spans:
                self._journal.note_rolled(await self._site.disk.run(store.roll, dropped=spans))
        except BaseException as error:
            _fail_drops(drops, error if isinstance(error, JournalStoreError) else _stopped())
            raise
        for drop in drops:
            drop.declared.set_result(None)

    def _plan(self, store: JournalStore, spec: JournalSpec) -> _Plan:
        """Take as many appends from the queue as fit into one batch and one fragment; at least one."""
        plan = _Plan(self._journal.view.position, [], [])
        room = max(spec.fragment.length - store.open_bytes, 0)
        while self._queue:
            content = self._queue[0].content
            # Strictly above: the append that fills a fragment may exceed its length.
            is_full = plan.bytes > room or plan.bytes + content.length > BATCH_BYTES_MAX
            if plan.contents and content.length and (is_full or _is_adopted(content, spec)):
                break
            pending = self._queue.popleft()
            plan.taken.append((pending, _judge(plan, pending, spec)))
            # An adopted file is a commit by itself, so nothing may join it.
            if plan.contents and _is_adopted(plan.contents[0], spec):
                break
        return plan

    async def _perform(self, store: JournalStore, plan: _Plan) -> None:
        # Barriers and refusals change nothing.
        if not plan.contents and not plan.confirms:
            return
        registers = (
            plan.position.registers.SerializeToString(deterministic=True)
            if plan.changed_registers
            else None
        )
        spec = self._journal.entry.spec
        began = self._site.clock.monotonic_seconds()
        metrics = self._site.commits
        try:
            await self._perform_now(store, plan, spec, registers)
        except JournalStoreError:
            metrics.on_failed()
            raise
        metrics.on_committed(
            self._site.clock.monotonic_seconds() - began,
            appends=len(plan.contents),
            content_bytes=plan.bytes,
        )

    async def _perform_now(
        self, store: JournalStore, plan: _Plan, spec: JournalSpec, registers: bytes | None
    ) -> None:
        if len(plan.contents) == 1 and _is_adopted(plan.contents[0], spec):
            await self._adopt(store, plan, registers)
            return
        spares = self._site.spares
        if spares and store.gains_by_spare(plan.bytes):
            await self._site.disk.run(store.use_spare, spares)
            self._journal.publish()
        batch = Batch(
            contents=plan.contents,
            registers=registers,
            confirms=plan.confirms,
            at_ms=int(self._site.clock.wall_seconds() * 1000),
        )
        commit = partial(self._commit_batch, store, batch, plan.bytes)
        if self._site.direct.allow(plan.bytes):
            self._site.direct.run(commit)
        else:
            await self._site.disk.run(commit)
        self._journal.publish()

    def _commit_batch(self, store: JournalStore, batch: Batch, length: int) -> None:
        """Commit a batch. Blocking; all of it takes one hop to a thread, because hops cost as much as a sync."""
        try:
            self._site.free_space.require(length)
        except OSError as error:
            # Nothing was written yet, so clients get a refusal instead of an unknown outcome.
            raise JournalStoreError(error, rolled_back=True) from error
        store.reserve(store.head + length)
        store.commit(batch)

    async def _adopt(self, store: JournalStore, plan: _Plan, registers: bytes | None) -> None:
        await self._roll(store)
        content = plan.contents[0]
        assert content.spool is not None, "only staged files are adopted"
        rolled = await self._site.disk.run(
            store.adopt,
            content.spool,
            length=content.length,
            digest=content.sum,
            registers=registers,
            confirms=plan.confirms,
        )
        self._journal.note_rolled(rolled)

    def _fail(self, plan: _Plan, error: JournalStoreError) -> None:
        registers = self._journal.view.position.registers
        for pending, _ in plan.taken:
            if error.rolled_back:
                pending.answer(
                    AppendOutcome(Status.FRAGMENT_STORE_UNHEALTHY, registers, detail=str(error))
                )
            else:
                pending.fail(
                    RpcFault(grpc.StatusCode.UNAVAILABLE, f"the append may be lost: {error}")
                )

    def _refuse_all(self, status: Status.ValueType, detail: str = "") -> None:
        self._roll_wanted = self._sync_wanted = False
        drops, self._drops = self._drops, []
        _fail_drops(
            drops, JournalStoreError(OSError(errno.EIO, detail or "deleted"), rolled_back=True)
        )
        while self._queue:
            self._queue.popleft().answer(AppendOutcome(status, LabelSet(), detail=detail))


def _judge(plan: _Plan, pending: QueuedAppend, spec: JournalSpec) -> AppendOutcome:
    """Decide on one append and, if it is accepted, move the tentative position."""
    request, content, position = pending.request, pending.content, plan.position
    status = refusal(request, spec, position)
    if status == _OK and content.length:
        status = content_refusal(request, spec)
    if status != _OK:
        return AppendOutcome(status, position.registers)
    registers = position.registers
    if content.length:
        registers = registers_after(request, registers)
        if registers.ByteSize() > REGISTERS_BYTES_MAX:
            detail = f"registers would exceed {REGISTERS_BYTES_MAX} bytes"
            return AppendOutcome(Status.NOT_ALLOWED, position.registers, detail=detail)
        plan.changed_registers |= registers != position.registers
        plan.contents.append(content)
        plan.bytes += content.length
    confirms = confirms_loss(request, position)
    plan.confirms |= confirms
    end = position.head + content.length
    plan.position = JournalEnd(end, registers, position.unconfirmed and not confirms)
    return AppendOutcome(_OK, registers, begin=position.head, end=end)


def _stopped() -> JournalStoreError:
    stopped = OSError(errno.ECANCELED, "the broker stopped during the commit")
    return JournalStoreError(stopped, rolled_back=False)


def _fail_drops(drops: Sequence[_Drop], error: JournalStoreError) -> None:
    for drop in drops:
        if not drop.declared.done():
            drop.declared.set_exception(error)


def _is_adopted(content: StagedContent, spec: JournalSpec) -> bool:
    # The SHA-1 is needed for the fragment's name.
    is_file = content.spool is not None and content.summed
    return is_file and content.length >= max(
        ADOPT_BYTES_MIN, spec.fragment.length // ADOPT_FRACTION
    )
