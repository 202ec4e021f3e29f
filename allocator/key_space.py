"""A live, decoded mirror of everything below one etcd root.

Invariants:

* Contents, header and observers' derived state change together, in one synchronous step, so code that reads them
  without an `await` in between sees one revision.
* Observers run in the order of their `ObserverStage`, whatever the order of their registration.
* `header.revision` is the newest change below the root (or the revision loaded), never only the store's, so it means
  the same in every process.
* Revisions only grow, and come from one cluster; anything else is a fatal error.

The first change after a quiet time is applied at once. Those that follow within `apply_delay_seconds` are applied
together at its end, so that a burst costs its observers one pass and a lone change costs no wait. `read_back` ends the
delay early.

Source: gazette/core keyspace/key_space.go. Ours: the first change is applied at once, a compaction leads to a reload,
and the watched prefix ends with a slash.
"""

from __future__ import annotations

import asyncio
from bisect import insort_right
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from enum import IntEnum
from operator import itemgetter

import structlog
from sortedcontainers import SortedDict

from broadsheet.allocator.errors import (
    ClusterMismatchError,
    EtcdUnavailableError,
    KeySpaceError,
    RevisionCompactedError,
)
from broadsheet.allocator.etcd.api import (
    Etcd,
    Header,
    KeyDeleted,
    KeyPut,
    RangeResult,
    WatchBatch,
    mod_revision_of,
)
from broadsheet.allocator.keys import Keys
from broadsheet.allocator.model import Assignment, Item, ItemId, Member, MemberId
from broadsheet.allocator.ops import KeyValue, prefix_range_end
from broadsheet.allocator.state.mirror import Changes, Decoder as Decoder, Mirror
from broadsheet.runtime.backoff import Backoff
from broadsheet.runtime.task_group import TaskGroup

APPLY_DELAY_SECONDS = 0.03
"""Source: gazette/core, flag `watch-delay`."""
DECODED_AT_ONCE = 256
"""Keys that are decoded before other tasks run: about 5 ms."""
QUEUED_BATCHES_MAX = 1_024
"""Batches that wait to be applied; a full queue blocks the watch's stream, and so its sender."""

_log = structlog.get_logger()
_NOT_LOADED = Header(cluster_id=0, member_id=0, revision=0, raft_term=0)


class ObserverStage(IntEnum):
    """The stages in which observers of a key space run after every change; observers of one stage are independent."""

    DERIVE = 1
    """Bring up to date what is computed from contents and changes, and read by the later stages."""
    ACT = 2
    """Start, stop, record or close something."""
    WAKE = 3
    """Wake tasks and watchers, which see all that the stages before have done."""


