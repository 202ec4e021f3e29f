"""Files as a player makes them: staged by fnode while the log is read, linked to their paths at its end.

    {directory}/.fnodes/{fnode}     while playing: paths may still change, files may still go
    {directory}/...                 once live

Every method blocks on the disk: call them on a thread, in order.

Source: gazette/core consumer/recoverylog/playback.go (staging).
"""

from __future__ import annotations

import os
import shutil
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

from consumer.errors import RecoveryLogError
from consumer.recoverylog.file_changes import CreateFile, FileChange, RemoveFile, WriteFile
from consumer.recoverylog.fsm import FileStateMachine
from consumer.recoverylog.played_copy import LiveFiles, copy_files

STAGING: Final = ".fnodes"
DESCRIPTORS_MAX: Final = 16
"""Staged files held open at a time: a process may stand by for hundreds of shards, and stores write few at once."""
BUFFERS_MAX: Final = 256
"""Writes performed by one system call, where each begins where the one before ended; below IOV_MAX of every system."""


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
