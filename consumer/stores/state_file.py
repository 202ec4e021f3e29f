"""The file of a `JsonFileStore`, fenced against older primaries.

Beside it are segments of its checkpoint (`broadsheet.journals.message.checkpoint`), each in a file that is named
by its id, and that is written before a state which rests on it: producers-{id, hex}.

`KeptStateFile` is in a directory that stays: every restore raises an epoch, and a replacement checks it under a lock.
`RecordedStateFile` is in a directory of one life, and its recovery log refuses older recorders.

Either way a replacement is written whole beside the file and renamed over it: a crash leaves the old or the new one.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from broadsheet.consumer.errors import CommitFencedError, StoreClosedError, StoreError
from broadsheet.consumer.recoverylog.local_state import (
    LocalState,
    record_file,
    remove_if_there,
    replace_file,
)
from broadsheet.consumer.recoverylog.recorder import FileRecorder
from broadsheet.consumer.stores.directory_lock import lock_descriptor
from broadsheet.consumer.stores.settled_files import sync_directory
from broadsheet.consumer.stores.store_record import JSON, StoreFiles
from broadsheet.runtime.op_future import OpFuture
from broadsheet.runtime.private_directory import FILE_MODE, make_lasting, make_private

_STATE, _NEXT = "state.json", "next.json"
_SEGMENT = re.compile(r"producers-([0-9a-f]{32})")


@dataclass(frozen=True, slots=True)
class Segments:
    """The segments of a commit."""

    new: Mapping[bytes, bytes] = field(default_factory=dict)
    """Contents by id."""
    named: Collection[bytes] = ()
    """Ids of all that the commit rests on."""


_NO_SEGMENTS = Segments()


class StateFile(Protocol):
    """A file that is read once and replaced at each commit."""

    @property
    def path(self) -> Path:
        """Path of the file."""
        ...

    def restore(self) -> bytes | None:
        """Fence older holders, and return the content as of the last commit; None if there was none."""
        ...

    def load_segments(self, ids: Collection[bytes]) -> Mapping[bytes, bytes]:
        """Return the contents of segments that the restored content rests on, by id, of those that are there."""
        ...

    def replace(self, content: bytes, segments: Segments = _NO_SEGMENTS) -> OpFuture | None:
        """Replace the content; what is returned must succeed first for it to be durable.

        Raises:
            CommitFencedError: a newer holder restored.
        """
        ...

    def close(self) -> None:
        """Release the file; later calls fail. Idempotent."""
        ...


class KeptStateFile:
    """A state file in a directory that stays; an epoch fences older holders."""

    def __init__(self, fqn: str, directory: Path, *, lock_wait_seconds: float) -> None:
        self._fqn = fqn
        self._directory = directory
        self._files = StoreFiles(fqn, LocalState(directory), JSON)
        self._lock_wait_seconds = lock_wait_seconds
        self._epoch = 0
        self._known: set[bytes] = set()
        """Segments that are in the directory whole."""
        self._closed = False

    @property
    def path(self) -> Path:
        """Path of the file."""
        return self._directory / _STATE

    def restore(self) -> bytes | None:
        """Raise the epoch, and read."""
        make_lasting(self._directory)
        with self._locked() as epoch_file:
            self._files.check()  # Before the epoch fences the holder that the files belong to.
            self._epoch = self._read_epoch(epoch_file) + 1
            # One small write within a sector: it is whole or it is not there.
            os.pwrite(epoch_file, f"{self._epoch:020}\n".encode(), 0)
            os.fsync(epoch_file)
            sync_directory(self._directory)
            return self.path.read_bytes() if self.path.exists() else None

    def load_segments(self, ids: Collection[bytes]) -> Mapping[bytes, bytes]:
        """Read them."""
        contents = _segments_in(self._directory, ids)
        self._known = set(contents)
        return contents

    def replace(self, content: bytes, segments: Segments = _NO_SEGMENTS) -> None:
        """Replace the file if the epoch is still ours."""
        with self._locked() as epoch_file:
            current = self._read_epoch(epoch_file)
            if current != self._epoch:
                raise CommitFencedError(self._fqn, self._epoch, current)
            for segment_id in segments.new.keys() - self._known:
                _write_durably(_segment_path(self._directory, segment_id), segments.new[segment_id])
            following = self._directory / _NEXT
            _write_durably(following, content)
            following.replace(self.path)
            sync_directory(self._directory)
            self._files.record()
            if segments.new:
                self._known = set(segments.named)
                for segment_id in _segment_ids_in(self._directory) - self._known:
                    _segment_path(self._directory, segment_id).unlink()

    def close(self) -> None:
        """The files stay: they are the store."""
        self._closed = True

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Hold the lock of the epoch file, and yield its descriptor."""
        if self._closed:
            raise StoreClosedError(self._fqn)
        path = self._directory / "epoch"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
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


