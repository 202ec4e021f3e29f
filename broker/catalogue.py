"""The journals' specs and their revisions: durable, transactional, strictly increasing across restarts.

It also remembers a least head of each journal that has had a directory. A journal whose files are gone, or are an older
copy, is thus told from one that is new. The head is noted when the journal is first made, now and then, and at a stop,
so that no append costs more.

Source: gazette/core broker/list_apply_api.go (semantics of a transaction), our own log.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import structlog
from google.protobuf.message import DecodeError
from sortedcontainers import SortedDict

from broadsheet.broker.commit_log import (
    CommitLogWriter,
    Scan,
    Tail,
    generation_path,
    generations,
    scan_file,
)
from broadsheet.broker.disk import Disk, is_out_of_space
from broadsheet.runtime.documents import DocumentError, decode_msgpack
from broadsheet.runtime.event_loop import Signal
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.journal_pb2 import ApplyRequest, JournalSpec

LOG_STEM = "catalogue"
LOG_BYTES_MAX = 16 << 20
"""A longer log is replaced by a checkpoint."""
ANY_REVISION = -1

_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """One journal's spec. The message is never changed in place."""

    spec: JournalSpec
    create_revision: int
    mod_revision: int


class _Put(msgspec.Struct, frozen=True, array_like=True):
    spec: bytes
    create_revision: int
    mod_revision: int


class _Txn(msgspec.Struct, frozen=True, array_like=True):
    revision: int
    is_checkpoint: bool
    """Whether this is everything, not a change to what was before."""
    puts: tuple[_Put, ...]
    deletes: tuple[str, ...]
    heads: tuple[tuple[str, int], ...] = ()
    """Names of journals, and heads that they have reached, bytes. Earlier versions neither write nor read them."""
    ends: bool = True
    """End marker, because a record's last byte is never zero."""


