"""Verification of sealed fragments: checksums for readers, and verdicts on damaged ones."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from typing import NamedTuple
from weakref import WeakValueDictionary

import structlog

from broadsheet.broker.content_file import ContentFile
from broadsheet.broker.disk import Disk
from broadsheet.broker.fragment_sums import Verification, load_sums
from broadsheet.broker.fragments import SealedFragment
from broadsheet.journals.block_sums import BlockSpan, DamagedContentError, StoredSums

Pace = Callable[[int], Awaitable[None]]
Fetch = Callable[[SealedFragment], Awaitable[None]]
FETCHES_MAX = 5
"""Attempts to open a fetched file before it is removed again in favour of others."""

_log = structlog.get_logger()


class _Identity(NamedTuple):
    """Properties of a file that change when its content may have changed."""

    inode: int
    size: int
    ctime_ns: int


class FragmentVerdict(NamedTuple):
    """Result of verifying a whole fragment."""

    damaged: tuple[BlockSpan, ...]
    """Offsets in the file; empty if the fragment is intact."""
    sums: StoredSums | None
    """Checksums of an intact fragment."""


class FragmentChecks:
    """Checksums and verdicts of one broker's sealed fragments. Lives on the event loop."""

    def __init__(self, disk: Disk, fetch: Fetch | None = None) -> None:
        """Begin without any.

        Args:
            disk: File operations.
            fetch: Brings a published fragment back to its local file.
        """
        self._disk = disk
        self._fetch = fetch
        self._sums: WeakValueDictionary[Path, StoredSums] = WeakValueDictionary()
        """Checksums in use by readers."""
        self._running: dict[Path, asyncio.Future[FragmentVerdict]] = {}
        """Verifications in progress, shared by all readers of a fragment."""
        self._damaged: dict[Path, tuple[_Identity, tuple[BlockSpan, ...]]] = {}

    @property
    def damaged_count(self) -> int:
        """Number of fragments found damaged that have been neither found intact nor removed since."""
        return len(self._damaged)

    async def open(self, fragment: SealedFragment) -> ContentFile:
        """Return the file of a fragment, which verifies each read; the caller releases it.

        Raises:
            OSError: it could not be opened.
            DamagedContentError: it has no checksums of its blocks, and is damaged.
        """
        if fragment.stored is None or self._fetch is None:
            return await self._open(fragment)
        for _ in range(FETCHES_MAX):
            try:
                return await self._open(fragment)
            except FileNotFoundError:
                await self._fetch(fragment)
            except DamagedContentError:
                if not await self.heal(fragment):
                    raise
        return await self._open(fragment)

    async def heal(self, fragment: SealedFragment) -> bool:
        """Replace a damaged file by its copy in a store; return whether the fragment is intact now."""
        if fragment.stored is None or self._fetch is None:
            return False
        try:
            await self._fetch(fragment)
            healed = not await self.damage_of(fragment)
        except (OSError, DamagedContentError) as error:
            _log.warning("fragment.not_healed", path=str(fragment.path), detail=str(error))
            return False
        if healed:
            _log.warning("fragment.healed", path=str(fragment.path), store=fragment.stored.store)
        return healed

    async def _open(self, fragment: SealedFragment) -> ContentFile:
        known = self._sums.get(fragment.path)
        file = await self._disk.run_owned(partial(_open, fragment, known), _release)
        if file is None:
            verdict = await self._judge(fragment)
            if verdict.damaged:
                raise DamagedContentError(*verdict.damaged[0])
            file = await self._disk.run_owned(partial(_open, fragment, verdict.sums), _release)
            assert file is not None, "a sound fragment has sums"
        if isinstance(file.sums, StoredSums):
            self._sums[fragment.path] = file.sums
        return file

    async def sums_of(self, fragment: SealedFragment) -> StoredSums | None:
        """Return the checksums of a fragment's blocks; None if the broker has none, and no content to make them of.

        Raises:
            OSError: the disk failed.
        """
        known = self._sums.get(fragment.path) or await self._disk.run(load_sums, fragment)
        if known is not None:
            return known
        try:
            return (await self._judge(fragment)).sums
        except FileNotFoundError:  # only its store has it, or it was removed
            return None

    async def damage_of(self, fragment: SealedFragment) -> tuple[BlockSpan, ...]:
        """Return the damaged spans as offsets in the file; verifies the whole fragment unless its damage is known.

        Raises:
            OSError: the disk failed.
        """
        return (await self._judge(fragment)).damaged

    async def _judge(self, fragment: SealedFragment) -> FragmentVerdict:
        identity = await self._disk.run(_identity_of, fragment.path)
        known = self._damaged.get(fragment.path)
        if known is not None and known[0] == identity:
            return FragmentVerdict(known[1], None)
        running = self._running.get(fragment.path)
        if running is None:
            running = self._running[fragment.path] = self._disk.submit(partial(_verify, fragment))
            running.add_done_callback(self._forget_running(fragment.path))
        verdict = await asyncio.shield(running)
        self.note(fragment, verdict, identity)
        return verdict

    async def verify(self, fragment: SealedFragment, pace: Pace) -> FragmentVerdict:
        """Verify a whole fragment from the disk, slice by slice.

        Args:
            fragment: The fragment.
            pace: Called after each slice with its length, bytes.

        Raises:
            OSError: the disk or the store failed, or the file is gone.
            DamagedContentError: there is only the copy in the store, and that is damaged.
        """
        is_local = fragment.stored is None or await self._disk.run(fragment.path.exists)
        if not is_local and self._fetch is not None:
            await self._fetch(fragment)
        identity = await self._disk.run(_identity_of, fragment.path)
        verification = await self._disk.run_owned(
            partial(Verification, fragment, from_disk=True), Verification.close
        )
        try:
            slices = verification.slices()
            while length := await self._disk.run(next, slices, 0):
                await pace(length)
            verdict = await self._disk.run(_verdict_of, verification)
        finally:
            # Closed in a thread, because a read may still be running.
            self._disk.submit(verification.close)
        self.note(fragment, verdict, identity)
        return verdict

    def _forget_running(self, path: Path) -> Callable[[asyncio.Future[FragmentVerdict]], None]:
        def forget(done: asyncio.Future[FragmentVerdict]) -> None:
            del done
            self._running.pop(path, None)

        return forget

    def note(self, fragment: SealedFragment, verdict: FragmentVerdict, identity: _Identity) -> None:
        """Remember the verdict on a fragment."""
        if verdict.sums is not None:
            self._sums[fragment.path] = verdict.sums
        if not verdict.damaged:
            self._damaged.pop(fragment.path, None)
            return
        if fragment.path not in self._damaged:
            _log.error("fragment.damaged", path=str(fragment.path), spans=verdict.damaged)
        self._damaged[fragment.path] = identity, verdict.damaged

    def forget(self, path: Path) -> None:
        """Forget a fragment that was removed."""
        self._damaged.pop(path, None)


def _open(fragment: SealedFragment, sums: StoredSums | None) -> ContentFile | None:
    """Open a fragment with its checksums; None if they must be made first. Blocking."""
    sums = sums or load_sums(fragment)
    return None if sums is None else ContentFile.open_sealed(fragment.path, sums=sums)


def _release(file: ContentFile | None) -> None:
    if file is not None:
        file.release()


def _identity_of(path: Path) -> _Identity:
    status = path.stat()
    return _Identity(status.st_ino, status.st_size, status.st_ctime_ns)


def _verify(fragment: SealedFragment) -> FragmentVerdict:
    """Verify a whole fragment. Blocking."""
    verification = Verification(fragment)
    try:
        for _ in verification.slices():
            pass
        return _verdict_of(verification)
    finally:
        verification.close()


def _verdict_of(verification: Verification) -> FragmentVerdict:
    damaged = verification.damaged
    return FragmentVerdict(damaged, None if damaged else verification.sums())