class RecordedStateFile:
    """A recorded state file in a separate directory; nothing is synced here, because only the log lasts."""

    def __init__(self, fqn: str, local_state: LocalState, recorder: FileRecorder) -> None:
        self._fqn = fqn
        self._directory = local_state.directory
        self._recorder = recorder
        self._files = StoreFiles(fqn, replace(local_state, recorder=recorder), JSON)
        self._known: set[bytes] = set()
        """Segments that the log has."""
        self._closed = False

    @property
    def path(self) -> Path:
        """Path of the file."""
        return self._directory / _STATE

    def restore(self) -> bytes | None:
        """Read the played file. Older holders are fenced already, by the hand-over of the log."""
        make_private(self._directory)
        self._files.check()
        remove_if_there(self._recorder, self._directory, _NEXT)
        return self.path.read_bytes() if self.path.exists() else None

    def load_segments(self, ids: Collection[bytes]) -> Mapping[bytes, bytes]:
        """Read them, and remove those that a cut-off commit left."""
        for segment_id in sorted(_segment_ids_in(self._directory) - set(ids)):
            remove_if_there(self._recorder, self._directory, _segment_name(segment_id))
        contents = _segments_in(self._directory, ids)
        self._known = set(contents)
        return contents

    def replace(self, content: bytes, segments: Segments = _NO_SEGMENTS) -> OpFuture:
        """Replace the file here and in the log."""
        if self._closed:
            raise StoreClosedError(self._fqn)
        for segment_id in sorted(segments.new.keys() - self._known):
            segment = segments.new[segment_id]
            _segment_path(self._directory, segment_id).write_bytes(segment)
            record_file(self._recorder, _segment_name(segment_id), (segment,))
            self._known.add(segment_id)
        following = self._directory / _NEXT
        following.write_bytes(content)
        following.replace(self.path)
        replace_file(self._recorder, _STATE, (content,), by_way_of=_NEXT)
        self._files.record()
        if segments.new:
            for segment_id in sorted(self._known - set(segments.named)):
                remove_if_there(self._recorder, self._directory, _segment_name(segment_id))
                self._known.discard(segment_id)
        return self._recorder.barrier()

    def close(self) -> None:
        """Remove the directory."""
        self._closed = True
        shutil.rmtree(self._directory, ignore_errors=True)


def _segment_name(segment_id: bytes) -> str:
    return f"producers-{segment_id.hex()}"


def _segment_path(directory: Path, segment_id: bytes) -> Path:
    return directory / _segment_name(segment_id)


def _segment_ids_in(directory: Path) -> set[bytes]:
    matches = (_SEGMENT.fullmatch(path.name) for path in directory.iterdir())
    return {bytes.fromhex(match[1]) for match in matches if match is not None}


def _segments_in(directory: Path, ids: Collection[bytes]) -> dict[bytes, bytes]:
    present = _segment_ids_in(directory) & set(ids)
    return {segment_id: _segment_path(directory, segment_id).read_bytes() for segment_id in present}


def _write_durably(path: Path, content: bytes) -> None:
    with open(path, "wb", opener=_private) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_CLOEXEC, FILE_MODE)
