"""Background work: flush intervals, background syncs, retention, verification.

Source: gazette/core broker/replica.go (the pulse), docs of JournalSpec.Fragment (flush_interval, retention).
"""

from __future__ import annotations

import asyncio
from itertools import takewhile

import structlog

from broadsheet.broker.config import SyncMode
from broadsheet.broker.fragment_sums import files_of
from broadsheet.broker.journal import LiveJournal, Site
from broadsheet.broker.journals import Journals, Served
from broadsheet.broker.store import JournalStoreError

NOTE_SECONDS = 5.0
"""Interval at which heads are noted. An older copy of a journal's files, or a log that was cut, is noticed if it ends
before the last one that was noted.
"""
_log = structlog.get_logger()


class Maintenance:
    """Periodic maintenance of the journals."""

    def __init__(self, site: Site, journals: Journals) -> None:
        self._site = site
        self._journals = journals

    async def run(self) -> None:
        """Seal and delete fragments that are due; never returns."""
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
        """Sync journals in the background, if that is the policy; never returns in that case."""
        durability = self._site.config.durability
        if durability.mode is not SyncMode.INTERVAL:
            return
        while True:
            await asyncio.sleep(durability.interval_seconds)
            for served in self._journals:
                store = served.journal.store
                if store is not None and store.has_unsynced:
                    served.committer.request_sync()

    async def run_notes(self) -> None:
        """Have the catalogue remember how far journals have come, now and then; never returns."""
        while True:
            await asyncio.sleep(NOTE_SECONDS)
            await self.note_heads()

    async def note_heads(self) -> None:
        """Note the heads of all journals that have moved on; one sync for all of them."""
        catalogue = self._site.catalogue
        loaded = [each.journal for each in self._journals if each.journal.is_loaded]
        moved = [
            (journal.entry, journal.view.head)
            for journal in loaded
            if not journal.deleted and journal.view.head > (catalogue.least_head(journal.name) or 0)
        ]
        if not moved:
            return
        try:
            await catalogue.note_heads(moved)
        except OSError as error:
            # Tried again with the next heads: what is noted is a lower bound anyway.
            _log.warning("catalogue.heads_not_noted", detail=str(error))

    def _is_flush_due(self, journal: LiveJournal, *, since: float) -> bool:
        """Tell whether a flush was due since the last check; flush intervals are counted from the Unix epoch."""
        window = journal.entry.spec.fragment.flush_interval.ToTimedelta().total_seconds()
        if not window or journal.open_span() is None:
            return False
        return since // window != self._site.clock.wall_seconds() // window

    async def _retire(self, served: Served) -> None:
        """Delete sealed fragments that are past the journal's retention, but never the newest."""
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
            # Without this record, the next start would take them for lost.
            await served.committer.declare_beginning(expired[-1].end)
        except JournalStoreError as error:
            _log.warning("retention.failed", journal=journal.name, detail=str(error))
            return
        try:
            async with self._site.publisher.withdrawing(journal, expired) as withdraw:
                for fragment in expired:
                    await withdraw(fragment)
                    await self._site.disk.run(self._site.spares.retire, files_of([fragment]))
                    _log.info(
                        "fragment.expired",
                        journal=journal.name,
                        begin=fragment.begin,
                        end=fragment.end,
                    )
        except OSError as error:
            # Tried again with the next check.
            _log.warning("retention.failed", journal=journal.name, detail=str(error))
