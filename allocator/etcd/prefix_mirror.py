"""The undecoded contents of a small etcd prefix, kept up to date.

It holds the few keys outside a root that a key space does not. Contents and revision change together, in one step; if a
compaction removes history that the watch needs, everything is read again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import aclosing

import structlog

from broadsheet.allocator.errors import EtcdUnavailableError, RevisionCompactedError
from broadsheet.allocator.etcd.api import Etcd, KeyDeleted, KeyPut, WatchBatch
from broadsheet.allocator.ops import KeyValue, prefix_range_end
from broadsheet.runtime.backoff import Backoff

_log = structlog.get_logger()


class PrefixMirror:
    """Keys below one prefix; `watch` loads and follows them."""

    def __init__(
        self, etcd: Etcd, prefix: bytes, *, on_update: Callable[[], None], backoff: Backoff
    ) -> None:
        """Prepare; nothing is read yet.

        Args:
            etcd: Where the keys are.
            prefix: The bytes that they start with.
            on_update: Called after every change of the contents, the first load included.
            backoff: Delays between attempts to load.
        """
        self._etcd = etcd
        self._prefix = prefix
        self._on_update = on_update
        self._backoff = backoff
        self._kvs: dict[bytes, KeyValue] = {}
        self._loaded = asyncio.Event()
        self._resume_revision = 0
        self.revision = 0
        """The revision of the contents; 0 before the first load."""

    @property
    def kvs(self) -> Mapping[bytes, KeyValue]:
        """Key-values by key. Read only."""
        return self._kvs

    async def wait_until_loaded(self) -> None:
        """Wait for the first load."""
        await self._loaded.wait()

    async def watch(self) -> None:
        """Load the keys, and follow etcd for ever."""
        while True:
            await self._load()
            try:
                watch = self._etcd.watch(self._prefix, start_revision=self._resume_revision)
                async with aclosing(watch) as batches:
                    async for batch in batches:
                        self._apply(batch)
            except RevisionCompactedError as error:
                _log.warning("prefix_mirror.compacted", prefix=self._prefix, cause=str(error))

    async def _load(self) -> None:
        while True:
            try:
                result = await self._etcd.get_range(self._prefix, prefix_range_end(self._prefix))
            except EtcdUnavailableError as error:
                _log.warning("prefix_mirror.load_failed", prefix=self._prefix, cause=str(error))
            else:
                break
            await self._backoff.sleep()
        self._backoff.reset()
        self._kvs = {kv.key: kv for kv in result.kvs}
        self.revision = result.header.revision
        self._resume_revision = self.revision + 1
        self._loaded.set()
        self._on_update()

    def _apply(self, batch: WatchBatch) -> None:
        self._resume_revision = max(self._resume_revision, batch.header.revision + 1)
        # A progress notification: it moves only the resume point.
        if not batch.events:
            return
        for event in batch.events:
            match event:
                case KeyPut(kv):
                    self._kvs[kv.key] = kv
                case KeyDeleted(key, _):
                    self._kvs.pop(key, None)
        self.revision = batch.header.revision
        self._on_update()