class KeySpace:
    """Items, members and assignments below a root, kept up to date by `watch`."""

    def __init__(
        self,
        etcd: Etcd,
        keys: Keys,
        decoder: Decoder,
        *,
        apply_delay_seconds: float = APPLY_DELAY_SECONDS,
    ) -> None:
        self._etcd = etcd
        self._keys = keys
        self._mirror = Mirror(keys, decoder)
        self._apply_delay_seconds = apply_delay_seconds
        self._observers: list[tuple[ObserverStage, Callable[[], None]]] = []
        """By stage."""
        self._updated = asyncio.Event()
        self._hurried = asyncio.Event()
        """Set while somebody waits for an own write, for whose sake nothing is held back."""
        self._resume_revision = 0
        self._decodings = 0
        """Times that all members were decoded again."""
        self.header = _NOT_LOADED
        self.changes = Changes()
        """Differences from the previous step, so that observers need not examine everything."""

    @property
    def keys(self) -> Keys:
        """The syntax of the keys mirrored."""
        return self._keys

    @property
    def items(self) -> SortedDict[ItemId, Item]:
        """Items by id. Read only."""
        return self._mirror.items

    @property
    def members(self) -> SortedDict[MemberId, Member]:
        """Members by zone and suffix. Read only."""
        return self._mirror.members

    @property
    def assignments(self) -> SortedDict[tuple[ItemId, MemberId, int], Assignment]:
        """Assignments by item, member and slot. Read only."""
        return self._mirror.assignments

    @property
    def undecodable(self) -> Mapping[bytes, str]:
        """Keys below the root that cannot be decoded, and the reasons."""
        return self._mirror.problems()

    def assignments_of(self, item_id: ItemId) -> list[Assignment]:
        """Return the assignments of an item, by member and slot."""
        return self._mirror.assignments_of(item_id)

    def kv_or_none(self, key: bytes) -> KeyValue | None:
        """Return a key as etcd has it, decodable or not."""
        return self._mirror.kv_or_none(key)

    def observe(self, stage: ObserverStage, callback: Callable[[], None]) -> None:
        """Call `callback` synchronously after every change, before tasks that wait for one wake.

        Args:
            stage: Observers of earlier stages have run by then, also if they are registered later.
            callback: Must not rely on other observers of its stage.
        """
        insort_right(self._observers, (stage, callback), key=itemgetter(0))

    def decode_members_again(self) -> None:
        """Decode every member again and notify the observers: the decoder judges them by something that has changed."""
        if self.header is _NOT_LOADED:
            return
        self._decodings += 1
        self._mirror.decode_members_again()
        self._publish(self.header)

    async def load(self, *, revision: int = 0) -> None:
        """Read everything as of one revision (0: the newest) and notify the observers once.

        On a loaded key space this is a reload: differences are applied as if they had been watched.

        Raises:
            RevisionCompactedError: etcd no longer has that revision.
            EtcdUnavailableError: etcd does not answer.
        """
        prefix = self._keys.watched_prefix
        result = await self._etcd.get_range(prefix, prefix_range_end(prefix), revision=revision)
        for _ in self._replacing(result):
            # A large key space takes seconds, longer than a lease on a busy machine; keep-alives go on meanwhile.
            await asyncio.sleep(0)

    def replace(self, result: RangeResult) -> None:
        """Set the contents to `result`, a read of the whole root, in one step."""
        for _ in self._replacing(result):
            continue

    def _replacing(self, result: RangeResult) -> Iterator[None]:
        """Set the contents to `result` in one step; yield to other tasks while that step is prepared."""
        self._check_cluster(result.header)
        # Only another history has a lower revision, and what was derived from this one would be wrong.
        if result.header.revision < self.header.revision:
            raise KeySpaceError(
                f"etcd went back: read revision {result.header.revision} after {self.header.revision}"
            )
        before, decodings = self._mirror, self._decodings
        reload = before.reload()
        for begin in range(0, len(result.kvs), DECODED_AT_ONCE):
            for kv in result.kvs[begin : begin + DECODED_AT_ONCE]:
                self._note_problem(kv, reload.take(kv))
            yield
        assert self._mirror is before, "a key space was reloaded while it was reloaded"
        self._mirror = reload.finish()
        if self._decodings != decodings:
            # Meanwhile; the reload has copied some members as they were before.
            self._mirror.decode_members_again()
        self._publish(result.header)
        self._resume_revision = result.header.revision + 1

    def apply(self, batches: Sequence[WatchBatch]) -> None:
        """Apply a delivery of the watch, in order and in one step.

        Raises:
            KeySpaceError: revisions do not grow.
            ClusterMismatchError: the events are another cluster's.
        """
        revision = self.header.revision
        newest: Header | None = None
        for batch in batches:
            self._check_cluster(batch.header)
            self._resume_revision = max(self._resume_revision, batch.header.revision + 1)
            if not batch.events:
                # A progress notification: it moves the resume point, but changes nothing below the root.
                continue
            revision = self._apply_events(batch, after_revision=revision)
            newest = batch.header
        if newest is not None:
            self._publish(newest)

    async def watch(self) -> None:
        """Follow etcd for ever, after `load`. Lost history leads to a reload.

        Raises:
            KeySpaceError: etcd contradicts itself.
            ClusterMismatchError: another cluster answers.
        """
        assert self.header is not _NOT_LOADED, "load before watch"
        while True:
            try:
                await self._follow()
            except RevisionCompactedError as error:
                _log.warning("key_space.compacted", root=self._keys.root, cause=str(error))
                await self._reload()

    async def wait_for_revision(self, revision: int) -> None:
        """Wait until changes up to `revision` are applied.

        The revision must have changed a key below the root, for example by our own write: other revisions are never
        seen, and a wait for one never ends. Callers that cannot be sure set a deadline.
        """
        while self.header.revision < revision:
            await self._updated.wait()

    async def read_back(self, revision: int) -> None:
        """Wait until our own write, made at `revision`, is applied; the delay of bursts is skipped for it.

        For callers that make one write after another and wait for each, like a batch of an Apply: with the delay, each
        would take `apply_delay_seconds`.
        """
        self._hurried.set()
        await self.wait_for_revision(revision)

    async def catch_up(self, *, timeout_seconds: float) -> bool:
        """Wait until everything is applied that etcd held when this was called; False if that takes too long.

        Args:
            timeout_seconds: Longest wait, without that for etcd's answer.

        Raises:
            EtcdUnavailableError: etcd did not answer.
        """
        newest = await self._etcd.newest_revision(self._keys.watched_prefix)
        try:
            async with asyncio.timeout(timeout_seconds):
                await self.wait_for_revision(newest)
        except TimeoutError:
            return False
        return True

    async def wait_for_update(self, after_revision: int | None = None) -> None:
        """Wait for the next change; with `after_revision`, for a newer state, which may already be here."""
        if after_revision is None:
            await self._updated.wait()
        else:
            await self.wait_for_revision(after_revision + 1)

    async def _follow(self) -> None:
        """Watch from the current revision until the stream of changes ends, which only an error causes."""
        queue: asyncio.Queue[WatchBatch] = asyncio.Queue(QUEUED_BATCHES_MAX)
        async with TaskGroup() as group:
            group.start_soon(self._receive(queue), name="key space receive")
            group.start_soon(self._apply_queued(queue), name="key space apply")

    async def _receive(self, queue: asyncio.Queue[WatchBatch]) -> None:
        watch = self._etcd.watch(self._keys.watched_prefix, start_revision=self._resume_revision)
        async with aclosing(watch) as batches:
            async for batch in batches:
                await queue.put(batch)

    async def _apply_queued(self, queue: asyncio.Queue[WatchBatch]) -> None:
        while True:
            batches = [await queue.get()]
            while not queue.empty():
                batches.append(queue.get_nowait())
            self.apply(batches)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._apply_delay_seconds):
                    await self._hurried.wait()
            self._hurried.clear()

    async def _reload(self) -> None:
        backoff = Backoff()
        while True:
            try:
                return await self.load()
            except (EtcdUnavailableError, RevisionCompactedError) as error:
                _log.warning("key_space.reload_failed", root=self._keys.root, cause=str(error))
            await backoff.sleep()

    def _apply_events(self, batch: WatchBatch, *, after_revision: int) -> int:
        """Apply a batch's events and return the revision of the last."""
        revision = mod_revision_of(batch.events[0])
        if revision <= after_revision:
            raise KeySpaceError(
                f"etcd repeated itself: an event of revision {revision} after {after_revision}"
            )
        for event in batch.events:
            if mod_revision_of(event) < revision:
                raise KeySpaceError(
                    f"etcd went back: an event of revision {mod_revision_of(event)} after {revision}"
                )
            revision = mod_revision_of(event)
            match event:
                case KeyPut(kv):
                    self._put((kv,))
                case KeyDeleted(key, _):
                    self._mirror.delete(key)
        return revision

    def _put(self, kvs: Iterable[KeyValue]) -> None:
        for kv in kvs:
            self._note_problem(kv, self._mirror.put(kv))

    @staticmethod
    def _note_problem(kv: KeyValue, problem: str | None) -> None:
        if problem is not None:
            _log.warning(
                "key_space.undecodable",
                key=kv.key.decode(errors="replace"),
                mod_revision=kv.mod_revision,
                problem=problem,
            )

    def _check_cluster(self, header: Header) -> None:
        if self.header is not _NOT_LOADED and header.cluster_id != self.header.cluster_id:
            raise ClusterMismatchError(self.header.cluster_id, header.cluster_id)

    def _publish(self, header: Header) -> None:
        self.header = header
        self.changes = self._mirror.take_changes()
        for _, observer in self._observers:
            observer()
        # A new event for the next change: those that wait from now on must not find this one set.
        updated, self._updated = self._updated, asyncio.Event()
        updated.set()
