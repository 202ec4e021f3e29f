"""The files of a player: staged by fnode while the log is read, linked to their paths at its end.

    {directory}/.fnodes/{fnode}     while playing: paths may still change, files may still go
    {directory}/...                 once live

Every method blocks on the disk, so call them on a thread, in order.

Source: gazette/core consumer/recoverylog/playback.go (staging).
"""

from __future__ import annotations

import asyncio
import errno
import os
import shutil
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from fcntl import ioctl
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from broadsheet.consumer.errors import RecoveryLogError
from broadsheet.consumer.recoverylog.follower import FollowedFiles, StandbyFollower
from broadsheet.consumer.recoverylog.fsm import FileStateMachine
from broadsheet.consumer.recoverylog.playback import CreateFile, FileChange, RemoveFile, WriteFile
from broadsheet.runtime.file_sync import begin_write_back

STAGING: Final = ".fnodes"
DESCRIPTORS_MAX: Final = 16
"""Staged files held open at a time: a process may stand by for hundreds of shards, and stores write few at once."""
BUFFERS_MAX: Final = 256
"""Maximum contiguous writes that one system call performs; below IOV_MAX of every system."""
WRITE_BACK_BYTES: Final = 256 << 10
"""A run of writes of so many bytes is given to the disk at once, and not left to the system's own time."""
CHUNK_BYTES: Final = 16 << 20
"""Bytes copied at a time; a standby that is being promoted waits for no more than one chunk."""
_FICLONE: Final = 0x40049409
"""The ioctl of Linux that shares a file's blocks until one of the two files is written."""

ResultT = TypeVar("ResultT")


