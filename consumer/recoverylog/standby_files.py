"""Files as a player makes them: staged by fnode while the log is read, linked to their paths at its end.

    {directory}/.fnodes/{fnode}     while playing: paths may still change, files may still go
    {directory}/...                 once live

Every method blocks on the disk: call them on a thread, in order.

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
from broadsheet.consumer.recoverylog.fsm import FileStateMachine
from broadsheet.consumer.recoverylog.playback import CreateFile, FileChange, RemoveFile, WriteFile

STAGING: Final = ".fnodes"
DESCRIPTORS_MAX: Final = 16
"""Staged files held open at a time: a process may stand by for hundreds of shards, and stores write few at once."""
BUFFERS_MAX: Final = 256
"""Writes performed by one system call, where each begins where the one before ended; below IOV_MAX of every system."""

# Copies of what a player has played so far: files that somebody else may open, while the player
# goes on with its own.
#
# A log that ends anywhere holds a commit, so a copy taken between two steps of playing does.
# Blocking: for the player's thread, where no step runs meanwhile.
CHUNK_BYTES: Final = 16 << 20
"""Copied at a time; a standby that is being promoted waits for no more than that."""
_FICLONE: Final = 0x40049409
"""Linux' order to share a file's blocks until one of the two is written."""

# The thread that a player decodes and writes on, beside the event loop, which reads ahead
# meanwhile.
#
# Decoding and writing share a thread: a thread of its own for each would hand the interpreter over
# at every system call.

ResultT = TypeVar("ResultT")


class PlayThread:
    """Of one playback; used by one task."""

    def __init__(self) -> None:
        """Start it with the first call."""
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="play")

    async def run(self, function: Callable[[], ResultT]) -> ResultT:
        """Return `function()`, run on the thread; if we are cancelled it runs all the same."""
        return await asyncio.get_running_loop().run_in_executor(self._executor, function)

    async def end(self, last: Callable[[], None]) -> None:
        """Run `last` behind what is under way, and end the thread.

        Who cancels us waits for that, too, so that nobody finds files that are just being removed; not if cancelled
        again, but it is done all the same.
        """
        ending = asyncio.get_running_loop().run_in_executor(self._executor, last)
        self._executor.shutdown(wait=False)
        await asyncio.shield(ending)


@dataclass(frozen=True, slots=True)
class LiveFiles:
    """What a copy must hold."""

    paths: Mapping[int, tuple[str, ...]]
    """Of each live file, by fnode."""
    properties: Mapping[str, str]


def live_files(fsm: FileStateMachine) -> LiveFiles:
    """Return the files and properties as of now."""
    paths = {fnode: tuple(node.links) for fnode, node in fsm.fnodes.items()}
    return LiveFiles(paths, dict(fsm.properties))


def copy_files(
    live: LiveFiles, staging: Path, target: Path, *, log: str, is_wanted: Callable[[], bool]
) -> bool:
    """Copy the files to their paths below `target`; False if that was no longer wanted.

    Args:
        live: What to copy.
        staging: Holds the files by fnode.
        target: A directory that does not exist yet.
        log: Named by errors.
        is_wanted: Asked between two chunks.

    Raises:
        RecoveryLogError: a path is no file below the directory.
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
    """Have two files share their blocks, which takes no time; False on a file system that cannot."""
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
    """The files of one playback, in a directory of its own."""

    def __init__(self, directory: Path, log: str) -> None:
        """Take an absolute path; `log` is named by errors."""
        self._directory = directory
        self._staging = directory / STAGING
        self._log = log
        self._open: OrderedDict[int, int] = OrderedDict()

    def prepare(self) -> None:
        """Make the directory anew, empty.

        Raises:
            OSError: the disk is full, or the directory is not ours to write.
        """
        if self._directory.exists():
            # A file that stayed would be taken for one of the log's.
            shutil.rmtree(self._directory)
        self._staging.mkdir(parents=True)

    def apply(self, changes: Sequence[FileChange]) -> None:
        """Perform changes in order.

        Raises:
            OSError: as of the disk.
        """
        for change in _runs(changes):
            if isinstance(change, list):
                self._write(self._descriptor(change[0].fnode), change)
            elif isinstance(change, CreateFile):
                flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                self._keep(change.fnode, os.open(self._staged(change.fnode), flags, 0o600))
            else:
                self._close(change.fnode)
                self._staged(change.fnode).unlink()

    def make_live(self, fsm: FileStateMachine) -> None:
        """Give each live file its paths, write the properties, and leave nothing staged.

        Raises:
            RecoveryLogError: a path is no file below the directory, or something else is staged.
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
        """Copy the live files to their paths below `target`; False if that was no longer wanted.

        Raises:
            RecoveryLogError: a path is no file below the directory.
            OSError: as of the disk.
        """
        return copy_files(live, self._staging, target, log=self._log, is_wanted=is_wanted)

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
    """Yield changes in order; writes to one file, of which each begins where the one before ended, together."""
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


# Who waits for a copy of what a player has played, until the player has come far enough to make it.
@dataclass(slots=True, eq=False)
class _Order:
    target: Path
    through: int
    """Offset of the log that must be played, bytes."""
    made: asyncio.Future[bool]

    def is_wanted(self) -> bool:
        # Asked on the player's thread; a future's state only ever goes one way.
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
    """Of one player; lives on the event loop."""

    def __init__(self, files: PlayedFiles, *, on_order: Callable[[], None]) -> None:
        """Begin without any.

        Args:
            files: The player's.
            on_order: Called when there is one to make.
        """
        self._files = files
        self._on_order = on_order
        self._orders: list[_Order] = []
        self._refused = False

    async def order(self, target: Path, *, through: int) -> bool:
        """Wait for a copy of what is played up to `through` at least, bytes; False if none will be made.

        Raises:
            RecoveryLogError: played files make no sense.
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
            order.settle(False)  # If we are cancelled: a copy under way ends at its next chunk.

    async def make(self, thread: PlayThread, fsm: FileStateMachine, *, played_to: int) -> None:
        """Make the copies that are due; nothing is played meanwhile, so that each is of one place in the log.

        Args:
            thread: Where the files are changed.
            fsm: As of `played_to`.
            played_to: Offset of the log, bytes.
        """
        for order in [each for each in self._orders if each.is_due(played_to)]:
            if order.made.done():
                continue  # Refused, or given up, meanwhile.
            copy = partial(
                self._files.copy_to, order.target, live_files(fsm), is_wanted=order.is_wanted
            )
            try:
                order.settle(await thread.run(copy))
            except (
                Exception
            ) as error:  # Of the copy: whoever ordered it is told, and playing goes on.
                order.fail(error)

    def refuse(self) -> None:
        """Make none any more, neither those that wait nor one under way."""
        self._refused = True
        for order in self._orders:
            order.settle(False)
