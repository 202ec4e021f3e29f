"""The one file of a `JsonFileStore`, and what keeps an older primary from replacing it.

`KeptStateFile` stands in a directory that stays: every restore raises an epoch, and a replacement looks at it under a
lock. `RecordedStateFile` stands in a directory of its own life, and its recovery log refuses older recorders.

Either way a replacement is written whole beside the file and renamed over it: a crash leaves the old or the new one.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from consumer.errors import CommitFencedError, StoreClosedError, StoreError
from consumer.op_future import OpFuture
from consumer.recoverylog.file_recorder import FileRecorder
from consumer.stores.directory_lock import lock_descriptor
from consumer.stores.recorded_files import remove_if_there, replace_file

_STATE, _NEXT = "state.json", "next.json"


class StateFile(Protocol):
    """A file that is read once and replaced at each commit."""

    @property
    def path(self) -> Path:
        """Where it is."""
        ...

    def restore(self) -> bytes | None:
        """Fence older holders, and return the content as of the last commit; None if there was none."""
        ...

    def replace(self, content: bytes) -> OpFuture | None:
        """Replace the content; what is returned must succeed first for it to be durable.

        Raises:
            CommitFencedError: a newer holder restored.
        """
        ...

    def close(self) -> None:
        """Let go; later calls fail. Idempotent."""
        ...


class KeptStateFile:
    """In a directory that stays."""

    def __init__(self, fqn: str, directory: Path, *, lock_wait_seconds: float) -> None:
        """Name the file; nothing is touched before `restore`."""
        self._fqn = fqn
        self._directory = directory
        self._lock_wait_seconds = lock_wait_seconds
        self._epoch = 0
        self._closed = False

    @property
    def path(self) -> Path:
        """Where it is."""
        return self._directory / _STATE

    def restore(self) -> bytes | None:
        """Raise the epoch, and read."""
        self._directory.mkdir(parents=True, exist_ok=True)
        with self._locked() as epoch_file:
            self._epoch = self._read_epoch(epoch_file) + 1
            # One small write within a sector: it is whole or it is not there.
            os.pwrite(epoch_file, f"{self._epoch:020}\n".encode(), 0)
            os.fsync(epoch_file)
            self._sync_directory()
            return self.path.read_bytes() if self.path.exists() else None

    def replace(self, content: bytes) -> None:
        """Replace the file if the epoch is still ours."""
        with self._locked() as epoch_file:
            current = self._read_epoch(epoch_file)
            if current != self._epoch:
                raise CommitFencedError(self._fqn, self._epoch, current)
            following = self._directory / _NEXT
            with following.open("wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            following.replace(self.path)
            self._sync_directory()

    def close(self) -> None:
        """The files stay: they are the store."""
        self._closed = True

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Hold the lock of the epoch file, and yield its descriptor."""
        if self._closed:
            raise StoreClosedError(self._fqn)
        path = self._directory / "epoch"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            lock_descriptor(self._fqn, descriptor, path, wait_seconds=self._lock_wait_seconds)
            yield descriptor
        finally:
            os.close(descriptor)  # Releases the lock.

    def _read_epoch(self, descriptor: int) -> int:
        content = os.pread(descriptor, 64, 0).strip()
        if not content:
            return 0
        try:
            return int(content)
        except ValueError:
            raise StoreError(
                self._fqn, f"{self._directory / 'epoch'} holds no number: {content!r}"
            ) from None

    def _sync_directory(self) -> None:
        descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


class RecordedStateFile:
    """In a directory of its own, recorded; the log is what lasts, so nothing is synced here."""

    def __init__(self, fqn: str, directory: Path, recorder: FileRecorder) -> None:
        """Name the file; nothing is touched before `restore`."""
        self._fqn = fqn
        self._directory = directory
        self._recorder = recorder
        self._closed = False

    @property
    def path(self) -> Path:
        """Where it is."""
        return self._directory / _STATE

    def restore(self) -> bytes | None:
        """Read what was played. Older holders are fenced already: by what handed the log over."""
        self._directory.mkdir(parents=True, exist_ok=True)
        remove_if_there(self._recorder, self._directory, _NEXT)
        return self.path.read_bytes() if self.path.exists() else None

    def replace(self, content: bytes) -> OpFuture:
        """Replace the file here and in the log."""
        if self._closed:
            raise StoreClosedError(self._fqn)
        following = self._directory / _NEXT
        following.write_bytes(content)
        following.replace(self.path)
        replace_file(self._recorder, _STATE, (content,), by_way_of=_NEXT)
        return self._recorder.barrier()

    def close(self) -> None:
        """Remove the directory."""
        self._closed = True
        shutil.rmtree(self._directory, ignore_errors=True)
