"""Copies of sealed fragments in stores: published in the background, fetched back when they are read.

    sealed ─► put ─► record beside the fragment ─► the local file may go ─► fetched, verified, and local again

Appends never wait for a store. The record is durable before the local file may go, and is written after the object is
complete. A crash in between publishes the fragment again, which finds the object by its name.

Source: gazette/core broker/fragment/persister.go (uploads in the background), broker/fragment/stores.go.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import re
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence, Set
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, Protocol, TypeVar
from uuid import uuid4
from weakref import WeakValueDictionary

import structlog
from prometheus_client import CollectorRegistry

from broadsheet.broker.catalogue import CatalogueEntry
from broadsheet.broker.disk import Disk, DiskThreads
from broadsheet.broker.fragment_codecs import decode_to_file
from broadsheet.broker.fragment_stores import FragmentStore, FragmentStores, path_parts, probe
from broadsheet.broker.fragments import (
    FETCHED_SUFFIX,
    FragmentIndex,
    SealedFragment,
    StoredCopy,
    cover_set,
    fragment_name,
    object_name,
    parse_object_name,
    write_record,
)
from broadsheet.broker.free_space import FreeSpace
from broadsheet.broker.lineage import UNKNOWN, Lineage, lineage_of
from broadsheet.broker.metrics import PublishMetrics
from broadsheet.broker.segment_recycler import SegmentRecycler
from broadsheet.broker.stored_lineage import (
    BYTES_MAX as LINEAGE_BYTES_MAX,
    OBJECT as LINEAGE_OBJECT,
    StoredLineage,
    decode_stored_lineage,
    lineage_key,
    lineage_of_fragments,
)
from broadsheet.journals.block_sums import DamagedContentError
from broadsheet.runtime.backoff import Backoff
from broadsheet.runtime.clock import Clock
from broadsheet.runtime.errors import ExtraMissingError, ValidationError
from broadsheet.runtime.event_loop import Signal
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.identity_pb2 import JournalIdentity
from broadsheet.wire.journal_pb2 import FragmentStoreHealthRequest, JournalSpec

T = TypeVar("T")
CONCURRENCY = 4
"""Fragments on their way to or from stores at once, of all journals: compression must leave processors to appends."""
RETRY_SECONDS_MAX = 30.0
"""Longest interval between attempts at a store that fails."""
STOP_SECONDS = 3.0
"""Time that operations in progress have at a stop of the broker."""
READ_URL_SECONDS = 60
"""Validity of URLs in the metadata of reads."""
_ACTION = re.compile(r"\{\{-?\s*\.Spool\.FirstAppendTime\.Format\s+\"([^\"]*)\"\s*-?\}\}")
_LAYOUT = {"2006": "%Y", "01": "%m", "02": "%d", "15": "%H", "04": "%M", "05": "%S"}

_log = structlog.get_logger()


class MissingCopyError(OSError):
    """A fragment's only copy is not in its store: it was removed there, or the store is not mounted."""


class PublishedJournal(Protocol):
    """The part of a journal that a publisher needs."""

    deleted: bool
    entry: CatalogueEntry
    index: FragmentIndex
    identity: JournalIdentity

    @property
    def name(self) -> str:
        """The journal's name."""
        ...


def path_postfix(template: str, sealed_seconds: int) -> str:
    """Evaluate a spec's postfix template: literals, and `{{.Spool.FirstAppendTime.Format "2006-01-02"}}`.

    Args:
        template: Of the spec.
        sealed_seconds: Time of the fragment's sealing, which stands for that of its first append, Unix seconds.

    Raises:
        ValidationError: it has another action, or the result is no path.
    """
    at = datetime.fromtimestamp(sealed_seconds, UTC)

    def formatted(match: re.Match[str]) -> str:
        return re.sub("2006|01|02|15|04|05", lambda each: at.strftime(_LAYOUT[each[0]]), match[1])

    postfix = _ACTION.sub(formatted, template)
    if "{{" in postfix:
        problem = f'only {{{{.Spool.FirstAppendTime.Format "…"}}}} is supported, got {template!r}'
        raise ValidationError("path_postfix_template", problem)
    postfix = postfix.strip("/")
    if postfix:
        path_parts(postfix)
    return postfix