class PlayThread:
    """The thread on which one playback decodes and writes, while the event loop reads ahead; used by one task.

    Decoding and writing share a thread, because two threads would switch the interpreter at every system call.
    """

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="play")

    async def run(self, function: Callable[[], ResultT]) -> ResultT:
        """Return `function()`, run on the thread; it runs to its end even if the caller is cancelled."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, function)

    async def end(self, last: Callable[[], None]) -> None:
        """Run `last` after the current call, and end the thread.

        A cancelled caller waits for that, too, so that no successor finds files that are being removed. A second
        cancellation ends the wait, but `last` runs to its end.
        """
        ending = asyncio.get_running_loop().run_in_executor(self._executor, last)
        self._executor.shutdown(wait=False)
        await asyncio.shield(ending)


@dataclass(frozen=True, slots=True)
class LiveFiles:
    """The files and properties that a copy must hold."""

    paths: Mapping[int, tuple[str, ...]]
    """Paths of each live file, by fnode."""
    properties: Mapping[str, str]


def live_files(fsm: FileStateMachine) -> LiveFiles:
    """Return the current files and properties."""
    paths = {fnode: tuple(node.links) for fnode, node in fsm.fnodes.items()}
    return LiveFiles(paths, dict(fsm.properties))


def copy_files(
    live: LiveFiles, staging: Path, target: Path, *, log: str, is_wanted: Callable[[], bool]
) -> bool:
    """Copy the files to their paths below `target`; return False if the copy was no longer wanted.

    Others may open the copy while the player continues with its own files. A log that ends anywhere holds a commit, so
    a copy taken between two steps of playing does as well. Blocks: call it on the player's thread, between two steps.

    Args:
        live: The files and properties to copy.
        staging: Holds the files by fnode.
        target: A directory that does not exist yet.
        log: Named by errors.
        is_wanted: Asked between two chunks.

    Raises:
        RecoveryLogError: a path is not a file below the directory.
        OSError: as of the disk.
    """
    target.mkdir(parents=True)
    for fnode, paths in live.paths.items():
        for path in paths:
            if not _copy(staging / str(fnode), _below(target, path, log), is_wanted):
                return False
    for path, content in live.properties.items():
        _below(target, path, log).write_text(content)
    return True


def _below(directory: Path, path: str, log: str) -> Path:
    target = directory / path.lstrip("/")
    if ".." in target.parts or "\0" in path or target == directory:
        raise RecoveryLogError(log, f"path {path!r} is no file below the store's directory")
    target.parent.mkdir(parents=True, exist_ok=True)
    return target


def _copy(source: Path, target: Path, is_wanted: Callable[[], bool]) -> bool:
    read = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        write = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            return _shared(read, write) or _copied(read, write, is_wanted)
        finally:
            os.close(write)
    finally:
        os.close(read)


def _shared(read: int, write: int) -> bool:
    """Make two files share their blocks, which is instant; return False if the file system cannot."""
    with suppress(OSError):
        ioctl(write, _FICLONE, read)
        return True
    return False


def _copied(read: int, write: int, is_wanted: Callable[[], bool]) -> bool:
    while is_wanted():
        if not _copied_chunk(read, write):
            return True
    return False


def _copied_chunk(read: int, write: int) -> int:
    try:
        # macOS has none.
        if hasattr(os, "copy_file_range"):
            return os.copy_file_range(read, write, CHUNK_BYTES)
    except OSError as error:
        if error.errno not in (errno.EXDEV, errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP):
            raise
    content = memoryview(os.read(read, CHUNK_BYTES))
    written = 0
    while written < len(content):
        written += os.write(write, content[written:])
    return written


class PlayedFiles:
    """The files of one playback, in a private directory."""

    def __init__(self, directory: Path, log: str) -> None:
        """Create nothing yet.

        Args:
            directory: An absolute path.
            log: Named by errors.
        """
        self._directory = directory
        self._staging = directory / STAGING
        self._log = log
        self._open: OrderedDict[int, int] = OrderedDict()

    def prepare(self) -> None:
        """Create the directory, empty; an existing one is removed first.

        Raises:
            OSError: the disk is full, or the directory is not writable.
        """
        if self._directory.exists():
            # A file left from before would be mistaken for one of the log's.
            shutil.rmtree(self._directory)
        self._staging.mkdir(parents=True)

    def apply(self, changes: Sequence[FileChange]) -> None:
        """Perform changes in order.

        Raises:
            OSError: as of the disk.
        """
        for change in _runs(changes):
            if isinstance(change, list):
                descriptor = self._descriptor(change[0].fnode)
                self._write(descriptor, change)
                size = sum(len(each.content) for each in change)
                if size >= WRITE_BACK_BYTES:
                    begin_write_back(descriptor, change[0].offset, size)
            elif isinstance(change, CreateFile):
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                self._keep(change.fnode, os.open(self._staged(change.fnode), flags, 0o600))
            else:
                # The descriptor is closed first, because it must not outlive the file in the cache.
                self._close(change.fnode)
                self._staged(change.fnode).unlink()

    def make_live(self, fsm: FileStateMachine) -> None:
        """Link each live file to its paths, write the properties, and leave nothing staged.

        Raises:
            RecoveryLogError: a path is not a file below the directory, or something else is staged.
            OSError: as of the disk.
        """
        self.close()
        for fnode, node in fsm.fnodes.items():
            for path in node.links:
                os.link(self._staged(fnode), self._target(path))
            self._staged(fnode).unlink()
        for path, content in fsm.properties.items():
            with self._target(path).open("xb") as file:
                file.write(content.encode())
        left = sorted(each.name for each in self._staging.iterdir())
        if left:
            raise RecoveryLogError(self._log, f"played files {left} that no operation names")
        self._staging.rmdir()

    def copy_to(self, target: Path, live: LiveFiles, *, is_wanted: Callable[[], bool]) -> bool:
        """Copy the live files to their paths below `target`; return False if the copy was no longer wanted.

        Raises:
            RecoveryLogError: a path is not a file below the directory.
            OSError: as of the disk.
        """
        return copy_files(live, self._staging, target, log=self._log, is_wanted=is_wanted)

    def followed_by(self, follower: StandbyFollower) -> FollowedFiles:
        """Return what shows the files to a follower; on the event loop."""
        return FollowedFiles(self._directory, self._staging, self._log, follower)

    def close(self) -> None:
        """Close every file. Idempotent."""
        while self._open:
            os.close(self._open.popitem()[1])

    def discard(self) -> None:
        """Close every file and remove the directory."""
        self.close()
        shutil.rmtree(self._directory, ignore_errors=True)

    def _staged(self, fnode: int) -> Path:
        return self._staging / str(fnode)

    def _target(self, path: str) -> Path:
        target = self._directory / path.lstrip("/")
        if ".." in target.parts or "\0" in path or target == self._directory:
            raise RecoveryLogError(
                self._log, f"path {path!r} is no file below the store's directory"
            )
        target.parent.mkdir(parents=True, exist_ok=True)
        return target

    def _descriptor(self, fnode: int) -> int:
        descriptor = self._open.get(fnode)
        if descriptor is None:
            descriptor = os.open(self._staged(fnode), os.O_RDWR | os.O_CLOEXEC)
            self._keep(fnode, descriptor)
        else:
            self._open.move_to_end(fnode)
        return descriptor

    def _keep(self, fnode: int, descriptor: int) -> None:
        self._open[fnode] = descriptor
        # The least recently used one is closed, and opened again at its next write.
        if len(self._open) > DESCRIPTORS_MAX:
            os.close(self._open.popitem(last=False)[1])

    def _close(self, fnode: int) -> None:
        descriptor = self._open.pop(fnode, None)
        if descriptor is not None:
            os.close(descriptor)

    def _write(self, descriptor: int, run: Sequence[WriteFile]) -> None:
        offset = run[0].offset
        contents = [each.content for each in run]
        while contents:
            written = os.pwritev(descriptor, contents[:BUFFERS_MAX], offset)
            offset += written
            # A write may be partial: whole contents are dropped, and the rest of the next one is written again.
            done = 0
            while done < len(contents) and written >= len(contents[done]):
                written -= len(contents[done])
                done += 1
            contents = contents[done:]
            if written:
                contents[0] = contents[0][written:]


def _runs(
    changes: Sequence[FileChange],
) -> Iterator[CreateFile | RemoveFile | list[WriteFile]]:
    """Yield changes in order, with contiguous writes to one file grouped together."""
    run: list[WriteFile] = []
    fnode, end = 0, 0
    for change in changes:
        if isinstance(change, WriteFile):
            if run and (change.fnode != fnode or change.offset != end):
                yield run
                run = []
            fnode, end = change.fnode, change.offset + len(change.content)
            run.append(change)
            continue
        if run:
            yield run
            run = []
        yield change
    if run:
        yield run


@dataclass(slots=True, eq=False)
class _Order:
    target: Path
    through: int
    """Offset of the log up to which must be played first, bytes."""
    made: asyncio.Future[bool]

    def is_wanted(self) -> bool:
        # Called on the player's thread; safe, because a future never leaves the done state.
        return not self.made.done()

    def is_due(self, played_to: int) -> bool:
        return self.through <= played_to and not self.made.done()

    def settle(self, made: bool) -> None:
        if not self.made.done():
            self.made.set_result(made)

    def fail(self, error: Exception) -> None:
        if not self.made.done():
            self.made.set_exception(error)


class CopyOrders:
    """Pending orders for copies of one player's files; lives on the event loop."""

    def __init__(self, files: PlayedFiles, *, on_order: Callable[[], None]) -> None:
        """Create an empty queue of orders.

        Args:
            files: The player's.
            on_order: Called when there is a copy to make.
        """
        self._files = files
        self._on_order = on_order
        self._orders: list[_Order] = []
        self._refused = False

    async def order(self, target: Path, *, through: int) -> bool:
        """Wait for a copy of the files played up to `through` at least, bytes; return False if none will be made.

        Raises:
            RecoveryLogError: the played files are inconsistent.
            OSError: as of the disk.
        """
        if self._refused:
            return False
        order = _Order(target, through, asyncio.get_running_loop().create_future())
        self._orders.append(order)
        self._on_order()
        try:
            return await order.made
        finally:
            self._orders.remove(order)
            # If the caller is cancelled, a copy in progress ends at its next chunk.
            order.settle(False)

    async def make(self, thread: PlayThread, fsm: FileStateMachine, *, played_to: int) -> None:
        """Make the copies that are due; nothing is played meanwhile, so each copy is of one position in the log.

        Args:
            thread: The thread that changes the files.
            fsm: As of `played_to`.
            played_to: Offset of the log, bytes.
        """
        for order in [each for each in self._orders if each.is_due(played_to)]:
            if order.made.done():
                continue  # Refused or cancelled meanwhile.
            copy = partial(
                self._files.copy_to, order.target, live_files(fsm), is_wanted=order.is_wanted
            )
            try:
                order.settle(await thread.run(copy))
            # A failed copy is reported to its caller, and playing continues.
            except Exception as error:
                order.fail(error)

    def refuse(self) -> None:
        """Refuse all copies: those that wait, one in progress, and later ones."""
        self._refused = True
        for order in self._orders:
            order.settle(False)
