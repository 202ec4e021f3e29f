"""Files of a store that records what each commit changed: snapshots, and the commits that follow them.

    snapshot-{n}    rows as of commit n, and its checkpoint; written beside, all at once or between commits, and renamed
    changes-{n}     the commits n + 1, n + 2, …: each is one frame with the rows that it changed, and its checkpoint

A file is a sequence of frames; the first one is the layout, which describes the rows of the others:

    length of the body (8 bytes) | CRC-32C of the body (4) | body, in MessagePack

A life of the shard begins a file of changes with its first commit, so nothing that a log holds is ever overwritten.
Wherever a log ends, what it replays to is a commit: a frame that is cut off is not complete, and the next life goes on
after the one before it; a snapshot shows when it is complete, and the files that it replaces are removed after that.
Commits are numbered without gaps, so one that is missing in the middle is found, and never passed over.

What rows are, and when a snapshot of which of them is due, is the store's affair.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, TypeVar

import google_crc32c
import msgspec

from broadsheet.consumer.errors import StoreClosedError, StoreError
from broadsheet.consumer.recoverylog.local_state import (
    LocalState,
    record_write,
    recorded_path,
    remove_if_there,
)
from broadsheet.consumer.stores.settled_files import settle, sync_directory
from broadsheet.consumer.stores.store_record import StoreFiles, StoreKind
from broadsheet.runtime.file_sync import begin_write_back, sync_content
from broadsheet.runtime.op_future import OpFuture
from broadsheet.runtime.private_directory import FILE_MODE

_NEXT: Final = "snapshot.next"
_NAME: Final = re.compile(r"(snapshot|changes)-(\d{20})")
_LENGTH_BYTES, _SUM_BYTES = 8, 4
_PREFIX_BYTES: Final = _LENGTH_BYTES + _SUM_BYTES


class RecordedLayout(msgspec.Struct, frozen=True):
    """The first frame of a file."""

    version: int


class RecordedFrame(msgspec.Struct, omit_defaults=True):
    """A commit, or a part of a snapshot, whose last frame alone has the number."""

    number: int = 0
    checkpoint: bytes = b""
    segments: dict[bytes, bytes] = {}
    """Contents, by id, of those that the commit brought; in a snapshot of all."""


LayoutT = TypeVar("LayoutT", bound=RecordedLayout)
FrameT = TypeVar("FrameT", bound=RecordedFrame)


class StoredFile(NamedTuple):
    """The name of a file, taken apart; they sort in the order in which they are read."""

    number: int
    """Commit of a snapshot, or before the first one of a file of changes."""
    is_changes: bool
    name: str


Selection = Callable[[Sequence[StoredFile]], Collection[StoredFile]]


def since_newest_snapshot(found: Sequence[StoredFile]) -> Collection[StoredFile]:
    """Return the files that matter where each snapshot has all rows."""
    first = max((each.number for each in found if not each.is_changes), default=0)
    return [each for each in found if each.number >= first]


@dataclass(slots=True)
class _NextSnapshot:
    """A snapshot that is written."""

    descriptor: int
    layout_bytes: int = 0
    length: int = 0


class ChangeFiles(Generic[LayoutT, FrameT]):
    """Reads the files of a store when it opens, and writes them while it lives."""

    def __init__(
        self,
        fqn: str,
        local_state: LocalState,
        kind: StoreKind,
        *,
        layout_type: type[LayoutT],
        frame_type: type[FrameT],
        version: int,
    ) -> None:
        """Look at nothing yet.

        Args:
            fqn: The shard, for errors.
            local_state: Where the files are, or will be. Its recorder puts their changes into a log, which makes them
                durable; without one, syncing the files does.
            kind: Of the store.
            layout_type: Class of the first frame.
            frame_type: Class of the other ones.
            version: Of the layout: the only one that can be read.
        """
        self._fqn = fqn
        self._directory = local_state.directory
        self._recorder = local_state.recorder
        self._record = StoreFiles(fqn, local_state, kind)
        self._layout_type, self._frame_type, self._version = layout_type, frame_type, version
        self.snapshot_bytes = 0
        """Length of the snapshots that the last commit rests on."""
        self.changes_bytes = 0
        """The same of the files of changes."""
        self.present: list[StoredFile] = []
        """Files that the last commit rests on."""
        self.read_to: dict[str, tuple[int, int]] = {}
        """By file of changes, the bytes that were read and the last commit in them; the next reading begins there."""
        self._descriptor = -1
        """Of the file of changes of this life."""
        self._length = 0
        self._last = 0, 0
        """The last frame that was read: bytes [begin, end) of its file."""
        self._next: _NextSnapshot | None = None
        self._closed = False

    def check(self) -> None:
        """Check that the directory holds this store's files, or nothing.

        Raises:
            ForeignStoreError: it holds others, or lacks what it has held.
            OSError: as of the disk.
        """
        self._record.check()

    def load(
        self,
        select: Selection = since_newest_snapshot,
        *,
        known: Selection = lambda _: (),
        tidies: bool = True,
    ) -> Iterator[tuple[StoredFile, LayoutT, FrameT]]:
        """Yield the frames of the files that matter, in order.

        Args:
            select: Returns the files that matter.
            known: Returns those of them that need not be read, because an index has all that is in them.
            tidies: Remove the others, and make the rest durable: this life goes on from there.

        Raises:
            StoreError: a file is damaged.
            OSError: it could not be made durable.
        """
        settles = tidies and self._recorder is None
        if settles:
            # Before files go that a snapshot replaced, which an earlier life renamed and may not have synced.
            sync_directory(self._directory)
        if tidies:
            self.check()
            remove_if_there(self._recorder, self._directory, _NEXT)
        found = self.found()
        wanted, unread = frozenset(select(found)), frozenset(known(found))
        last, begins = 0, not unread
        for file in found:
            if file in wanted and file in unread:
                self._count(file)
                last = file.number
                continue
            if not begins and file.is_changes and file in wanted:
                # The files before it, which the commits before it are in, were not read.
                begins, last = True, file.number
            rests = file in wanted and file.name in self.read_to
            if rests:
                last = self.read_to[file.name][1]
            for layout, frame in self.frames(file) if file in wanted else ():
                rests = True
                if file.is_changes and frame.number != last + 1:
                    raise self.damaged(
                        file.name, f"expected commit {last + 1}, found {frame.number}"
                    )
                last = frame.number or last
                yield file, layout, frame
            if rests:
                self._count(file)
            elif tidies:
                remove_if_there(self._recorder, self._directory, file.name)
        # A snapshot that was not read was synced before it had its name.
        if settles and self.present and self.present[-1] not in unread:
            self._settle(self.present[-1].name)

    def unfinished(self) -> LayoutT | None:
        """Return the layout of a snapshot that an earlier life did not end; None if there is none that can be read.

        `load` removes it.
        """
        if not (self._directory / _NEXT).exists():
            return None
        try:
            return self.layout_of(StoredFile(0, False, _NEXT))
        except StoreError:
            return None  # Nothing rests on it.

    def found(self) -> list[StoredFile]:
        """Return the files that are there, in the order in which they are read."""
        return sorted(
            StoredFile(int(match[2]), match[1] == "changes", match[0])
            for path in self._directory.iterdir()
            if (match := _NAME.fullmatch(path.name))
        )

    def _settle(self, name: str) -> None:
        """Make the last commit that was read durable: only memory may have it, if an earlier life was killed at it.

        All before it were durable before it was begun.
        """
        begin, end = self._last
        # What follows was cut off.
        os.truncate(self._directory / name, end)
        settle(self._directory / name, begin, end)

    def append(self, layout: LayoutT, commit: FrameT) -> OpFuture | None:
        """Write a commit; what is returned must succeed first for it to be durable.

        Raises:
            OSError: it could not be written.
        """
        self._check_open()
        content = _framed(commit)
        if self._descriptor < 0:
            file = _named("changes", commit.number - 1)
            content = _framed(layout) + content
            self._descriptor = self._created(file.name)
            self.present.append(file)
            self._length = 0
            if self._recorder is not None:
                self._recorder.create(recorded_path(file.name))
        _write(self._descriptor, content)
        self.changes_bytes += len(content)
        if self._recorder is None:
            sync_content(self._descriptor)
            self._record.record()
            return None
        record_write(self._recorder, self.present[-1].name, self._length, content)
        self._record.record()
        self._length += len(content)
        return self._recorder.barrier()

    def snapshot(self, layout: LayoutT, frames: Iterable[FrameT], *, number: int) -> int:
        """Write a snapshot as of a commit, and end the file of changes; return its length in bytes.

        Args:
            layout: Of its rows.
            frames: Of the snapshot.
            number: Of the commit; the last frame has it.

        Raises:
            OSError: it could not be written.
        """
        self.begin_snapshot(layout)
        for frame in frames:
            self.add_to_snapshot(frame)
        return self.end_snapshot(number=number)

    def begin_snapshot(self, layout: LayoutT) -> None:
        """Begin a snapshot beside the files that count: commits may come until it ends.

        Raises:
            OSError: it could not be written.
        """
        self._check_open()
        assert self._next is None, "one at a time"
        framed = _framed(layout)
        following = self._next = _NextSnapshot(self._created(_NEXT), len(framed))
        if self._recorder is not None:
            self._recorder.create(recorded_path(_NEXT))
        self._write_next(following, 0, framed)

    def add_to_snapshot(self, frame: FrameT) -> None:
        """Write the next frame of the snapshot that was begun.

        Raises:
            OSError: it could not be written.
        """
        self._check_open()
        following = self._next
        assert following is not None, "it was begun"
        self._write_next(following, following.length, _framed(frame))

    def end_snapshot(self, *, number: int, layout: LayoutT | None = None) -> int:
        """Have the files rest on the snapshot as of a commit, and end the file of changes; return its length in bytes.

        Args:
            number: Of the commit; the last frame has it.
            layout: In place of the one with which it began; as long as that.

        Raises:
            OSError: it could not be written.
        """
        self._check_open()
        following, file = self._next, _named("snapshot", number)
        assert following is not None, "it was begun"
        if layout is not None:
            framed = _framed(layout)
            assert len(framed) == following.layout_bytes, "it takes the other one's place"
            self._write_next(following, 0, framed)
        if self._recorder is None:
            os.fsync(following.descriptor)
        # That may have taken so long that another life has the directory, and writes a file of that name.
        self._check_open()
        self._close_next()
        (self._directory / _NEXT).replace(self._directory / file.name)
        if self._recorder is None:
            sync_directory(self._directory)
        else:
            self._recorder.rename(recorded_path(_NEXT), recorded_path(file.name))
        self._end_changes()
        self.present.append(file)
        self.snapshot_bytes += following.length
        return following.length

    def _write_next(self, following: _NextSnapshot, offset: int, content: bytes) -> None:
        os.lseek(following.descriptor, offset, os.SEEK_SET)
        _write(following.descriptor, content)
        following.length = max(following.length, offset + len(content))
        if self._recorder is None:
            # Its end waits until all of it is synced, and a commit waits for its end.
            begin_write_back(following.descriptor, offset, len(content))
        else:
            record_write(self._recorder, _NEXT, offset, content)

    def _close_next(self) -> None:
        """Write no more of the next snapshot. If it has no other name by then, the next life removes it."""
        following, self._next = self._next, None
        if following is not None:
            # A thread that outlived its store may still write; another file may get this descriptor.
            descriptor, following.descriptor = following.descriptor, -1
            os.close(descriptor)

    def remove(self, files: Collection[StoredFile]) -> None:
        """Remove files that nothing rests on any more."""
        for file in files:
            length = (self._directory / file.name).stat().st_size
            remove_if_there(self._recorder, self._directory, file.name)
            self.present.remove(file)
            if file.is_changes:
                self.changes_bytes -= length
            else:
                self.snapshot_bytes -= length

    def bytes_of(self, files: Iterable[StoredFile]) -> int:
        """Return the length of files together."""
        return sum((self._directory / each.name).stat().st_size for each in files)

    def close(self) -> None:
        """Close the files; later calls fail. Idempotent."""
        self._closed = True
        self._end_changes()
        self._close_next()

    def layout_of(self, file: StoredFile) -> LayoutT | None:
        """Return a file's layout; None if not even that is complete.

        Raises:
            StoreError: the file is damaged.
        """
        path = self._directory / file.name
        with path.open("rb") as opened:
            prefix = opened.read(_PREFIX_BYTES)
            content = prefix + opened.read(int.from_bytes(prefix[:_LENGTH_BYTES], "big"))
        body, _ = self._body(file.name, memoryview(content), 0)
        return None if body is None else self._layout(file.name, body)

    def _count(self, file: StoredFile) -> None:
        length = (self._directory / file.name).stat().st_size
        self.present.append(file)
        if file.is_changes:
            self.changes_bytes += length
        else:
            self.snapshot_bytes += length

    def frames(self, file: StoredFile) -> Iterator[tuple[LayoutT, FrameT]]:
        """Yield the frames of a file, up to one that was cut off, from where `read_to` says that it was read to.

        Raises:
            StoreError: the file is damaged; a snapshot, which was complete when it got its name, is if it is cut off.
        """
        name, is_whole = file.name, not file.is_changes
        base, _ = self.read_to.get(name, (0, 0))
        layout = self.layout_of(file) if base else None
        with (self._directory / name).open("rb") as opened:
            opened.seek(base)
            content = memoryview(opened.read())
        begin, is_first = 0, False
        while begin < len(content):
            body, end = self._body(name, content, begin)
            if body is None:
                break
            # The first commit of a file was written together with the layout.
            self._last = self._last[0] if is_first else base + begin, base + end
            begin, is_first = end, layout is None
            if layout is None:
                layout = self._layout(name, body)
                continue
            try:
                frame = msgspec.msgpack.decode(body, type=self._frame_type)
            except msgspec.MsgspecError as error:
                raise self.damaged(name, str(error)) from error
            yield layout, frame
            if is_whole and frame.number:
                return
            if not is_whole:
                self.read_to[name] = base + end, frame.number
        if is_whole:
            raise self.damaged(name, f"it ends after {begin} bytes, without its last frame")

    def _layout(self, name: str, body: memoryview) -> LayoutT:
        try:
            # The version first: what a later release changed of the rest is no damage.
            version = msgspec.msgpack.decode(body, type=RecordedLayout).version
            if version == self._version:
                return msgspec.msgpack.decode(body, type=self._layout_type)
        except msgspec.MsgspecError as error:
            raise self.damaged(name, str(error)) from error
        raise StoreError(
            self._fqn,
            f"{self._directory / name} is of version {version}, expected {self._version}: a later release wrote it; "
            "let a member of that release serve the shard",
        )

    def _body(self, name: str, content: memoryview, begin: int) -> tuple[memoryview | None, int]:
        """Return the frame at `begin` and where it ends; None if it was cut off."""
        prefix = content[begin : begin + _PREFIX_BYTES]
        length = int.from_bytes(prefix[:_LENGTH_BYTES], "big")
        body = content[begin + _PREFIX_BYTES : begin + _PREFIX_BYTES + length]
        end = begin + _PREFIX_BYTES + len(body)
        if len(prefix) < _PREFIX_BYTES or len(body) < length or not length:
            return None, begin
        if google_crc32c.value(bytes(body)) != int.from_bytes(prefix[_LENGTH_BYTES:], "big"):
            # What follows was written after this frame was durable. A log of the file's last frame may have a hole.
            if end < len(content):
                raise self.damaged(name, f"the checksum of {length} bytes at {begin} is wrong")
            return None, begin
        return body, end

    def _created(self, name: str) -> int:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC
        descriptor = os.open(self._directory / name, flags, FILE_MODE)
        if self._recorder is None and name != _NEXT:
            sync_directory(self._directory)
        return descriptor

    def _end_changes(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _check_open(self) -> None:
        if self._closed:
            raise StoreClosedError(self._fqn)

    def damaged(self, name: str, what: str) -> StoreError:
        """Return the error of a file that cannot be read."""
        return StoreError(
            self._fqn,
            f"{self._directory / name} is damaged: {what}; restore the store's files together, from a copy",
        )


def _framed(body: RecordedLayout | RecordedFrame) -> bytes:
    content = msgspec.msgpack.encode(body)
    checksum = google_crc32c.value(content).to_bytes(_SUM_BYTES, "big")
    return b"".join((len(content).to_bytes(_LENGTH_BYTES, "big"), checksum, content))


def _named(kind: str, number: int) -> StoredFile:
    return StoredFile(number, kind == "changes", f"{kind}-{number:020}")


def _write(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