@dataclass(frozen=True, slots=True)
class CatalogueUpdate:
    """Changes of one transaction."""

    put: tuple[CatalogueEntry, ...]
    removed: tuple[CatalogueEntry, ...]
    """Deleted journals, with their last spec."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredCatalogue:
    """A catalogue as read from its log."""

    entries: Mapping[str, CatalogueEntry]
    revision: int
    deleted: frozenset[tuple[str, int]] = frozenset()
    """Name and create revision of each journal whose deletion is in the log."""
    least_heads: Mapping[str, int] = field(default_factory=dict)
    """Heads that journals have reached, bytes, of those that have had a directory."""
    path: Path
    """The log, or the directory if there is no log."""
    problem: str = ""
    """Reason why acknowledged transactions may be missing here, for people; empty if none are."""


def initialize_catalogue(disk: Disk, directory: Path, revision: int) -> None:
    """Write the first log of a catalogue, empty as of a revision. Blocking."""
    path = generation_path(directory, LOG_STEM, 1)
    CommitLogWriter.create(disk, path, msgspec.msgpack.encode(_Txn(revision, True, (), ()))).close()


def read_catalogue(directory: Path) -> StoredCatalogue:
    """Read the specs from disk, as far as they verify, and change nothing. Blocking."""
    older_than = ""
    for generation in reversed(generations(directory, LOG_STEM)):
        path = generation_path(directory, LOG_STEM, generation)
        scan = scan_file(path)
        if scan is None or scan.torn_away:
            # Earlier versions left such a file when they were interrupted while creating a
            # generation.
            older_than = older_than or f"{path.name} is empty or cut off"
            continue
        return _stored(path, scan)
    problem = older_than or "there is no catalogue log"
    return StoredCatalogue(entries={}, revision=0, path=directory, problem=problem)


def _stored(path: Path, scan: Scan) -> StoredCatalogue:
    entries: dict[str, CatalogueEntry] = {}
    deleted: set[tuple[str, int]] = set()
    heads: dict[str, int] = {}
    revision, problem = 0, _problem_of(scan)
    for index, frame in enumerate(scan.frames):
        try:
            txn = decode_msgpack(frame.body, _Txn)
            specs = [JournalSpec.FromString(put.spec) for put in txn.puts]
        except (DocumentError, DecodeError) as error:
            problem = f"transaction {index} is of another version: {error}"
            break
        if index == 0 and not txn.is_checkpoint:
            problem = "its first transaction is no checkpoint"
        for spec, put in zip(specs, txn.puts, strict=True):
            if put.create_revision == txn.revision:
                heads.pop(spec.name, None)
            entries[spec.name] = CatalogueEntry(spec, put.create_revision, put.mod_revision)
        for name in txn.deletes:
            entry = entries.pop(name, None)
            if entry is not None:
                deleted.add((name, entry.create_revision))
            heads.pop(name, None)
        heads.update(txn.heads)
        revision = txn.revision
    return StoredCatalogue(
        entries=entries,
        revision=revision,
        deleted=frozenset(deleted),
        least_heads=heads,
        path=path,
        problem=problem,
    )


def _problem_of(scan: Scan) -> str:
    if scan.tail is Tail.DAMAGED:
        return "its last transaction fails its checksum, though it was written whole"
    if scan.damaged:
        return "bad bytes before valid transactions"
    return scan.cut()


class Catalogue:
    """In-memory specs, written ahead to a log."""

    def __init__(self, disk: Disk, directory: Path, group: TaskGroup) -> None:
        self._disk = disk
        self._directory = directory
        self._group = group
        self._writing = asyncio.Lock()
        """Serializes transactions, because each is judged against the state that the previous one left."""
        self._log: CommitLogWriter | None = None
        self._generation = 0
        self._observers: list[Callable[[CatalogueUpdate], None]] = []
        self.entries: SortedDict[str, CatalogueEntry] = SortedDict()
        """Entries by name; text order of code points is byte order of UTF-8."""
        self.revision = 0
        self._least_heads: dict[str, int] = {}
        self._unnoted: dict[tuple[str, int], int] = {}
        """Heads that are to be noted with the next transaction, by name and create revision."""
        self.changed = Signal()

    def load(self, stored: StoredCatalogue) -> None:
        """Take over what was read from disk and begin a new log. Blocking.

        A full disk is no obstacle before the first transaction, because the log that was read is still there.
        """
        self.entries.update(stored.entries)
        self.revision = stored.revision
        self._least_heads = dict(stored.least_heads)
        self._generation = max(generations(self._directory, LOG_STEM), default=0)
        try:
            self._start_log()
        except OSError as error:
            if not is_out_of_space(error):
                raise
            _log.warning("catalogue.read_only", directory=str(self._directory), detail=str(error))

    def _start_log(self) -> None:
        """Begin a generation with everything that is published, and remove the older ones."""
        older = generations(self._directory, LOG_STEM)
        self._generation = max(older, default=self._generation) + 1
        puts = tuple(_put(entry) for entry in self.entries.values())
        heads = tuple(self._least_heads.items())
        body = msgspec.msgpack.encode(_Txn(self.revision, True, puts, (), heads))
        path = generation_path(self._directory, LOG_STEM, self._generation)
        before, self._log = self._log, CommitLogWriter.create(self._disk, path, body)
        if before is not None:
            before.close()
        for generation in older:
            generation_path(self._directory, LOG_STEM, generation).unlink(missing_ok=True)

    def observe(self, observer: Callable[[CatalogueUpdate], None]) -> None:
        """Register a function that is called, on the loop, after each transaction becomes durable."""
        self._observers.append(observer)

    def matching(
        self, accepts: Callable[[CatalogueEntry], bool], *, names: Collection[str] | None = None
    ) -> Iterator[CatalogueEntry]:
        """Yield the accepted entries in the order of their names.

        Args:
            accepts: Looks at an entry.
            names: Of the journals to look at, because looking at all of thousands takes long; None: all.
        """
        entries = (
            self.entries.values()
            if names is None
            else (self.entries[name] for name in sorted(names) if name in self.entries)
        )
        return (entry for entry in entries if accepts(entry))

    def least_head(self, name: str) -> int | None:
        """Return a head that a journal has reached, bytes; None if it has never had a directory, as far as is known."""
        return self._least_heads.get(name)

    async def note_heads(self, heads: Iterable[tuple[CatalogueEntry, int]]) -> None:
        """Note durably that journals have reached heads, bytes. Calls that wait for each other share one transaction.

        Raises:
            OSError: the disk failed; nothing was noted.
        """
        for entry, head in heads:
            self._unnoted[entry.spec.name, entry.create_revision] = head
        async with self._writing:
            taken, self._unnoted = self._unnoted, {}
            # A journal that was deleted meanwhile may be there again, under the same name and with no directory yet.
            noted = {
                name: head
                for (name, created), head in taken.items()
                if name in self.entries and self.entries[name].create_revision == created
            }
            if not noted:
                return
            body = msgspec.msgpack.encode(_Txn(self.revision, False, (), (), tuple(noted.items())))
            try:
                await self._disk.run(self._write, body)
            except BaseException:
                self._unnoted = taken | self._unnoted
                raise
            self._least_heads |= noted

    async def wait_for_revision(self, revision: int) -> None:
        """Return when the revision is at least this."""
        while self.revision < revision:
            await self.changed.wait()

    async def apply(self, changes: Sequence[ApplyRequest.Change]) -> bool:
        """Apply all changes durably, or none.

        A caller that gives up does not undo the transaction: what reached the disk is also published.

        Returns:
            Whether every expected revision held.

        Raises:
            OSError: the disk failed; nothing was applied.
        """
        outcome: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        # In a separate task, because a cancelled caller must not interrupt the write.
        self._group.start_soon(self._apply_in_turn(changes, outcome), name="catalogue.apply")
        return await asyncio.shield(outcome)

    async def _apply_in_turn(
        self, changes: Sequence[ApplyRequest.Change], outcome: asyncio.Future[bool]
    ) -> None:
        try:
            async with self._writing:
                outcome.set_result(await self._apply(changes))
        except OSError as error:
            outcome.set_exception(error)
        except BaseException:
            outcome.cancel()
            raise

    async def _apply(self, changes: Sequence[ApplyRequest.Change]) -> bool:
        if not all(self._holds(change) for change in changes):
            return False
        removed = tuple(
            self.entries[change.delete] for change in changes if change.delete in self.entries
        )
        upserts = [change.upsert for change in changes if change.HasField("upsert")]
        # Deletions of absent journals need no new revision.
        if not removed and not upserts:
            return True
        revision = self.revision + 1
        put = tuple(self._entry(spec, revision) for spec in upserts)
        txn = _Txn(
            revision,
            False,
            tuple(_put(entry) for entry in put),
            tuple(entry.spec.name for entry in removed),
        )
        await self._disk.run(self._write, msgspec.msgpack.encode(txn))
        self._publish(CatalogueUpdate(put, removed), revision)
        return True

    def _holds(self, change: ApplyRequest.Change) -> bool:
        name = change.upsert.name if change.HasField("upsert") else change.delete
        current = self.entries[name].mod_revision if name in self.entries else 0
        return change.expect_mod_revision in (ANY_REVISION, current)

    def _entry(self, spec: JournalSpec, revision: int) -> CatalogueEntry:
        kept = JournalSpec()
        kept.CopyFrom(spec)
        before = self.entries.get(spec.name)
        return CatalogueEntry(kept, before.create_revision if before else revision, revision)

    def _write(self, body: bytes) -> None:
        """Make a transaction durable, or undo it. Blocking."""
        if self._log is None or self._log.size > LOG_BYTES_MAX:
            self._start_log()
        log = self._log
        assert log is not None, "a log was just started"
        size = log.size
        try:
            log.append(body)
            log.sync()
        except OSError:
            # A file whose sync failed is never trusted again: the next transaction starts over
            # from what is published.
            with contextlib.suppress(OSError):
                log.truncate(size)
            log.close()
            self._log = None
            raise

    def _publish(self, update: CatalogueUpdate, revision: int) -> None:
        for entry in update.removed:
            self.entries.pop(entry.spec.name)
            self._least_heads.pop(entry.spec.name, None)
        for entry in update.put:
            self.entries[entry.spec.name] = entry
        self.revision = revision
        for observer in self._observers:
            observer(update)
        self.changed.notify()

    def close(self) -> None:
        """Close the log."""
        if self._log is not None:
            self._log.close()


def _put(entry: CatalogueEntry) -> _Put:
    return _Put(
        entry.spec.SerializeToString(deterministic=True), entry.create_revision, entry.mod_revision
    )
