"""What a store calls so that changes of its files get into the shard's recovery log."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Future
from typing import Protocol


class FileRecorder(Protocol):
    """Records changes of files, in order; called by one thread at a time, never by the event loop's."""

    def create(self, path: str) -> None:
        """Record a new, empty file; `path` is relative to the store's directory, and starts with a slash."""
        ...

    def write(self, path: str, offset: int, content: bytes) -> None:
        """Record that a file holds `content` from `offset`, bytes, on."""
        ...

    def rename(self, path: str, to: str) -> None:
        """Record that a file has another name now, and that a file which had that name is gone."""
        ...

    def remove(self, path: str) -> None:
        """Record that a file is gone."""
        ...

    def set_property(self, path: str, content: str) -> None:
        """Record a small file that is replaced as a whole."""
        ...

    def after(self, futures: Collection[Future[object]]) -> None:
        """Let what is recorded from here on get into the log only once all these have succeeded.

        If one fails, nothing more gets there, and barriers fail. If the futures are left unresolved, they must fail at
        last: whoever gives up on them must see to it.
        """
        ...

    def barrier(self) -> Future[None]:
        """Return what resolves when everything recorded before is durable in the log, and fails when fenced.

        A `TurnFuture` also tells which append makes it so.
        """
        ...
