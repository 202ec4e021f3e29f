"""Framed, checksummed logs with generations: the broker's one format for durable metadata.

A log is a family of files `<stem>-<generation>`. Each starts with a random id, written twice so that one flipped bit
does not make the whole file unreadable; each frame is

    magic u32 | body length u32 | crc32 u32 of length and body, seeded with the id | body

so a frame of an earlier file never verifies in a later one, even in recycled blocks. The first frame of a generation is
a checkpoint of everything before it; the newest generation with a valid checkpoint counts. A torn tail was never
acknowledged; bad bytes *followed by* valid frames are damage, and so is a last frame that is complete but does not
verify. Both are reported as such.

Zeros follow the last frame up to the end of a unit of 4 KiB, so a file's length is always a multiple of that, and only
grows. A crash may leave any part of a frame, but it makes no file shorter than a length that was durable: a file that
ends elsewhere, or before a length that its own frames tell, was cut. So is told what a crash leaves from what is lost
later, except for a cut at just the length that the file had when a frame was written.
"""

from __future__ import annotations

import itertools
import mmap
import os
import struct
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import msgspec

from broadsheet.broker.disk import Buffer, Disk, close_quietly

FILE_MAGIC = b"BSLOG\x00\x02\n"
"""Of logs whose length is a multiple of the unit. Earlier versions wrote 1, and read both: they differ in no frame."""
ID_BYTES = 8
FILE_HEADER_BYTES = len(FILE_MAGIC) + 2 * ID_BYTES
FRAME_HEADER = struct.Struct("<III")
FRAME_MAGIC = 0x9E6C_57B1
MAGIC_BYTES = struct.pack("<I", FRAME_MAGIC)
GENERATION_DIGITS = 10
SECTOR_BYTES = 512
"""Unit that a disk writes atomically; larger sectors are multiples."""
UNIT_BYTES = 4096
"""Blocks of file systems are no longer, so the zeros up to here take no further one."""
LENGTH_MARK = 3
"""Added to a length at a record's end, whose last byte is not zero then, not even with one bit flipped."""
HIDDEN_ZEROS = 8
"""Number of zeros that may end a body with a damaged length while it is still distinguished from a torn one."""
_RUNWAY = 3
"""A file is extended while a frame like the last one, and one twice as long, still fit: one before the old end then
tells the new length, so that a cut at the old end is noticed, too.
"""
AHEAD_FRAMES = 16
AHEAD_BYTES_MIN, AHEAD_BYTES_MAX = 64 << 10, 1 << 20
"""After this many bytes of frames, zeros are written ahead for as many more like the last one, within these bounds.
When a file grows, the file system must also record the new length, and a sync takes twice as long as one of existing
blocks.
"""


@dataclass(frozen=True, slots=True)
class Frame:
    """One valid frame of a log."""

    body: bytes
    after_damage: bool
    """True if bytes that are no frame directly precede it."""


class Tail(Enum):
    """State of the bytes after the last valid frame."""

    CLEAN = "clean"
    """Nothing but zeros written ahead."""
    TORN = "torn"
    """A part of a frame: its write was interrupted, so it was never acknowledged."""
    DAMAGED = "damaged"
    """A complete frame that fails its checksum: no interrupted write leaves that."""


@dataclass(frozen=True, slots=True)
class Scan:
    """Content of a log file."""

    frames: tuple[Frame, ...]
    torn_bytes: int
    """Number of bytes after the last valid frame that are no frame."""
    tail: Tail = Tail.CLEAN
    tail_body: bytes = b""
    """Body of a damaged last frame, as found."""
    length: int = 0
    """Of the file, bytes."""
    is_padded: bool = False
    """True if the file's length was always a multiple of the unit."""
    floor: int = 0
    """Length that the file had when its first frame was durable, bytes."""

    def cut(self, floor: int = 0) -> str:
        """Return how it is known that the file was cut, for people; empty if it is not.

        Args:
            floor: A length that the file is known to have had, bytes.
        """
        floor = max(floor, self.floor)
        # A crash while the file grows leaves whole sectors, if not whole units.
        if not self.is_padded or (self.length >= floor and not self.length % SECTOR_BYTES):
            return ""
        least = f", and had at least {floor}" if self.length < floor else ""
        return f"it was cut: it has {self.length} bytes{least}"

    @property
    def damaged(self) -> bool:
        """True if acknowledged records are lost."""
        return self.tail is Tail.DAMAGED or any(frame.after_damage for frame in self.frames)

    @property
    def torn_away(self) -> bool:
        """True if the file ends within its first frame, as after an interrupted creation."""
        return not self.frames and self.tail is not Tail.DAMAGED


