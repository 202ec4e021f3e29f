"""One served journal: its published view and its store.

Readers see only the published view. The committer publishes a new one after each durable batch, on the loop, in one
step with the wake-up.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Set
from dataclasses import dataclass, replace
from pathlib import Path

import structlog

from broadsheet.broker.catalogue import Catalogue, CatalogueEntry
from broadsheet.broker.config import BrokerConfig, SyncMode
from broadsheet.broker.content_file import ContentFile
from broadsheet.broker.disk import Disk, is_out_of_space
from broadsheet.broker.flow_control import Receivers, Throttle
from broadsheet.broker.fragments import FragmentIndex, SealedFragment, StoredCopy
from broadsheet.broker.free_space import FreeSpace
from broadsheet.broker.inline_commits import InlineCommits
from broadsheet.broker.limits import BrokerLimits
from broadsheet.broker.lineage import UNKNOWN, Lineage
from broadsheet.broker.metrics import CommitMetrics
from broadsheet.broker.preconditions import JournalEnd
from broadsheet.broker.publishing import FragmentPublisher
from broadsheet.broker.quarantine import NAME_FILE, JournalQuarantine
from broadsheet.broker.read_only import SPACE_TO_OPEN_BYTES, open_read_only
from broadsheet.broker.recovery import Opening, RecoveredJournal, open_journal
from broadsheet.broker.segment_recycler import SegmentRecycler
from broadsheet.broker.store import JournalStore, JournalStoreError, Rolled
from broadsheet.runtime.clock import Clock
from broadsheet.runtime.event_loop import Signal
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.journal_pb2 import LabelSet

REOPEN_SECONDS = 1.0
"""Interval between attempts to recover a journal whose disk failed."""
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class JournalView:
    """The journal as of its last durable batch."""

    position: JournalEnd
    open_begin: int
    """First byte of the open fragment, bytes."""
    open_sum: bytes
    """SHA-1 of the open fragment, 20 bytes."""
    file: ContentFile
    """The open fragment's content."""

    @property
    def head(self) -> int:
        """The write head, bytes."""
        return self.position.head


@dataclass(frozen=True, slots=True)
class ReadableSpan:
    """Content that serves a read."""

    begin: int
    end: int
    sum: bytes
    mod_time: int
    """Unix seconds; zero while the fragment is open."""
    path: Path | None
    """None while the fragment is open."""
    stored: StoredCopy | None = None
    """Copy in a store, which readers may take directly."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Resources that all journals of a broker share."""

    disk: Disk
    clock: Clock
    config: BrokerConfig
    group: TaskGroup
    spares: SegmentRecycler
    free_space: FreeSpace
    direct: InlineCommits
    limits: BrokerLimits
    commits: CommitMetrics
    boot_id: str
    catalogue: Catalogue
    quarantine: JournalQuarantine
    publisher: FragmentPublisher


