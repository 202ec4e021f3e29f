"""A follower of the files that a standby plays: it takes in what they hold, so that a promotion finds that done.

    play thread     a step is played ─► links to files that are new
    event loop                           └─► has the follow thread called, unless it is at work
    follow thread                             └─► follower.follow(links), until it has taken in all that is linked

The player goes on changing, naming and removing its files. A follower sees links of its own: the link of a removed file
stays until the follower was called once more, so it misses nothing of a file that was there at the end of a step.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
from collections.abc import Collection
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import structlog

from broadsheet.consumer.errors import RecoveryLogError
from broadsheet.consumer.recoverylog.fsm import FileStateMachine

LINKS: Final = ".followed"
"""Directory of the links, beside the player's files."""
RETRY_SECONDS: Final = 5.0
"""Time after which a follower that failed begins again; it doubles with each failure in a row."""
_RETRY_SECONDS_MAX: Final = 300.0
_DOUBLINGS_MAX: Final = 10
_log = structlog.get_logger()


class StandbyFollower(Protocol):
    """Keeps something current with a standby's files: an index that its store needs when it is promoted.

    `follow` and `reset` are called on one thread; `stop` and `discard` on any.
    """

    def follow(self, files: Path) -> None:
        """Take in what the files below a directory hold by now; called again after they have changed.

        Each file is a prefix of what it will be, at its path in the log. May end early after `stop`.
        """
        ...

    def reset(self) -> None:
        """Forget what was taken in: its files are played once more, for the log had a fork, or `follow` has failed."""
        ...

    def stop(self) -> None:
        """Have `follow` end soon, because the log is taken over. Idempotent."""
        ...

    def discard(self) -> None:
        """Release what the shard's store has not taken over; the last call. Idempotent."""
        ...


@dataclass(slots=True, eq=False)
class _Wait:
    through: int
    reached: asyncio.Future[bool]


