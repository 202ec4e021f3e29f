"""A recovery log in memory, which replays a store's recorded changes, cut off anywhere, into a directory.

It is stricter than a log need be: it refuses operations that make no sense (a write to no file, a second creation), so
that a store which passes here asks nothing special of its recorder. Newer recorders fence older ones, as logs do.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from pathlib import Path

from broadsheet.consumer.errors import StoreError
from broadsheet.runtime.op_future import OpFuture


@dataclass(frozen=True, slots=True)
class RecordedChange:
    """One operation on one file."""

    kind: str
    """create, write, rename, remove or property."""
    path: str
    offset: int = 0
    content: bytes = b""
    to: str = ""


@dataclass(slots=True)
class RecordedLog:
    """All operations of one shard's stores, in order."""

    changes: list[RecordedChange] = field(default_factory=list)
    barriers: list[int] = field(default_factory=list)
    """Number of changes before each barrier."""
    recorders: int = 0
    held: list[OpFuture] | None = None
    """Barriers that wait for `release`; None: each resolves at once."""
    files: MirroredFiles = field(default_factory=lambda: MirroredFiles())
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False, compare=False)
    """Held for a change, and for the hand-over to another recorder, because a store's thread may record at any time."""

    def recorder(self) -> MirroringRecorder:
        """Return a recorder that fences all earlier ones."""
        with self._lock:
            self.recorders += 1
            return MirroringRecorder(self, self.recorders)

    def replay(self, directory: Path) -> Path:
        """Write the files as of the last change; return the directory, which is created."""
        with self._lock:
            return self.files.write_to(directory)

    def hand_over(self, directory: Path) -> MirroringRecorder:
        """Replay into `directory`, and return a recorder that begins there: no former one gets a change in between."""
        with self._lock:
            self.replay(directory)
            return self.recorder()

    def hold(self) -> None:
        """Make barriers wait, as with a slow broker."""
        self.held = []

    def release(self) -> None:
        """Resolve the barriers that wait, and those to come."""
        held, self.held = self.held or [], None
        for barrier in held:
            barrier.set_result(None)

    def cuts(
        self, *, is_whole: Callable[[RecordedChange], bool] = lambda _: False
    ) -> Iterator[tuple[int, MirroredFiles]]:
        """Yield every possible end of the log: (number of complete changes, files as replayed).

        Also in the middle of writes, because a store may record a long write as several.

        Args:
            is_whole: Tells which writes the store records as one, however long, and which no log therefore cuts.
        """
        files = MirroredFiles()
        yield 0, files
        for count, change in enumerate(self.changes):
            if change.kind == "write" and len(change.content) > 1 and not is_whole(change):
                torn = files.copy()
                torn.apply(replace(change, content=change.content[: len(change.content) // 2]))
                yield count, torn
            files.apply(change)
            yield count + 1, files

    def append(self, change: RecordedChange, recorder: int) -> None:
        """Add a recorder's change, which must be valid. Nothing happens if there is a newer recorder."""
        with self._lock:
            if recorder == self.recorders:
                self.files.apply(change)
                self.changes.append(change)

    def barrier(self, barrier: OpFuture) -> None:
        """Resolve a barrier after all changes so far."""
        self.barriers.append(len(self.changes))
        if self.held is None:
            barrier.set_result(None)
        else:
            self.held.append(barrier)


class MirroredFiles:
    """Files as a player of the log has them."""

    def __init__(self, files: dict[str, bytearray] | None = None) -> None:
        self._files = files if files is not None else {}

    def copy(self) -> MirroredFiles:
        """Return another that changes apart from this one."""
        return MirroredFiles({path: bytearray(content) for path, content in self._files.items()})

    def paths(self) -> Sequence[str]:
        """Return the names, sorted."""
        return sorted(self._files)

    def size_bytes(self) -> int:
        """Return the length of all files."""
        return sum(map(len, self._files.values()))

    def size_of(self, path: str) -> int:
        """Return the length of a file, bytes; 0 if it is not there."""
        return len(self._files.get(path, b""))

    def content_of(self, path: str) -> bytes:
        """Return the content of a file.

        Raises:
            KeyError: it is not there.
        """
        return bytes(self._files[path])

    def apply(self, change: RecordedChange) -> None:
        """Perform one change.

        Raises:
            ValueError: it is invalid.
        """
        path, files = change.path, self._files
        if not path.startswith("/"):
            raise ValueError(
                f"{path} is not below the store's directory: it must begin with a slash"
            )
        if change.kind == "property":
            files[path] = bytearray(change.content)
            return
        if change.kind == "create":
            if path in files:
                raise ValueError(f"{path} is created, but exists")
            files[path] = bytearray()
            return
        if path not in files:
            raise ValueError(f"{change.kind} of {path}, which does not exist")
        if change.kind == "write":
            file = files[path]
            if change.offset > len(file):
                raise ValueError(f"a write at {change.offset} leaves a hole in {path}")
            file[change.offset : change.offset + len(change.content)] = change.content
            return
        content = files.pop(path)
        if change.kind == "rename":
            files[change.to] = content

    def write_to(self, directory: Path) -> Path:
        """Write the files as a player does; return the directory, which is created."""
        directory.mkdir(parents=True, exist_ok=True)
        for path, content in self._files.items():
            target = directory / path[1:]
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(content)
        return directory


class MirroringRecorder:
    """Implements `broadsheet.consumer.recoverylog.recorder.FileRecorder`."""

    def __init__(self, log: RecordedLog, number: int) -> None:
        self._log = log
        self._number = number
        self._waits: list[Future[object]] = []
        """Futures that must succeed before anything gets into the log."""
        self._held: list[RecordedChange | OpFuture] = []
        """Changes and barriers that wait for that, in order."""
        self._failure: BaseException | None = None

    @property
    def fenced(self) -> bool:
        """True once there is a newer recorder."""
        return self._log.recorders != self._number

    def create(self, path: str) -> None:
        """Record a new file."""
        self._append(RecordedChange("create", path))

    def write(self, path: str, offset: int, content: bytes) -> None:
        """Record a write."""
        self._append(RecordedChange("write", path, offset, bytes(content)))

    def rename(self, path: str, to: str) -> None:
        """Record a rename."""
        self._append(RecordedChange("rename", path, to=to))

    def remove(self, path: str) -> None:
        """Record a removal."""
        self._append(RecordedChange("remove", path))

    def set_property(self, path: str, content: str) -> None:
        """Record a property."""
        self._append(RecordedChange("property", path, content=content.encode()))

    def after(self, futures: Collection[Future[object]]) -> None:
        """Hold back what comes until all have succeeded; drop it if one fails."""
        self._waits.extend(futures)
        for future in futures:
            future.add_done_callback(self._on_waited)

    def barrier(self) -> OpFuture:
        """Return a barrier; it fails if we are fenced, or if what it has to wait for does."""
        barrier: OpFuture = Future()
        barrier.set_running_or_notify_cancel()
        self._take(barrier)
        return barrier

    def _append(self, change: RecordedChange) -> None:
        self._take(change)

    def _take(self, what: RecordedChange | OpFuture) -> None:
        if self._waits and self._failure is None:
            self._held.append(what)
        else:
            self._let_in(what)

    def _let_in(self, what: RecordedChange | OpFuture) -> None:
        failure = self._failure
        if isinstance(what, RecordedChange):
            if failure is None:
                self._log.append(what, self._number)
            return
        if failure is None and self.fenced:
            failure = StoreError("in memory", "this recorder is fenced: a newer one records")
        if failure is not None:
            what.set_exception(failure)
        else:
            self._log.barrier(what)

    def _on_waited(self, done: Future[object]) -> None:
        self._waits.remove(done)
        self._failure = self._failure or done.exception()
        if self._failure is None and self._waits:
            return
        held, self._held = self._held, []
        for what in held:
            self._let_in(what)
