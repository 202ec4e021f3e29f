"""The served journals: opened at their first use, closed when deleted."""

from __future__ import annotations

import asyncio
import resource
import shutil
from collections.abc import Callable, Iterator, Set
from contextlib import AsyncExitStack
from dataclasses import dataclass

import structlog

from broadsheet.broker.catalogue import CatalogueEntry, CatalogueUpdate
from broadsheet.broker.committer import Committer
from broadsheet.broker.data_root import DataRoot
from broadsheet.broker.journal import LiveJournal, Site
from broadsheet.runtime.open_files import OPEN_FILES_MAX

_log = structlog.get_logger()


RESERVED_FILES = 256
"""Open files that are left to connections, fragments that are read, and content that is received."""
FILES_PER_JOURNAL = 2
OPEN_JOURNALS_LEAST = 16


def open_journals_max() -> int:
    """Return how many journals may be open at a time under this process's limit of open files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = OPEN_FILES_MAX if soft == resource.RLIM_INFINITY else soft
    return max(OPEN_JOURNALS_LEAST, (limit - RESERVED_FILES) // FILES_PER_JOURNAL)


@dataclass(frozen=True, slots=True)
class Served:
    """A journal and the committer of its appends."""

    journal: LiveJournal
    committer: Committer


class Journals:
    """Live journals by name; follows the catalogue."""

    def __init__(
        self,
        site: Site,
        root: DataRoot,
        names: Callable[[], Set[str]],
        *,
        open_max: int | None = None,
    ) -> None:
        """Begin with none.

        Args:
            site: What they share.
            root: The data directory.
            names: Returns the names of the catalogue.
            open_max: Journals open at a time, unless more are in use; None: as many as the limit of open files permits.
        """
        self._open_max = open_journals_max() if open_max is None else open_max
        self._making_room = asyncio.Lock()
        self._site = site
        self._names = names
        self._root = root
        self._served: dict[str, Served] = {}
        self.stopping = False
        """True while the broker stops: blocked readers and watchers end."""

    def __iter__(self) -> Iterator[Served]:
        return iter(list(self._served.values()))

    def get(self, entry: CatalogueEntry) -> Served:
        """Return the live journal of a catalogue entry."""
        name = entry.spec.name
        served = self._served.get(name)
        if served is None:
            directory = self._root.journal_directory(name, entry.create_revision)
            journal = LiveJournal(self._site, entry, directory, names=self._names)
            served = self._served[name] = Served(journal, Committer(self._site, journal))
        return served

    async def make_room(self) -> None:
        """Close the files of journals that no request uses, least recently used first, for one that is opened next."""
        async with self._making_room:
            surplus = sum(each.journal.is_loaded for each in self) - self._open_max + 1
            if surplus <= 0:
                return
            idle = [each for each in self if each.journal.may_rest and each.committer.is_idle]
            idle.sort(key=lambda each: each.journal.used_at)
            for each in idle[:surplus]:
                # A request may have come while others were closed.
                if each.journal.may_rest and each.committer.is_idle:
                    await each.journal.rest()
                    _log.debug("journal.rested", journal=each.journal.name)

    def on_update(self, update: CatalogueUpdate) -> None:
        """Follow a transaction: new specs take effect, deleted journals end."""
        for entry in update.removed:
            served = self._served.pop(entry.spec.name, None)
            if served is not None:
                served.journal.deleted = True
                served.journal.changed.notify()
            self._site.group.start_soon(self._bury(entry, served), name=f"delete:{entry.spec.name}")
        for entry in update.put:
            served = self._served.get(entry.spec.name)
            if served is not None:
                served.journal.entry = entry
                # Its fragments may have got a store, or another one.
                self._site.publisher.offer(served.journal, list(served.journal.index))
                served.journal.changed.notify()

    async def _bury(self, entry: CatalogueEntry, served: Served | None) -> None:
        """Move a deleted incarnation to the trash, then remove it."""
        if served is not None:
            await served.committer.drain()
            await served.journal.close()
        directory = self._root.journal_directory(entry.spec.name, entry.create_revision)
        try:
            await self._site.disk.run(self._remove, directory.name)
        except OSError as error:
            # Without a catalogue entry, the next start removes the directory.
            _log.warning("journal.removal_failed", journal=entry.spec.name, detail=str(error))

    def _remove(self, name: str) -> None:
        source, target = self._root.journals / name, self._root.trash / name
        if source.exists():
            source.rename(target)
            self._site.spares.retire([*target.glob("*.raw"), *target.glob("*.open")])
            shutil.rmtree(target)

    def wake_all(self) -> None:
        """Wake all blocked readers."""
        for served in self:
            served.journal.changed.notify()

    async def close(self) -> None:
        """Finish queued commits and close every journal, also after one that fails."""
        async with AsyncExitStack() as steps:
            for served in self:
                steps.push_async_callback(served.journal.close)
                steps.push_async_callback(served.committer.drain)
        self._served.clear()