@dataclass(slots=True, eq=False)
class _Pending:
    """A fragment that waits to be published."""

    journal: PublishedJournal
    fragment: SealedFragment
    since: float
    """Monotonic seconds."""

    @property
    def length(self) -> int:
        """Of its content, bytes."""
        return self.fragment.end - self.fragment.begin


class _Running(NamedTuple):
    """A publication in progress."""

    name: str
    """Of the journal."""
    fragment: SealedFragment
    task: asyncio.Task[None]


@dataclass(slots=True, eq=False)
class _Queue:
    """Fragments that wait for one store."""

    pending: OrderedDict[Path, _Pending] = field(default_factory=OrderedDict)
    backoff: Backoff = field(
        default_factory=lambda: Backoff(initial_seconds=0.2, max_seconds=RETRY_SECONDS_MAX)
    )
    retry_at: float = 0.0
    """Monotonic seconds."""
    problem: str = ""
    """Why the last attempt failed; empty if it did not."""
    running: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PublisherParts:
    """The surroundings of a publisher."""

    stores: FragmentStores
    disk: Disk
    clock: Clock
    group: TaskGroup
    spares: SegmentRecycler
    free_space: FreeSpace
    local_bytes_max: int | None
    """Bytes of local files of published fragments; None keeps all."""