class LiveJournal:
    """A journal of the catalogue, opened at its first use."""

    def __init__(
        self,
        site: Site,
        entry: CatalogueEntry,
        directory: Path,
        *,
        names: Callable[[], Set[str]] = frozenset,
    ) -> None:
        """Name the journal; nothing is opened yet.

        Args:
            site: What it shares with the broker's other journals.
            entry: Of the catalogue.
            directory: Of its files.
            names: Returns the names of all journals.
        """
        self._site = site
        self._names = names
        self._opening: asyncio.Task[None] | None = None
        self._resting: asyncio.Task[None] | None = None
        self._users: set[asyncio.Task[object]] = set()
        """Tasks that use the journal, until they end."""
        self.used_at = site.clock.monotonic_seconds()
        """When the last of them began, monotonic seconds."""
        self._retry_at = 0.0
        self.entry = entry
        self.directory = directory
        self.changed = Signal()
        self.throttle = Throttle(site.clock)
        self.receivers = Receivers(site.limits.bounds, site.limits.refusals)
        """Appends whose content is being received."""
        self.deleted = False
        self.store: JournalStore | None = None
        """Used by the committer only."""
        self.store_error = ""
        """Reason why the journal cannot be written, for people; empty if it can."""
        self.index = FragmentIndex()
        self.identity = UNKNOWN.message()
        """Identity of the content: its incarnation, and the epochs of its openings."""
        self._view: JournalView | None = None

    @property
    def name(self) -> str:
        """The journal's name."""
        return self.entry.spec.name

    @property
    def view(self) -> JournalView:
        """The published view. Requires that `ready` returned."""
        assert self._view is not None, "the journal was used before it was ready"
        return self._view

    @property
    def is_loaded(self) -> bool:
        """True if readers can be served."""
        return self._view is not None

    async def ready(self) -> bool:
        """Open the journal if it is not open; return whether it can be read.

        `store_error` tells whether it can be written.
        """
        if self._resting is not None:
            await asyncio.shield(self._resting)
        if self._opening is None and self._needs_opening():
            self._opening = self._site.group.start_soon(self._open(), name=f"open:{self.name}")
        if self._opening is not None:
            await asyncio.shield(self._opening)
        return self.is_loaded

    def use(self) -> None:
        """Keep the journal's files open until the current task ends."""
        self.used_at = self._site.clock.monotonic_seconds()
        task = asyncio.current_task()
        if task is not None and task not in self._users:
            self._users.add(task)
            task.add_done_callback(self._users.discard)

    @property
    def may_rest(self) -> bool:
        """True if its files are open, and no request uses them."""
        return (
            self.is_loaded
            and self.store is not None
            and not (self.store.failed or self.store_error or self.deleted or self._users)
            and self._opening is None
            and self._resting is None
        )

    async def rest(self) -> None:
        """Close the files of an unused journal, as a stop does; its next use opens them again.

        Requires that `may_rest`, and that its committer has nothing to do.
        """
        self._resting = self._site.group.start_soon(self._rest(), name=f"rest:{self.name}")
        await asyncio.shield(self._resting)

    async def _rest(self) -> None:
        try:
            await self._close_files()
        finally:
            self._resting = None

    def _needs_opening(self) -> bool:
        usable = self.store is not None and not self.store.failed
        return (
            not usable
            and not self.deleted
            and (self._site.clock.monotonic_seconds() >= self._retry_at)
        )

    async def _open(self) -> None:
        synced = self._site.config.durability.mode is SyncMode.ALWAYS
        opening = Opening(
            name=self.name,
            synced=synced,
            boot_id=self._site.boot_id,
            quarantine=self._site.quarantine,
            least_head=self._site.catalogue.least_head(self.name),
        )
        try:
            await self._open_for_writing(opening)
        except (OSError, JournalStoreError) as error:
            self.fail(f"cannot be opened: {error}")
            cause = error.__cause__ if isinstance(error, JournalStoreError) else error
            if isinstance(cause, OSError) and is_out_of_space(cause):
                await self._open_read_only(opening)
        finally:
            self._opening = None

    async def _open_for_writing(self, opening: Opening) -> None:
        disk = self._site.disk
        # Without this much space, recovery would fail half way, again and again.
        await disk.run(self._site.free_space.require_some, SPACE_TO_OPEN_BYTES)
        self._let_go()
        if not await disk.run((self.directory / NAME_FILE).exists):
            stored = await self._site.publisher.stored_fragments(
                self.entry.spec, self.directory, self._names() - {self.name}
            )
            lineage = await self._site.publisher.stored_lineage(self.entry.spec, stored)
            opening = replace(opening, stored=stored, lineage=lineage)
        recovered = await disk.run(open_journal, disk, self.directory, opening)
        if opening.least_head is None:
            # Before the first append: a directory that is gone later must not look as if it had never been.
            try:
                await self._site.catalogue.note_heads([(self.entry, recovered.store.head)])
            except BaseException:
                recovered.store.abandon()
                raise
        self._take(recovered)
        await self._site.publisher.note_opened(self)

    async def _open_read_only(self, opening: Opening) -> None:
        """Open the journal for reading, unless that was done already."""
        if self._view is not None:
            return
        try:
            found = await self._site.disk.run(open_read_only, self.directory, opening)
        except OSError as error:
            self.fail(f"cannot be opened: {error}")
            return
        self.index, self.identity = found.index, found.lineage.message()
        registers = LabelSet.FromString(found.registers)
        position = JournalEnd(found.head, registers, found.unconfirmed)
        self._view = JournalView(position, found.open_begin, found.open_sum, found.file)
        self.changed.notify()

    def _take(self, recovered: RecoveredJournal) -> None:
        for damage in recovered.damage:
            _log.error("journal.damaged", journal=self.name, detail=damage)
        self.store, self.index, self.store_error = recovered.store, recovered.index, ""
        state = recovered.store.state
        self.identity = Lineage(state.incarnation, state.epochs).message()
        self.publish()
        self._site.publisher.offer(self, list(self.index))

    def fail(self, detail: str) -> None:
        """Note that the journal cannot be written for now."""
        _log.error("journal.failed", journal=self.name, detail=detail)
        self.store_error = detail
        self._retry_at = self._site.clock.monotonic_seconds() + REOPEN_SECONDS

    def _let_go(self) -> None:
        """Close the files of a failed store; readers keep their own reference to the open file."""
        if self.store is not None:
            self.store.close()

    def publish(self) -> None:
        """Publish what the store has made durable, and wake the readers."""
        store = self.store
        assert store is not None, "nothing to publish"
        registers = LabelSet.FromString(store.state.registers)
        position = JournalEnd(store.head, registers, store.state.unconfirmed)
        before = self._view
        self._view = JournalView(position, store.open_begin, store.open_sum(), store.file)
        if before is not None and before.file is not store.file:
            before.file.release()
        self.changed.notify()

    def note_rolled(self, rolled: Rolled) -> None:
        """Add a newly sealed fragment to the index."""
        if rolled.sealed is not None:
            self.index.add(rolled.sealed)
            self._site.publisher.offer(self, [rolled.sealed])
        self.publish()

    @property
    def is_empty(self) -> bool:
        """True if the journal has no content."""
        return self.open_span() is None and self.index.newest is None

    def flushed_seconds(self, wall_seconds: float) -> float | None:
        """Return how long all content has been sealed, and in its store; None if some is not, or there is none.

        Args:
            wall_seconds: Now, Unix seconds.
        """
        newest = self.index.newest
        if newest is None or self.open_span() is not None:
            return None
        if newest.stored is None and self._site.publisher.publishes(self.entry.spec):
            return None
        return wall_seconds - newest.mod_time

    def skip_older(self, offset: int, begin_mod_time: int) -> int:
        """Return the offset to continue at, past sealed fragments that were last modified before a time.

        Args:
            offset: First byte wanted, bytes.
            begin_mod_time: Unix seconds.
        """
        sealed = self.index.at_or_after(offset)
        while sealed is not None and sealed.mod_time < begin_mod_time:
            offset = max(offset, sealed.end)
            sealed = self.index.at_or_after(offset)
        return offset

    def locate(self, offset: int) -> ReadableSpan | None:
        """Return the content at an offset, bytes, or the next content after it; None at the end."""
        sealed = self.index.at_or_after(offset)
        if sealed is not None:
            return span_of(sealed)
        return self.open_span() if offset < self.view.head else None

    def is_declared_gone(self, span: ReadableSpan) -> bool:
        """Tell whether the journal's log says that all bytes of a span were removed on purpose."""
        if self.store is None:
            return False
        state = self.store.state
        return span.end <= (state.first or 0) or any(
            begin <= span.begin and span.end <= end for begin, end in state.holes
        )

    def open_span(self) -> ReadableSpan | None:
        """Return the open fragment, unless it is empty."""
        view = self.view
        if view.open_begin == view.head:
            return None
        return ReadableSpan(view.open_begin, view.head, view.open_sum, 0, None)

    async def close(self) -> None:
        """Close the files, once no task opens or closes them. Readers keep their own references."""
        for task in (self._opening, self._resting):
            if task is not None:
                await asyncio.shield(task)
        await self._close_files()

    async def _close_files(self) -> None:
        if self.store is not None:
            try:
                await self._site.disk.run(self.store.close)
            except JournalStoreError as error:
                _log.exception("journal.close_failed", journal=self.name, detail=str(error))
            self.store = None
        view, self._view = self._view, None
        if view is not None:
            view.file.release()


def span_of(fragment: SealedFragment) -> ReadableSpan:
    """Return a sealed fragment as content to read."""
    return ReadableSpan(
        fragment.begin,
        fragment.end,
        fragment.sum,
        fragment.mod_time,
        fragment.path,
        fragment.stored,
    )
