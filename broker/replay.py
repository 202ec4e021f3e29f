"""Replay of a journal's log, checked against the bytes of its open fragment."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final, Protocol

import msgspec
from xxhash import xxh3_128

from broadsheet.broker.commit_log import (
    Checkpoint,
    Commit,
    Record,
    Reserve,
    Scan,
    Tail,
    Trim,
    decode_record,
    scan_file,
)
from broadsheet.broker.content_file import ContentFile
from broadsheet.broker.disk import Disk

Span = tuple[int, int]


class _Hash(Protocol):
    def update(self, data: bytes | memoryview, /) -> None: ...
    def digest(self) -> bytes: ...


READ_BYTES = 1 << 20
_HASHES: Final[Mapping[int, Callable[[], _Hash]]] = MappingProxyType(
    {16: xxh3_128, 20: partial(hashlib.sha1, usedforsecurity=False)}
)
"""Hashes by the length of their digests, bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """The records of one log generation."""

    checkpoint: Checkpoint
    commits: tuple[Commit, ...]
    reserved: int
    sequence: int
    """Sequence number of the last record."""
    damage: tuple[str, ...]
    """Description of the log's damage, for people; empty if none."""
    salvaged: bool = False
    """True if the checkpoint is lost; if no record is left either, the open file's length bounds the lost content."""
    first: int | None = None
    """First offset of the journal, bytes; None if the log does not have it."""
    lost: bytes | None = None
    """Body of a last record that was written completely and damaged later."""
    torn: bool = False
    """True if the log ends within a record: a write was interrupted, or the file was truncated."""
    cut: str = ""
    """How it is known that the file was truncated, for people; empty if it is not."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FragmentReplay:
    """Verified content of the open fragment."""

    end: int
    """Logged end of the journal, bytes."""
    spans: tuple[Span, ...]
    """Verified content [begin, end) of the open fragment, ascending, adjacent spans merged."""
    registers: bytes
    unconfirmed: bool
    damage: tuple[str, ...]


def read_log(path: Path) -> Log | None:
    """Read a log that starts with a valid checkpoint; None if it does not.

    Raises:
        OSError: the disk failed, or the log is of a later version.
    """
    scan = scan_file(path)
    records = _records(scan, path) if scan else []
    if scan is None or not records or not isinstance(records[0], Checkpoint):
        return None
    # The real checkpoint may be among the bad bytes before the first frame.
    return None if scan.frames[0].after_damage else _log_of(records[0], records[1:], scan, path)


def salvage_log(path: Path, *, open_begin: int) -> Log:
    """Read the rest of a log whose checkpoint is lost; registers and earlier holes are unknown."""
    scan = scan_file(path)
    records = [
        record
        for record in (_records(scan, path) if scan else [])
        if not isinstance(record, Checkpoint)
    ]
    sequence = records[0].sequence - 1 if records else 0
    checkpoint = Checkpoint(sequence, open_begin, b"", True, (), open_begin, True, "")
    log = _log_of(checkpoint, records, scan or Scan((), 0), path)
    return Log(
        checkpoint=checkpoint,
        commits=log.commits,
        reserved=log.reserved,
        sequence=log.sequence,
        damage=(f"{path.name}: the checkpoint is lost", *log.damage),
        salvaged=not log.commits,
        first=log.first,
        lost=log.lost,
        torn=log.torn,
        cut=log.cut,
    )


def is_cut_off(path: Path) -> bool:
    """Tell whether a log ends within its first record, as after an interrupted creation."""
    scan = scan_file(path)
    return scan is None or scan.torn_away


def _records(scan: Scan, path: Path) -> list[Record]:
    try:
        return [decode_record(frame.body) for frame in scan.frames]
    except msgspec.DecodeError as error:
        # Their checksums hold, so the bytes are not damaged.
        raise OSError(
            errno.EPROTONOSUPPORT,
            f"{path.name} has records of another version ({error}): open the journal with the version that wrote it",
        ) from error


def _log_of(checkpoint: Checkpoint, records: Sequence[Record], scan: Scan, path: Path) -> Log:
    before = any(frame.after_damage for frame in scan.frames)
    damage = [f"{path.name}: bad bytes before valid records"] if before else []
    commits: list[Commit] = []
    sequence, reserved, first = checkpoint.sequence, checkpoint.reserved, checkpoint.first
    for record in records:
        # A gap is damage even if every frame that is left verifies.
        if record.sequence != sequence + 1:
            damage.append(f"{path.name}: record {sequence + 1} is missing")
        sequence = record.sequence
        if isinstance(record, Commit):
            commits.append(record)
        elif isinstance(record, Reserve):
            reserved = record.reserved
        elif isinstance(record, Trim):
            first = max(first or 0, record.first)
    return Log(
        checkpoint=checkpoint,
        commits=tuple(commits),
        reserved=reserved,
        sequence=sequence,
        damage=tuple(damage),
        first=first,
        lost=scan.tail_body if scan.tail is Tail.DAMAGED else None,
        # Logs of earlier versions end with their last record; later ones never do.
        torn=scan.tail is Tail.TORN or (not scan.torn_bytes and checkpoint.first is not None),
        cut=scan.cut(max((commit.log_bytes for commit in commits), default=0)),
    )


def replay(disk: Disk | None, log: Log, file: ContentFile, *, lost_power: bool) -> FragmentReplay:
    """Restore content from the log into the open file and verify the rest there.

    Content is written before its record. So only a machine that lost power before a sync can have records without their
    content: such a tail is dropped. All other missing or unverified content is damage.

    Args:
        disk: File operations; None writes nothing, so that what the log carries must be in the file already.
        log: What the journal's log says.
        file: The open fragment.
        lost_power: Whether commits of this log were not synced, and the machine was started again since.

    Raises:
        OSError: the disk failed, or the log is of a later version, which is needed to read it.
    """
    _require_known(log)
    begin = log.checkpoint.head
    good = [_verified(disk, commit, file, begin) for commit in log.commits]
    kept = _without_tail(good) if lost_power else len(good)
    commits = log.commits[:kept]
    spans: list[Span] = []
    damage, cursor, unconfirmed = list(log.damage), begin, log.checkpoint.unconfirmed
    registers = log.checkpoint.registers
    for commit, valid in zip(commits, good[:kept], strict=True):
        unconfirmed = unconfirmed and not commit.confirms
        if commit.begin != cursor:
            damage.append(f"bytes [{cursor}, {commit.begin}) are in no record")
        if not valid:
            damage.append(f"bytes [{commit.begin}, {commit.end}) fail their checksum")
        elif commit.end > commit.begin:
            _extend(spans, (commit.begin, commit.end))
        registers = registers if commit.registers is None else commit.registers
        cursor = commit.end
    # After a power loss without syncs, a damaged last record was never durable, and is dropped like
    # any bad tail.
    if log.lost is not None and not lost_power:
        end = _end_of_lost(log.lost, cursor, begin + os.fstat(file.fd).st_size)
        damage.append(f"bytes [{cursor}, {end}) are in a record that fails its checksum")
        cursor = end
    # The length of a log that was not synced may be lost with the power, too.
    if log.cut and not lost_power:
        end = max(cursor, begin + os.fstat(file.fd).st_size)
        damage.append(f"the journal's log does not tell what followed {cursor}: {log.cut}")
        cursor = end
    return FragmentReplay(
        end=cursor,
        spans=tuple(spans),
        registers=registers,
        unconfirmed=unconfirmed or bool(damage),
        damage=tuple(damage),
    )


def _require_known(log: Log) -> None:
    for commit in log.commits:
        for _, checksum in commit.sums:
            if len(checksum) not in _HASHES:
                raise OSError(
                    errno.EPROTONOSUPPORT,
                    f"batch {commit.sequence} has a checksum of {len(checksum)} bytes, expected one of "
                    f"{' or '.join(map(str, _HASHES))}: open the journal with the version that wrote it",
                )


def _without_tail(good: list[bool]) -> int:
    """Return how many records remain after dropping the bad tail that was never durable."""
    kept = len(good)
    while kept and not good[kept - 1]:
        kept -= 1
    return kept


def _end_of_lost(lost: bytes, cursor: int, file_end: int) -> int:
    """Return the end of a damaged last record's content, or an offset beyond it, bytes."""
    with contextlib.suppress(msgspec.DecodeError):
        record = decode_record(lost)
        if not isinstance(record, Commit):
            return cursor
        longest = file_end if record.content is None else cursor + len(record.content)
        if record.begin == cursor <= record.end <= longest:
            return record.end
    # Offsets that a reader may have seen are never used again.
    return max(cursor + len(lost), file_end)


def _verified(disk: Disk | None, commit: Commit, file: ContentFile, begin: int) -> bool:
    position = commit.begin - begin
    if commit.content is not None and disk is not None:
        # One sync made a record with content durable, but not the file, which may lack the content.
        disk.write_at(file.fd, [commit.content], position)
        return True
    try:
        if commit.content is not None:
            return file.read_present(len(commit.content), position) == commit.content
        for length, expected in commit.sums:
            checksum = _HASHES[len(expected)]()
            if _checksum_of(file, position, length, checksum) != expected:
                return False
            position += length
    except OSError:
        return False
    return position == commit.end - begin


def _checksum_of(file: ContentFile, position: int, length: int, checksum: _Hash) -> bytes:
    for at in range(position, position + length, READ_BYTES):
        checksum.update(file.read(min(READ_BYTES, position + length - at), at))
    return checksum.digest()


def _extend(spans: list[Span], span: Span) -> None:
    if spans and spans[-1][1] == span[0]:
        spans[-1] = (spans[-1][0], span[1])
    else:
        spans.append(span)
