"""What happens without a client: flush intervals, background syncs, retention.

Source: gazette/core broker/replica.go (the pulse), docs of JournalSpec.Fragment (flush_interval, retention).
"""

from __future__ import annotations

import asyncio
from itertools import takewhile

import structlog

from consumer.journal.broker.config import SyncMode
from consumer.journal.broker.fragment_sums import files_of
from consumer.journal.broker.fragments import SealedFragment
from consumer.journal.broker.journal import LiveJournal, Site
from consumer.journal.broker.journals import Journals, Served
from consumer.journal.broker.store import StoreError

logger = structlog.get_logger()


class Maintenance:
    """Looks after journals at intervals."""

    def __init__(self, site: Site, journals: Journals) -> None:
        self._site = site
        self._journals = journals

    async def run(self) -> None:
        """Roll and delete what is due; returns never."""
        interval = self._site.config.maintenance_interval_seconds
        while True:
            last = self._site.clock.wall_seconds()
            await asyncio.sleep(interval)
            for served in self._journals:
                journal = served.journal
                if not journal.is_loaded or journal.deleted:
                    continue
                if self._is_flush_due(journal, since=last):
                    served.committer.request_roll()
                if self._site.config.retention_enabled:
                    await self._retire(served)

    async def run_syncs(self) -> None:
        """Sync journals in the background, if that is the policy; returns never then."""
        durability = self._site.config.durability
        if durability.mode is not SyncMode.INTERVAL:
            return
        while True:
            await asyncio.sleep(durability.interval_seconds)
            for served in self._journals:
                store = served.journal.store
                if store is not None and store.has_unsynced:
                    served.committer.request_sync()

    def _is_flush_due(self, journal: LiveJournal, *, since: float) -> bool:
        """Tell whether the time since the last look crossed a window of the flush interval, counted from the epoch."""
        window = journal.entry.spec.fragment.flush_interval.ToTimedelta().total_seconds()
        if not window or journal.open_span() is None:
            return False
        return since // window != self._site.clock.wall_seconds() // window

    async def _retire(self, served: Served) -> None:
        """Delete sealed fragments that are older than the journal keeps, but never the newest."""
        journal = served.journal
        retention = journal.entry.spec.fragment.retention.ToTimedelta().total_seconds()
        if retention <= 0:
            return
        horizon = self._site.clock.wall_seconds() - retention
        fragments = list(journal.index)[:-1]
        expired = list(takewhile(lambda fragment: fragment.mod_time <= horizon, fragments))
        if not expired:
            return
        try:
            # Without the note, the next start would take them for lost.
            await served.committer.declare_beginning(expired[-1].end)
        except StoreError as error:
            logger.warning("fragments.not_expired", journal=journal.name, detail=str(error))
            return
        for fragment in expired:
            await self._delete(journal, fragment)

    async def _delete(self, journal: LiveJournal, fragment: SealedFragment) -> None:
        # The index first: a reader that already holds the file finishes with it.
        journal.index.remove(fragment)
        await self._site.disk.run(self._site.spares.retire, files_of([fragment]))
        logger.info(
            "fragment.expired", journal=journal.name, begin=fragment.begin, end=fragment.end
        )
