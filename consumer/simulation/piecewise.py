"""A recorder whose operations reach the log one by one, so that a crash may come between any two of a commit."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Future

from consumer.recoverylog.recorder import FileRecorder


class PiecewiseRecorder:
    """Implements `consumer.recoverylog.recorder.FileRecorder`: sends each operation by itself."""

    def __init__(self, recorder: FileRecorder) -> None:
        """Take the recorder that does the work."""
        self._recorder = recorder

    def create(self, path: str) -> None:
        """Record a new, empty file."""
        self._recorder.create(path)
        self._recorder.barrier()

    def write(self, path: str, offset: int, content: bytes) -> None:
        """Record a write in two halves."""
        half = len(content) // 2
        self._recorder.write(path, offset, content[:half])
        self._recorder.barrier()
        self._recorder.write(path, offset + half, content[half:])
        self._recorder.barrier()

    def rename(self, path: str, to: str) -> None:
        """Record another name."""
        self._recorder.rename(path, to)
        self._recorder.barrier()

    def remove(self, path: str) -> None:
        """Record that a file is gone."""
        self._recorder.remove(path)
        self._recorder.barrier()

    def set_property(self, path: str, content: str) -> None:
        """Record a small file."""
        self._recorder.set_property(path, content)
        self._recorder.barrier()

    def after(self, futures: Collection[Future[object]]) -> None:
        """Let what comes wait."""
        self._recorder.after(futures)

    def barrier(self) -> Future[None]:
        """Return what resolves when everything recorded before is durable."""
        return self._recorder.barrier()