def _seed(log_id: bytes) -> int:
    return zlib.crc32(log_id)


def encode_frame(seed: int, body: bytes) -> bytes:
    """Return the frame of a body for the log with this seed."""
    return FRAME_HEADER.pack(FRAME_MAGIC, len(body), _crc(seed, body)) + body


def _crc(seed: int, body: bytes | memoryview) -> int:
    return zlib.crc32(body, zlib.crc32(struct.pack("<I", len(body)), seed))


def _frame_at(data: memoryview, position: int, seed: int) -> bytes | None:
    if position + FRAME_HEADER.size > len(data):
        return None
    magic, length, crc = FRAME_HEADER.unpack_from(data, position)
    start = position + FRAME_HEADER.size
    if magic != FRAME_MAGIC or start + length > len(data):
        return None
    body = bytes(data[start : start + length])
    return body if crc == _crc(seed, body) else None


def scan_file(path: Path) -> Scan | None:
    """Read every valid frame of a log file, resynchronising after damage; None if it is no log file."""
    with path.open("rb") as file:
        if path.stat().st_size < FILE_HEADER_BYTES:
            return None
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data, memoryview(data) as view:
            return _scan(data, view, _seed_of(view))


def _seed_of(view: memoryview) -> int:
    """Return the seed under which the first frame verifies, if either copy of the id gives one."""
    start = len(FILE_MAGIC)
    ids = (bytes(view[at : at + ID_BYTES]) for at in (start, start + ID_BYTES))
    seeds = [_seed(log_id) for log_id in ids]
    valid = (seed for seed in seeds if _frame_at(view, FILE_HEADER_BYTES, seed) is not None)
    return next(valid, seeds[0])


def _scan(data: mmap.mmap, view: memoryview, seed: int) -> Scan:
    frames: list[Frame] = []
    position = good_end = FILE_HEADER_BYTES
    floor = 0
    while position < len(view):
        body = _frame_at(view, position, seed)
        if body is None:
            found = data.find(MAGIC_BYTES, position + 1)
            position = len(view) if found < 0 else found
            continue
        frames.append(Frame(body, after_damage=position != good_end))
        position = good_end = position + FRAME_HEADER.size + len(body)
        floor = floor or _padded(good_end)
    tail, tail_body = _tail_of(view, good_end, seed)
    return Scan(
        tuple(frames),
        len(view) - good_end,
        tail,
        tail_body,
        length=len(view),
        is_padded=view[: len(FILE_MAGIC)] == FILE_MAGIC,
        floor=floor,
    )


