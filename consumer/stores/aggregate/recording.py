"""The files of an `AggregateStore`: snapshots of the table, and the commits that follow each.

    snapshot-{n}    every row as of commit n, and its checkpoint; written beside and renamed
    changes-{n}     the commits n + 1, n + 2, …: each is one frame with the rows that it changed, and its checkpoint

A file is a sequence of frames; the first one describes the columns, in Arrow's format, and what they aggregate:

    length of the body (8 bytes) | CRC-32C of the body (4) | body, in MessagePack

A life of the shard begins a file of changes with its first commit, so nothing that a log holds is ever overwritten.
Wherever a log ends, what it replays to is a commit: a frame that is cut off is not complete, and the next life goes on
after the one before it; a snapshot shows when it is complete, and the files that it replaces are removed after that.
Commits are numbered without gaps, so one that is missing in the middle is found, and never passed over.

A snapshot is due when the changes since the last one are as long as it is, so what a standby plays is at most about
twice the table, and a busy store ships each byte at most about twice.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from typing import Final

import google_crc32c
import msgspec
import pyarrow as pa

from broadsheet.consumer.errors import StoreClosedError, StoreError
from broadsheet.consumer.recoverylog.local_state import (
    LocalState,
    record_file,
    record_write,
    recorded_path,
    remove_if_there,
)
from broadsheet.consumer.stores.settled_files import settle, sync_directory
from broadsheet.consumer.stores.store_record import AGGREGATE, StoreFiles
from broadsheet.runtime.op_future import OpFuture
from broadsheet.runtime.private_directory import FILE_MODE

SNAPSHOT_BYTES_MIN: Final = 4 << 20
"""Least bytes of changes after which a snapshot is due."""
_FILES_MAX: Final = 64
"""Files of changes after which a snapshot is due: lives that each add little must not keep an old log for ever."""
_NEXT: Final = "snapshot.next"
_NAME: Final = re.compile(r"(snapshot|changes)-(\d{20})")
_VERSION: Final = 1
_LENGTH_BYTES, _SUM_BYTES = 8, 4
_PREFIX_BYTES: Final = _LENGTH_BYTES + _SUM_BYTES


class FileLayout(msgspec.Struct, frozen=True):
    """The first frame of a file."""

    version: int
    key: dict[str, str]
    """Arrow type by field."""
    aggregates: dict[str, str]
    """What each column aggregates."""
    schema: bytes
    """Of the rows of all frames."""


class ChangeFrame(msgspec.Struct, omit_defaults=True):
    """A commit, or a part of a snapshot, whose last frame alone has the number."""

    number: int = 0
    checkpoint: bytes = b""
    segments: dict[bytes, bytes] = {}
    """Contents, by id, of those that the commit brought; in a snapshot of all."""
    rows: bytes = b""
    """A record batch of the keys that changed."""
    dropped: bytes = b""
    """A record batch of the keys that were dropped, before `rows`."""


class StoredRows:
    """The rows of one frame, decoded."""

    def __init__(self, frame: ChangeFrame, layout: FileLayout) -> None:
        schema = pa.ipc.read_schema(pa.py_buffer(layout.schema))
        keys = pa.schema([schema.field(name) for name in layout.key])
        self.rows = _batch(frame.rows, schema)
        self.dropped = _batch(frame.dropped, keys)


class AggregateFiles:
    """Reads the files of a store when it opens, and writes them while it lives."""

    def __init__(self, fqn: str, local_state: LocalState, *, snapshot_bytes_min: int) -> None:
        """Look at nothing yet.

        Args:
            fqn: The shard, for errors.
            local_state: Where the files are, or will be. Its recorder puts their changes into a log, which makes them
                durable; without one, syncing the files does.
            snapshot_bytes_min: Least bytes of changes after which a snapshot is due.
        """
        self._fqn = fqn
        self._directory = local_state.directory
        self._recorder = local_state.recorder
        self._record = StoreFiles(fqn, local_state, AGGREGATE)
        self._snapshot_bytes_min = snapshot_bytes_min
        self._snapshot_bytes = 0
        self._changes_bytes = 0
        self._present: list[str] = []
        """Names of the files that the last commit rests on."""
        self._descriptor = -1
        """Of the file of changes of this life."""
        self._length = 0
        self._last = 0, 0
        """The last frame that was read: bytes [begin, end) of its file."""
        self._closed = False

    def load(self, *, tidies: bool = True) -> Iterator[tuple[FileLayout, ChangeFrame]]:
        """Yield the frames of the last snapshot, and of the commits that follow it.

        Args:
            tidies: Remove files that nothing rests on, and make the rest durable: this life goes on from there.

        Raises:
            StoreError: a file is damaged.
            OSError: it could not be made durable.
        """
        settles = tidies and self._recorder is None
        if settles:
            # Before files go that a snapshot replaced, which an earlier life renamed and may not have synced.
            sync_directory(self._directory)
        if tidies:
            self._record.check()
            remove_if_there(self._recorder, self._directory, _NEXT)
        found = sorted(
            (int(match[2]), match[1] == "changes", match[0])
            for path in self._directory.iterdir()
            if (match := _NAME.fullmatch(path.name))
        )
        first = max((number for number, is_changes, _ in found if not is_changes), default=0)
        last = 0
        for number, is_changes, name in found:
            frames = () if number < first else self._frames(name, is_whole=not is_changes)
            rests = False
            for layout, frame in frames:
                rests = True
                if is_changes and frame.number != last + 1:
                    raise self._damaged(name, f"expected commit {last + 1}, found {frame.number}")
                last = frame.number or last
                yield layout, frame
            if rests:
                self._count(name, is_changes)
            elif tidies:
                remove_if_there(self._recorder, self._directory, name)
        if settles and self._present:
            self._settle(self._present[-1])

    def _settle(self, name: str) -> None:
        """Make the last commit that was read durable: only memory may have it, if an earlier life was killed at it.

        All before it were durable before it was begun.
        """
        begin, end = self._last
        # What follows was cut off.
        os.truncate(self._directory / name, end)
        settle(self._directory / name, begin, end)

    def append(self, layout: FileLayout, commit: ChangeFrame) -> OpFuture | None:
        """Write a commit; what is returned must succeed first for it to be durable.

        Raises:
            OSError: it could not be written.
        """
        self._check_open()
        content = _framed(commit)
        if self._descriptor < 0:
            name = _named("changes", commit.number - 1)
            content = _framed(layout) + content
            self._descriptor = self._created(name)
            self._present.append(name)
            self._length = 0
            if self._recorder is not None:
                self._recorder.create(recorded_path(name))
        _write(self._descriptor, content)
        self._changes_bytes += len(content)
        if self._recorder is None:
            os.fdatasync(self._descriptor)
            self._record.record()
            return None
        record_write(self._recorder, self._present[-1], self._length, content)
        self._record.record()
        self._length += len(content)
        return self._recorder.barrier()

    @property
    def is_due(self) -> bool:
        """True if it is time for a snapshot."""
        changed, files = self._changes_bytes, len(self._present)
        return files > _FILES_MAX or changed > max(self._snapshot_bytes, self._snapshot_bytes_min)

    def replace(self, layout: FileLayout, frames: Iterator[ChangeFrame], *, number: int) -> None:
        """Write a snapshot as of a commit, and remove what it replaces.

        Args:
            layout: Of its rows.
            frames: Of the snapshot.
            number: Of the commit; the last frame has it.

        Raises:
            OSError: it could not be written.
        """
        self._check_open()
        name, length = _named("snapshot", number), 0

        def written() -> Iterator[bytes]:
            yield _framed(layout)
            yield from map(_framed, frames)

        descriptor = self._created(_NEXT)
        try:
            if self._recorder is None:
                for content in written():
                    _write(descriptor, content)
                    length += len(content)
                os.fsync(descriptor)
            else:
                length = record_file(self._recorder, _NEXT, _teed(descriptor, written()))
        finally:
            os.close(descriptor)
        (self._directory / _NEXT).replace(self._directory / name)
        if self._recorder is None:
            sync_directory(self._directory)
        else:
            self._recorder.rename(recorded_path(_NEXT), recorded_path(name))
        self._end_changes()
        for replaced in self._present:
            remove_if_there(self._recorder, self._directory, replaced)
        self._present = [name]
        self._snapshot_bytes, self._changes_bytes = length, 0

    def close(self) -> None:
        """Close the files; later calls fail. Idempotent."""
        self._closed = True
        self._end_changes()

    def _count(self, name: str, is_changes: bool) -> None:
        length = (self._directory / name).stat().st_size
        self._present.append(name)
        if is_changes:
            self._changes_bytes += length
        else:
            self._snapshot_bytes = length

    def _frames(self, name: str, *, is_whole: bool) -> Iterator[tuple[FileLayout, ChangeFrame]]:
        """Yield the frames of a file, up to one that was cut off.

        Args:
            name: The file.
            is_whole: It was complete when it got its name, so that nothing may be cut off.
        """
        content = memoryview((self._directory / name).read_bytes())
        begin, layout, is_first = 0, None, False
        while begin < len(content):
            body, end = self._body(name, content, begin)
            if body is None:
                break
            # The first commit of a file was written together with the layout.
            self._last = self._last[0] if is_first else begin, end
            begin, is_first = end, layout is None
            try:
                if layout is None:
                    layout = msgspec.msgpack.decode(body, type=FileLayout)
                    if layout.version != _VERSION:
                        raise self._damaged(
                            name,
                            f"version {layout.version}, expected {_VERSION}: a newer release wrote it",
                        )
                    continue
                frame = msgspec.msgpack.decode(body, type=ChangeFrame)
            except msgspec.MsgspecError as error:
                raise self._damaged(name, str(error)) from error
            yield layout, frame
            if is_whole and frame.number:
                return
        if is_whole:
            raise self._damaged(name, f"it ends after {begin} bytes, without its last frame")

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
                raise self._damaged(name, f"the checksum of {length} bytes at {begin} is wrong")
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

    def _damaged(self, name: str, what: str) -> StoreError:
        return StoreError(
            self._fqn,
            f"{self._directory / name} is damaged: {what}; restore the store's files together, from a copy",
        )


def new_layout(
    key: Mapping[str, pa.DataType], aggregates: Mapping[str, str], schema: pa.Schema
) -> FileLayout:
    """Return the first frame of files with these columns."""
    return FileLayout(
        _VERSION,
        {name: str(type_) for name, type_ in key.items()},
        dict(aggregates),
        schema.serialize().to_pybytes(),
    )


def encoded_rows(batch: pa.RecordBatch) -> bytes:
    """Return rows as a frame has them."""
    encoded: bytes = batch.serialize().to_pybytes() if batch.num_rows else b""
    return encoded


def _batch(content: bytes, schema: pa.Schema) -> pa.RecordBatch | None:
    return pa.ipc.read_record_batch(pa.py_buffer(content), schema) if content else None


def _framed(body: FileLayout | ChangeFrame) -> bytes:
    content = msgspec.msgpack.encode(body)
    checksum = google_crc32c.value(content).to_bytes(_SUM_BYTES, "big")
    return b"".join((len(content).to_bytes(_LENGTH_BYTES, "big"), checksum, content))


def _named(kind: str, number: int) -> str:
    return f"{kind}-{number:020}"


def _teed(descriptor: int, chunks: Iterator[bytes]) -> Iterator[bytes]:
    for chunk in chunks:
        _write(descriptor, chunk)
        yield chunk


def _write(descriptor: int, content: bytes) -> None:
    view = memoryview(content)
    while view:
        view = view[os.write(descriptor, view) :]