class FragmentPublisher:
    """Publishes and fetches the fragments of one broker. Lives on the event loop."""

    def __init__(self, parts: PublisherParts, registry: CollectorRegistry) -> None:
        self._parts = parts
        self._stores = parts.stores
        # Threads of their own, because the disk's must not wait for a slow network.
        self._threads = DiskThreads(CONCURRENCY, name="broker-store")
        self._queues: dict[str, _Queue] = {}
        self._publishing: dict[Path, _Running] = {}
        self._fetching: dict[Path, asyncio.Future[None]] = {}
        self._local: OrderedDict[Path, int] = OrderedDict()
        """Lengths of local files of published fragments, those first that were used least recently."""
        self._local_bytes = 0
        self._lineage_locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By journal: an object that was written later says what is newer."""
        self._withdrawn: set[Path] = set()
        """Fragments that are being removed."""
        self._jobs: set[asyncio.Future[Any]] = set()
        """Operations in progress. `Any`: their results differ in type."""
        self._stopping = False
        self._landing = threading.Lock()
        """Held while a file gets its final name. None may after a stop: another broker may have the directory."""
        self._changed = Signal()
        self._metrics = PublishMetrics(registry)
        self._metrics.unpublished.set_function(lambda: len(self._waiting()))
        self._metrics.unpublished_bytes.set_function(
            lambda: sum(each.length for each in self._waiting())
        )
        self._metrics.oldest.set_function(self._oldest_seconds)

    def _waiting(self) -> list[_Pending]:
        return [each for queue in self._queues.values() for each in queue.pending.values()]

    def _oldest_seconds(self) -> float:
        now = self._parts.clock.monotonic_seconds()
        return max((now - each.since for each in self._waiting()), default=0.0)

    def offer(self, journal: PublishedJournal, fragments: Sequence[SealedFragment]) -> None:
        """Publish those of a journal's sealed fragments soon that are not, if this broker serves its store."""
        if not self._stores.is_any:
            return
        url = self._stores.first_of(journal.entry.spec.fragment.stores)
        now = self._parts.clock.monotonic_seconds()
        for fragment in fragments:
            is_known = fragment.path in self._publishing or fragment.path in self._withdrawn
            if fragment.stored is None and not is_known:
                self._forget(fragment.path)
                if url:
                    queue = self._queues.setdefault(url, _Queue())
                    queue.pending[fragment.path] = _Pending(journal, fragment, now)
        self._changed.notify()

    async def note_opened(self, journal: PublishedJournal) -> None:
        """Count the local files of a journal's published fragments, and store the epoch that its opening began."""
        published = [each for each in journal.index if each.stored is not None]
        if published and self.publishes(journal.entry.spec):
            self._parts.group.start_soon(
                self._store_opening(journal), name=f"lineage:{journal.name}"
            )
        if self._parts.local_bytes_max is None:
            return
        for fragment in await self._parts.disk.run(_local_ones, published):
            self._note_local(fragment)

    def _forget(self, path: Path) -> None:
        for queue in self._queues.values():
            queue.pending.pop(path, None)

    def publishes(self, spec: JournalSpec) -> bool:
        """Tell whether a journal's fragments are published here."""
        return bool(self._stores.first_of(spec.fragment.stores))

    async def run(self) -> None:
        """Publish what is offered; never returns."""
        while True:
            delay = self._start_due()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(delay):
                    await self._changed.wait()

    def _start_due(self) -> float | None:
        """Start publications; return the time until the next attempt at a store that failed, seconds."""
        now, delays = self._parts.clock.monotonic_seconds(), []
        for url, queue in self._queues.items():
            if queue.retry_at > now:
                delays.append(queue.retry_at - now)
                continue
            # One attempt tells whether a store that failed is back.
            most = 1 if queue.problem else CONCURRENCY
            for path, pending in queue.pending.items():
                if queue.running >= most or len(self._publishing) >= CONCURRENCY:
                    break
                if path not in self._publishing:
                    queue.running += 1
                    task = self._parts.group.start_soon(
                        self._publish(url, queue, pending), name=f"publish:{path.name}"
                    )
                    self._publishing[path] = _Running(pending.journal.name, pending.fragment, task)
        return min(delays, default=None)

    async def _publish(self, url: str, queue: _Queue, pending: _Pending) -> None:
        path = pending.fragment.path
        try:
            if not pending.journal.deleted:
                await self._store(url, pending)
            queue.pending.pop(path, None)
            queue.problem = ""
            queue.backoff.reset()
        except (OSError, ValidationError, ExtraMissingError, DamagedContentError) as error:
            self._note_failure(url, queue, pending, error)
        finally:
            queue.running -= 1
            self._publishing.pop(path, None)
            self._changed.notify()

    async def _store_opening(self, journal: PublishedJournal) -> None:
        url = self._stores.first_of(journal.entry.spec.fragment.stores)
        try:
            await self._store_lineage(url, journal)
        except (OSError, ValidationError, ExtraMissingError) as error:
            # The next fragment brings it along. Until then, shards stop needlessly if the broker loses its disk.
            _log.info("lineage.not_stored", journal=journal.name, store=url, detail=str(error))

    async def _store_lineage(self, url: str, journal: PublishedJournal) -> None:
        """Write a journal's lineage beside its fragments, with the names of those that may be the newest there."""
        async with self._lineage_locks.setdefault(journal.name, asyncio.Lock()):
            if journal.deleted:
                return
            newest = journal.index.newest_stored
            published = [
                each.fragment for each in self._publishing.values() if each.name == journal.name
            ]
            vouching = [*published, *([] if newest is None else [newest])]
            names = frozenset(fragment_name(each.begin, each.end, each.sum) for each in vouching)
            content = StoredLineage(lineage_of(journal.identity), names).encode()
            await self._submit(partial(self._put_lineage, url, journal.name, content))

    def _put_lineage(self, url: str, journal: str, content: bytes) -> None:
        store = self._stores.at(url)
        if store is None:
            raise OSError(errno.ENOENT, f"this broker does not serve {url}")
        store.put_bytes(lineage_key(journal), content)

    async def stored_lineage(
        self, spec: JournalSpec, fragments: Sequence[SealedFragment]
    ) -> Lineage:
        """Return the lineage of fragments that `stored_fragments` found; the unknown one if nothing vouches for one.

        Raises:
            OSError: a store failed.
        """
        if not fragments:
            return UNKNOWN
        last = max(fragments, key=lambda each: each.end)
        found = []
        for url in dict.fromkeys(each.stored.store for each in fragments if each.stored):
            stored = await self._submit(partial(self._read_lineage, url, spec.name))
            found += [] if stored is None else [stored]
        return lineage_of_fragments(found, fragment_name(last.begin, last.end, last.sum))

    def _read_lineage(self, url: str, journal: str) -> StoredLineage | None:
        store = self._stores.at(url)
        if store is None:
            return None
        content = bytearray()
        try:
            for piece in store.pieces(lineage_key(journal)):
                content += piece
                if len(content) > LINEAGE_BYTES_MAX:
                    break
            return decode_stored_lineage(bytes(content))
        except FileNotFoundError:
            return None
        except ValueError as error:
            _log.warning("lineage.not_read", journal=journal, store=url, detail=str(error))
            return None

    async def _store(self, url: str, pending: _Pending) -> None:
        journal, fragment = pending.journal, pending.fragment
        spec = journal.entry.spec
        # Before the fragment: content of an epoch must never be in a store whose lineage does not know of it.
        await self._store_lineage(url, journal)
        copy = await self._submit(partial(self._put, url, spec, fragment))
        known = journal.index.at(fragment.begin)
        if known is not None and known.path == fragment.path:
            stored = replace(known, stored=copy, mod_time=copy.mod_time)
            journal.index.add(stored)
            self._note_local(stored)
        self._metrics.published.inc()
        self._metrics.published_bytes.inc(pending.length)
        _log.info("fragment.published", journal=journal.name, store=url, key=copy.key)

    def _put(self, url: str, spec: JournalSpec, fragment: SealedFragment) -> StoredCopy:
        """Put a fragment into a store, and record that. Blocking."""
        store = self._stores.at(url)
        if store is None:
            raise OSError(errno.ENOENT, f"this broker does not serve {url}")
        codec = spec.fragment.compression_codec
        postfix = path_postfix(spec.fragment.path_postfix_template, fragment.mod_time)
        key = "/".join(filter(None, (spec.name, postfix, object_name(fragment, codec))))
        mod_time = store.put(key, fragment, codec)
        copy = StoredCopy(store=url, key=key, codec=codec, mod_time=mod_time, postfix=postfix)
        # If the broker has stopped, the next one's attempt finds the object.
        with self._landing:
            self._require_running()
            write_record(self._parts.disk, replace(fragment, stored=copy))
        return copy

    async def stored_fragments(
        self, spec: JournalSpec, directory: Path, others: Set[str]
    ) -> list[SealedFragment]:
        """Return a journal's fragments in all stores of its spec that this broker serves: a cover set.

        Args:
            spec: Of the journal.
            directory: Where their local files would be.
            others: Names of other journals, whose fragments may be below this one's path.

        Raises:
            OSError: a store failed, so that it is not known what is there.
        """
        # An upload of a deleted journal of this name must not arrive after the listing, because other
        # content will get its offsets.
        for running in [each for each in self._publishing.values() if each.name == spec.name]:
            await asyncio.wait([running.task])
        found: list[SealedFragment] = []
        for url in spec.fragment.stores:
            listing = partial(self._listed, url, spec.name, directory, others)
            try:
                found += await self._submit(listing)
            except ValidationError as error:
                # Nothing was ever published under such a path.
                _log.warning("fragments.not_listed", store=url, detail=str(error))
            except ExtraMissingError as error:
                raise OSError(errno.ENOSYS, str(error)) from error
        return cover_set(found)

    def _listed(
        self, url: str, journal: str, directory: Path, others: Set[str]
    ) -> list[SealedFragment]:
        """List a journal's fragments in one store. Blocking."""
        store = self._stores.at(url)
        if store is None:
            return []
        found: list[SealedFragment] = []
        for each in store.listing(f"{journal}/"):
            where, _, last = each.key.rpartition("/")
            name = parse_object_name(last)
            if name is None and last == LINEAGE_OBJECT:
                continue
            if name is None:
                _log.warning("fragment.unknown_object", store=url, key=each.key)
                continue
            if _is_of_other(journal, where, others):
                continue
            copy = StoredCopy(
                store=url,
                key=each.key,
                codec=name.codec,
                mod_time=each.mod_time,
                postfix=where.removeprefix(journal).removeprefix("/"),
            )
            path = directory / fragment_name(name.begin, name.end, name.sum)
            found.append(SealedFragment(name.begin, name.end, name.sum, each.mod_time, path, copy))
        return found

    def _note_failure(self, url: str, queue: _Queue, pending: _Pending, error: Exception) -> None:
        if pending.journal.deleted or self._stopping:
            queue.pending.pop(pending.fragment.path, None)
            return
        self._metrics.failures.inc()
        queue.problem = str(error)
        queue.retry_at = self._parts.clock.monotonic_seconds() + queue.backoff.next_seconds()
        # Another one is tried first next time, because the reason may be in this fragment.
        with contextlib.suppress(KeyError):
            queue.pending.move_to_end(pending.fragment.path)
        _log.warning(
            "fragment.not_published",
            journal=pending.journal.name,
            store=url,
            path=str(pending.fragment.path),
            detail=str(error),
        )

    def problem_of(self, url: str) -> str:
        """Return why fragments wait for a store that fails, for people; empty if it works."""
        queue = self._queues.get(url)
        if queue is None or not queue.problem or not queue.pending:
            return ""
        length = sum(each.length for each in queue.pending.values())
        return f"{len(queue.pending)} fragments ({length} bytes) are not published: {queue.problem}"

    async def probe(self, request: FragmentStoreHealthRequest) -> bool:
        """Probe a store; return whether this broker serves it.

        Raises:
            OSError, ValidationError, ExtraMissingError: it is unhealthy, or fragments wait for it because it was.
        """
        url = request.fragment_store
        store = self._stores.at(url)
        if store is None:
            return False
        prefix = request.check_delete_prefix if request.check_delete else None
        await self._submit(partial(probe, store, prefix))
        if problem := self.problem_of(url):
            raise OSError(errno.EIO, problem)
        return True

    async def urls_of(
        self, fragments: Sequence[SealedFragment], seconds: int
    ) -> dict[SealedFragment, str]:
        """Return URLs under which published fragments can be got; none for those whose store gives none."""
        by_store: dict[str, list[SealedFragment]] = {}
        for fragment in fragments:
            if fragment.stored is not None:
                by_store.setdefault(fragment.stored.store, []).append(fragment)
        found: dict[SealedFragment, str] = {}
        for url, members in by_store.items():
            try:
                signed = await self._signed(url, members, seconds)
            except (OSError, ValidationError, ExtraMissingError) as error:
                # Readers then get the content from here.
                _log.warning("fragment.not_signed", store=url, detail=str(error))
                continue
            found.update(zip(members, signed, strict=False))
        return found

    async def _signed(
        self, url: str, fragments: Sequence[SealedFragment], seconds: int
    ) -> list[str]:
        store = self._stores.at(url)
        if store is None:
            return []
        keys = [each.stored.key for each in fragments if each.stored is not None]
        if store.signs_locally:
            return store.sign(keys, seconds)
        return await self._submit(partial(store.sign, keys, seconds))

    @asynccontextmanager
    async def withdrawing(
        self, journal: PublishedJournal, chosen: Sequence[SealedFragment]
    ) -> AsyncIterator[Callable[[SealedFragment], Awaitable[None]]]:
        """Yield what takes one of the chosen fragments out of the journal's index, and then out of its store.

        In this order, because a reader must never be sent to an object that is not there. The journal's log must have
        declared their bytes as gone. If a store fails, OSError is raised, and that fragment is served as before.
        """
        paths = {each.path for each in chosen}
        # An offer must not queue them again while they are removed.
        self._withdrawn |= paths
        try:
            for path in paths:
                await self._settle(path)
            yield partial(self._withdraw, journal)
        finally:
            self._withdrawn -= paths
            # Those that are still there wait for their store again.
            present = [journal.index.at(each.begin) for each in chosen]
            self.offer(journal, [each for each in present if each is not None])

    async def _settle(self, path: Path) -> None:
        """Publish a fragment no more; return when what is on its way has arrived, else it would stay in the store."""
        self._forget(path)
        running = self._publishing.get(path)
        if running is not None:
            await asyncio.wait([running.task])
            self._forget(path)

    async def _withdraw(self, journal: PublishedJournal, fragment: SealedFragment) -> None:
        # As it is now, because it may have been published since it was chosen.
        known = journal.index.at(fragment.begin)
        if known is None or known.path != fragment.path:
            return
        journal.index.remove(known)
        if known.stored is not None:
            try:
                await self._submit(partial(self._remove, known.stored))
            except BaseException:
                journal.index.add(known)
                raise
        self._drop_local(fragment.path)

    async def lists_any(self, journal: PublishedJournal, fragment: SealedFragment) -> bool:
        """Tell whether a published fragment's store lists anything of its journal.

        Raises:
            OSError: the store failed, or is not served here.
        """
        stored = fragment.stored
        store = None if stored is None else self._stores.at(stored.store)
        if store is None:
            raise OSError(errno.ENOENT, "it is in no store that this broker serves")
        return await self._submit(partial(_lists_any, store, journal.name))

    async def remove_copy(self, journal: PublishedJournal, fragment: SealedFragment) -> None:
        """Remove a fragment's object from its store; the fragment stays in the index, of its local file alone.

        Raises:
            OSError: the store failed.
        """
        self._withdrawn.add(fragment.path)
        try:
            await self._settle(fragment.path)
            known = journal.index.at(fragment.begin)
            if known is not None and known.stored is not None:
                await self._submit(partial(self._remove, known.stored))
            self._drop_local(fragment.path)
        finally:
            self._withdrawn.discard(fragment.path)

    def _remove(self, stored: StoredCopy) -> None:
        try:
            store = self._stores.at(stored.store)
        except ValidationError as error:
            raise OSError(errno.EINVAL, str(error)) from error
        if store is None:
            raise OSError(errno.ENOENT, f"this broker does not serve {stored.store} any more")
        store.remove(stored.key)

    async def fetch(self, fragment: SealedFragment) -> None:
        """Bring a published fragment's content back to its local file, once for all who ask at the same time.

        Raises:
            OSError: the store or the disk failed.
            DamagedContentError: the copy is damaged.
        """
        running = self._fetching.get(fragment.path)
        if running is None:
            running = self._submit(partial(self._fetch, fragment))
            self._fetching[fragment.path] = running
            running.add_done_callback(self._fetched(fragment))
        await asyncio.shield(running)

    def _fetched(self, fragment: SealedFragment) -> Callable[[asyncio.Future[None]], None]:
        def note(done: asyncio.Future[None]) -> None:
            self._fetching.pop(fragment.path, None)
            if not done.cancelled() and done.exception() is None:
                self._metrics.fetched_bytes.inc(fragment.end - fragment.begin)
                self._note_local(fragment)

        return note

    def _fetch(self, fragment: SealedFragment) -> None:
        stored = fragment.stored
        assert stored is not None, "the fragment is not published"
        try:
            store = self._stores.at(stored.store)
        except ValidationError as error:
            raise OSError(errno.EINVAL, str(error)) from error
        where = f"{stored.store}{stored.key}"
        if store is None:
            raise OSError(errno.EIO, f"{where} is in a store that this broker does not serve")
        self._parts.free_space.require(fragment.end - fragment.begin)
        # A name of its own, because the fetch of a broker that has stopped may still be at work.
        temporary = fragment.path.with_name(f".{fragment.path.name}.{uuid4().hex}{FETCHED_SUFFIX}")
        try:
            with temporary.open("wb") as target:
                decode_to_file(
                    fragment, self._while_running(store.pieces(stored.key)), target, stored.codec
                )
                target.flush()
                # A file with the final name is believed to be whole.
                self._parts.disk.sync_data(target.fileno())
            os.utime(temporary, (fragment.mod_time, fragment.mod_time))
            with self._landing:
                self._require_running()
                temporary.rename(fragment.path)
        except FileNotFoundError as error:
            raise MissingCopyError(errno.EIO, f"{where} is not in its store") from error
        except DamagedContentError as error:
            raise DamagedContentError(error.begin, error.end, where=f"in {where}") from error
        except ExtraMissingError as error:
            raise OSError(errno.ENOSYS, f"{where} cannot be decompressed: {error}") from error
        finally:
            temporary.unlink(missing_ok=True)

    def _while_running(self, pieces: Iterable[bytes]) -> Iterator[bytes]:
        for piece in pieces:
            self._require_running()
            yield piece

    def _require_running(self) -> None:
        if self._stopping:
            raise _stopped()

    def _note_local(self, fragment: SealedFragment) -> None:
        """Note the use of a published fragment's local file; remove others if they have become too many bytes."""
        bound = self._parts.local_bytes_max
        if bound is None:
            return
        self._drop_local(fragment.path)
        self._local[fragment.path] = fragment.end - fragment.begin
        self._local_bytes += fragment.end - fragment.begin
        gone: list[Path] = []
        # The newest one is about to be read.
        while self._local_bytes > bound and len(self._local) > 1:
            path = next(iter(self._local))
            self._drop_local(path)
            gone.append(path)
        if gone:
            self._parts.disk.submit(partial(self._parts.spares.retire, gone))

    def _drop_local(self, path: Path) -> None:
        self._local_bytes -= self._local.pop(path, 0)

    def _submit(self, function: Callable[[], T]) -> asyncio.Future[T]:
        """Start a blocking operation, which a stop of the broker gives up; none is started after it."""
        self._require_running()
        job = self._threads.submit(function)
        self._jobs.add(job)
        job.add_done_callback(self._jobs.discard)
        return job

    async def stop(self) -> None:
        """Give operations in progress a moment, then fail those that remain: a store may take minutes to fail."""
        with self._landing:
            self._stopping = True
        if self._jobs:
            await asyncio.wait(list(self._jobs), timeout=STOP_SECONDS)
        for job in list(self._jobs):
            if not job.done():
                job.set_exception(_stopped())

    def close(self) -> None:
        """End the threads; one that is still at work ends with its job."""
        with self._landing:
            self._stopping = True
        self._threads.close(waits=False)


def _stopped() -> OSError:
    return OSError(errno.ECANCELED, "the broker stops")


def _lists_any(store: FragmentStore, journal: str) -> bool:
    listing = store.listing(f"{journal}/")
    return any(not each.key.endswith(f"/{LINEAGE_OBJECT}") for each in listing)


def _is_of_other(journal: str, where: str, others: Set[str]) -> bool:
    """Tell whether a folder below a journal's belongs to another journal, whose name goes on after this one's."""
    while len(where) > len(journal):
        if where in others:
            return True
        where = where.rpartition("/")[0]
    return False


def _local_ones(fragments: Sequence[SealedFragment]) -> list[SealedFragment]:
    return [each for each in fragments if each.path.exists()]