def _padded(end: int) -> int:
    """Return the length of a file whose last frame ends somewhere, bytes: at least one zero follows it."""
    return (end // UNIT_BYTES + 1) * UNIT_BYTES


def _tail_of(view: memoryview, start: int, seed: int) -> tuple[Tail, bytes]:
    """Distinguish a frame whose write was interrupted from one that was damaged later, and return the latter's body."""
    end = _without_zeros(view, start)
    if end == start:
        return Tail.CLEAN, b""
    if end - start < FRAME_HEADER.size:
        return Tail.TORN, b""
    magic, length, crc = FRAME_HEADER.unpack_from(view, start)
    body = start + FRAME_HEADER.size
    # A record ends with a byte that is not zero, and unwritten space reads as zeros.
    if magic == FRAME_MAGIC and body + length <= end:
        is_torn = _has_unwritten_sector(view, start, body + length)
        return (Tail.TORN, b"") if is_torn else (Tail.DAMAGED, bytes(view[body : body + length]))
    # If the checksum holds for all the bytes that are there, only the magic or the length is
    # damaged.
    for size in {len(view) - body, *range(end - body, len(view) - body)[:HIDDEN_ZEROS]}:
        found = bytes(view[body : body + size])
        if _crc(seed, found) == crc:
            return Tail.DAMAGED, found
    return Tail.TORN, b""


def _without_zeros(view: memoryview, start: int) -> int:
    """Return the position of the zeros at the end."""
    end = len(view)
    while end > start:
        begin = max(start, end - SECTOR_BYTES)
        kept = len(bytes(view[begin:end]).rstrip(b"\0"))
        if kept:
            return begin + kept
        end = begin
    return start


def _has_unwritten_sector(view: memoryview, start: int, end: int) -> bool:
    """Tell whether a sector of a frame was never written: a disk writes each sector as a whole, in any order."""
    first = -(-start // SECTOR_BYTES) * SECTOR_BYTES
    bounds = [start, *range(first, end, SECTOR_BYTES), end]
    return any(
        begin < stop and not any(view[begin:stop]) for begin, stop in itertools.pairwise(bounds)
    )


def generations(directory: Path, stem: str) -> list[int]:
    """Return the generations of a log that have a file, ascending."""
    return sorted(
        int(path.name.removeprefix(f"{stem}-"))
        for path in directory.glob(f"{stem}-*")
        if path.name.removeprefix(f"{stem}-").isdecimal()
    )


def generation_path(directory: Path, stem: str, generation: int) -> Path:
    """Return the path of one generation."""
    return directory / f"{stem}-{generation:0{GENERATION_DIGITS}d}"


class CommitLogWriter:
    """Appends frames to one generation. Blocking; one caller at a time."""

    def __init__(self, disk: Disk, path: Path, fd: int, *, seed: int, size: int) -> None:
        self._disk = disk
        self._seed = seed
        self.path = path
        self.fd = fd
        self.size = size
        """Bytes written so far, without the zeros ahead."""
        self.length = _padded(size)
        """Length of the file: the end of the zeros written ahead, bytes."""
        self._frames = 0

    @staticmethod
    def create(disk: Disk, path: Path, checkpoint: bytes) -> CommitLogWriter:
        """Start a generation with its checkpoint, which is durable when this returns.

        The file gets its name only after that, so a named file without its checkpoint was damaged, not interrupted.
        """
        log_id = os.urandom(ID_BYTES)
        seed = _seed(log_id)
        temporary = path.with_name(f".{path.name}.new")
        fd = os.open(temporary, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            first = encode_frame(seed, checkpoint)
            size = FILE_HEADER_BYTES + len(first)
            zeros = bytes(_padded(size) - size)
            disk.write_at(fd, [FILE_MAGIC, log_id, log_id, first, zeros], 0)
            disk.sync_data(fd)
            temporary.replace(path)
            disk.sync_directory(path.parent)
        except BaseException:
            close_quietly(fd)
            temporary.unlink(missing_ok=True)
            raise
        return CommitLogWriter(disk, path, fd, seed=seed, size=size)

    def append(self, body: bytes) -> None:
        """Write one frame, which is durable only after `sync`."""
        self._write(encode_frame(self._seed, body), self._disk.write_at)

    def append_durably(self, body: bytes) -> None:
        """Write one frame and force it to the disk. Requires that all earlier frames are synced.

        Prepares the file for more frames of this size by writing zeros after the last one.
        """
        frame = encode_frame(self._seed, body)
        if self._frames < AHEAD_FRAMES or self.size + (1 + _RUNWAY) * len(frame) < self.length:
            self._write(frame, self._disk.write_durably)
            return
        self._prepare(len(frame))
        self._write(frame, self._disk.write_at)
        # Sync the whole file this time, because the zeros get their blocks now.
        self.sync()

    def _write(self, frame: bytes, write: Callable[[int, Sequence[Buffer], int], int]) -> None:
        """Write one frame, with zeros up to the end of its unit if the file becomes longer."""
        self._frames += 1
        end = self.size + len(frame)
        length = max(self.length, _padded(end + _RUNWAY * len(frame)))
        write(self.fd, [frame, bytes(length - end)] if length > self.length else [frame], self.size)
        self.size, self.length = end, length

    def _prepare(self, frame_bytes: int) -> None:
        wanted = min(max(AHEAD_FRAMES * frame_bytes, AHEAD_BYTES_MIN), AHEAD_BYTES_MAX)
        if frame_bytes > wanted:
            return
        length = _padded(self.size + wanted)
        try:
            self._disk.write_at(self.fd, [bytes(length - self.size)], self.size)
        except OSError:
            # The frame itself shows whether the disk is full; it may still fit without space allocated ahead.
            os.ftruncate(self.fd, self.length)
            return
        self.length = length

    def sync(self) -> None:
        """Force all written frames to the disk."""
        self._disk.sync_data(self.fd)

    def truncate(self, size: int) -> None:
        """Undo everything written after `size` bytes."""
        length = _padded(size)
        os.ftruncate(self.fd, length)
        self._disk.write_at(self.fd, [bytes(length - size)], size)
        self.size, self.length = size, length

    def close(self) -> None:
        """Close the file. Idempotent, because the descriptor's number may soon belong to another file."""
        fd, self.fd = self.fd, -1
        if fd >= 0:
            close_quietly(fd)


# Records of a journal's commit log.


class Checkpoint(msgspec.Struct, frozen=True, array_like=True, tag="k"):
    """First record of a log: the journal's state at a moment when its open fragment was empty."""

    sequence: int
    head: int
    """Write head, and first byte of the open fragment, bytes."""
    registers: bytes
    """Encoded LabelSet."""
    unconfirmed: bool
    """Acknowledged bytes were lost, and no append has accepted that yet."""
    holes: tuple[tuple[int, int], ...]
    """Known spans [begin, end) without content, bytes."""
    reserved: int
    """Upper bound of all offsets ever shown to a client, bytes; equal to the head if commits are synced."""
    synced: bool
    """True if commits of this log are synced before they are acknowledged."""
    boot_id: str
    """Boot id of the kernel at that time; after a reboot, commits that were not synced may be lost."""
    first: int | None = None
    """First offset of the journal: earlier content was removed on purpose, bytes. None in logs of earlier versions."""
    incarnation: bytes = b""
    """The journal's incarnation; empty in logs that are older than incarnations."""
    epochs: tuple[tuple[int, int, int], ...] = ()
    """Number, nonce and first byte of each opening, ascending (`broadsheet.broker.lineage`)."""
    ends: bool = True
    """End marker: a record's last byte is never zero, which distinguishes a whole record from one cut off before zeros.
    """


class Commit(msgspec.Struct, frozen=True, array_like=True, tag="c"):
    """One durable batch of appends."""

    sequence: int
    """One more than that of the previous record."""
    begin: int
    end: int
    sums: tuple[tuple[int, bytes], ...]
    """Length and checksum of each part of [begin, end), in order; none if the bytes are in this record. A checksum is
    an XXH3 of 16 bytes, or a SHA-1 of 20, which earlier versions wrote.
    """
    at_ms: int
    """Wall time, Unix milliseconds."""
    registers: bytes | None
    """Encoded LabelSet after the batch, if it changed them."""
    confirms: bool
    """True if the batch accepted the loss of earlier bytes."""
    content: bytes | None
    """The bytes themselves if they are few, so that one sync makes content and record durable."""
    ends: bool = True
    marked_length: int = LENGTH_MARK
    """Length that the log had durably before this record, bytes, with the mark."""

    @property
    def log_bytes(self) -> int:
        """Length that the log had durably before this record, bytes; 0 if it is not known."""
        return self.marked_length - LENGTH_MARK


class Reserve(msgspec.Struct, frozen=True, array_like=True, tag="r"):
    """Record that raises the offset below which a power loss may have hidden bytes that were shown."""

    sequence: int
    reserved: int
    ends: bool = True


class Trim(msgspec.Struct, frozen=True, array_like=True, tag="t"):
    """Record that raises the journal's first offset, before the fragments below it are removed."""

    sequence: int
    first: int
    ends: bool = True


Record = Checkpoint | Commit | Reserve | Trim
_DECODER: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)
_ENCODER = msgspec.msgpack.Encoder()


def encode_record(record: Record) -> bytes:
    """Return the body of a record."""
    return _ENCODER.encode(record)


def decode_record(body: bytes) -> Record:
    """Return the record of a body.

    Raises:
        msgspec.DecodeError: the body is of another version.
    """
    try:
        return _DECODER.decode(body)
    except (RecursionError, UnicodeDecodeError) as error:
        raise msgspec.DecodeError(str(error)) from error