class FollowedFiles:
    """The links to one playback's files, and the thread on which a follower reads them."""

    def __init__(
        self,
        directory: Path,
        staging: Path,
        log: str,
        follower: StandbyFollower,
        *,
        retry_seconds: float = RETRY_SECONDS,
    ) -> None:
        """Start nothing yet; on the event loop.

        Args:
            directory: Of the player's files.
            staging: Holds them by fnode.
            log: Named by errors.
            follower: Reads them.
            retry_seconds: Time after which it begins again, if it failed once.
        """
        self._retry_seconds = retry_seconds
        self._failures = 0
        """In a row."""
        self._links = directory / LINKS
        self._staging = staging
        self._log = log
        self._follower = follower
        self._loop = asyncio.get_running_loop()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="follow")
        self._lock = threading.Lock()
        """Guards what follows, but for `_waits`."""
        self._linked: dict[str, int] = {}
        """Fnode by path, of the links that stand for files."""
        self._gone: set[str] = set()
        """Paths whose files are removed, and whose links are not yet."""
        self.linked_to = -1
        """Offset of the log that was played when the links were made, bytes."""
        self._followed_to = -1
        self._is_over = False
        self._is_following = False
        """The thread is at work, or will be."""
        self._waits: list[_Wait] = []

    def link(self, fsm: FileStateMachine, played_to: int) -> None:
        """Link what is new, and wake the follower. Call it on the player's thread, between two steps, at or behind the
        first head: before that, files of the past are missing.

        Args:
            fsm: The files as of `played_to`.
            played_to: Offset of the log, bytes.

        Raises:
            RecoveryLogError: a path is not a file below the directory.
            OSError: as of the disk.
        """
        with self._lock:
            self.linked_to = played_to
            if self._is_over:
                return
            self._links.mkdir(exist_ok=True)
            for path, fnode in fsm.links.items():
                if self._linked.get(path) != fnode:
                    self._link(path, fnode)
            for path in self._linked.keys() - fsm.links.keys():
                del self._linked[path]
                self._gone.add(path)
        self._loop.call_soon_threadsafe(self._follow_soon)

    async def through(self, played_to: int) -> bool:
        """Wait until the follower has taken in what was played up to an offset of the log; False if it ends first."""
        if self._is_over or self._failures:
            return False
        wait = _Wait(played_to, self._loop.create_future())
        self._waits.append(wait)
        self._settle()
        try:
            return await wait.reached
        finally:
            self._waits.remove(wait)

    def stop(self) -> None:
        """Have the follower stop, without waiting for it; on the event loop. Idempotent."""
        with self._lock:
            self._is_over = True
        self._follower.stop()
        self._settle()

    def end(self) -> None:
        """End the thread, and remove the links; on any thread. Blocks until a call of the follower ends.

        Requires:
            `stop` was called: a thread that has ended takes no work.
        """
        self._thread.shutdown()
        shutil.rmtree(self._links, ignore_errors=True)
        self._loop.call_soon_threadsafe(self._settle)

    def _link(self, path: str, fnode: int) -> None:
        target = self._links / path.lstrip("/")
        if ".." in target.parts or "\0" in path or target == self._links:
            raise RecoveryLogError(
                self._log, f"path {path!r} is no file below the store's directory"
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        target.unlink(missing_ok=True)
        os.link(self._staging / str(fnode), target)
        self._linked[path] = fnode
        self._gone.discard(path)

    def _follow_soon(self) -> None:
        """Have the thread follow, if there is something new; on the event loop."""
        with self._lock:
            if self._is_over or self._is_following or self.linked_to <= self._followed_to:
                return
            self._is_following = True
        following = self._loop.run_in_executor(self._thread, self._follow)
        following.add_done_callback(lambda _: self._on_followed())

    def _on_followed(self) -> None:
        if self._failures:
            # Who waits is not kept waiting for a disk that somebody must make room on.
            self._refuse()
            seconds = self._retry_seconds * 2.0 ** min(self._failures - 1, _DOUBLINGS_MAX)
            self._loop.call_later(min(seconds, _RETRY_SECONDS_MAX), self._go_on)
            return
        self._go_on()

    def _go_on(self) -> None:
        with self._lock:
            self._is_following = False
        self._settle()
        self._follow_soon()

    def _follow(self) -> None:
        """Have the follower take in what is linked; on the thread."""
        with self._lock:
            through, gone = self.linked_to, set(self._gone)
            if self._is_over:
                return
        try:
            if self._failures:
                # What it has may be what failed, such as a database whose disk was full.
                self._follower.reset()
                if self._ends():
                    return  # It was stopped, perhaps before it was reset.
            self._follower.follow(self._links)
        except Exception as error:
            # Not lost: the store of a promoted standby reads the files itself, and tells of what is wrong with them.
            self._failures += 1
            _log.warning("recovery_log.follow_failed", log=self._log, error=str(error))
            with self._lock:
                # It begins again without them, and they may be what fills the disk.
                self._remove(gone)
            return
        self._failures = 0
        self._note_followed(through, gone)

    def _ends(self) -> bool:
        with self._lock:
            return self._is_over

    def _note_followed(self, through: int, gone: Collection[str]) -> None:
        """Note how far it has come, unless it was stopped, perhaps on its way."""
        with self._lock:
            if self._is_over:
                return
            self._remove(gone)
            self._followed_to = through

    def _remove(self, gone: Collection[str]) -> None:
        """Remove the links of files that are removed, unless they stand for others by now; under the lock."""
        for path in self._gone.intersection(gone):
            (self._links / path.lstrip("/")).unlink(missing_ok=True)
            self._gone.discard(path)

    def _settle(self) -> None:
        """Answer those who wait; on the event loop."""
        for wait in self._waits:
            if wait.reached.done():
                continue
            if self._followed_to >= wait.through:
                wait.reached.set_result(True)
            elif self._is_over:
                wait.reached.set_result(False)

    def _refuse(self) -> None:
        for wait in self._waits:
            if not wait.reached.done():
                wait.reached.set_result(False)
