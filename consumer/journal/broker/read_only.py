"""Opening a journal without writing anything: on a full disk, what is there is served all the same. Blocking.

Only what needs no repair is opened so: where recovery would have to drop, declare or restore anything, the journal
waits for space.
"""

from __future__ import annotations

import errno
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from consumer.journal.broker.block_sums import BlockSums
from consumer.journal.broker.content_file import ContentFile
from consumer.journal.broker.fragments import FragmentIndex, SealedFragment
from consumer.journal.broker.frames import generation_path, generations
from consumer.journal.broker.lineage import UNKNOWN, Lineage
from consumer.journal.broker.open_fragment import open_path
from consumer.journal.broker.quarantine import NAME_FILE
from consumer.journal.broker.recovery import Opening, is_power_lost, sealed_fragments
from consumer.journal.broker.replay import READ_BYTES, Log, Replay, read_log, replay
from consumer.journal.broker.store import LOG_STEM

SPACE_TO_OPEN_BYTES = 1 << 20
"""A journal whose disk has less free is not opened for writing: recovery would fail half way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOnly:
    """A journal that can be read but not written."""

    index: FragmentIndex
    head: int
    """The write head, bytes."""
    registers: bytes
    """Encoded LabelSet."""
    unconfirmed: bool
    open_begin: int
    """First byte of the open fragment, bytes."""
    open_sum: bytes
    """SHA-1 of the open fragment."""
    file: ContentFile
    """The open fragment."""
    lineage: Lineage
    """As of the last opening: this one writes nothing."""


def open_read_only(directory: Path, opening: Opening) -> ReadOnly:
    """Open a journal's directory for reading.

    Raises:
        OSError: the disk failed, or the journal needs repair first.
    """
    known = generations(directory, LOG_STEM) if directory.is_dir() else []
    if not known:
        if directory.is_dir() and any(directory.iterdir()):
            raise _needs_repair(opening, "its log is missing")
        nothing = Replay(end=0, spans=(), registers=b"", unconfirmed=False, damage=())
        return _opened(FragmentIndex(), Path(os.devnull), 0, nothing, UNKNOWN)
    log = read_log(generation_path(directory, LOG_STEM, known[-1]))
    if log is None or not (directory / NAME_FILE).exists():
        raise _needs_repair(opening, "its log or its name is damaged")
    path = open_path(directory, log.checkpoint.head)
    path = path if path.exists() else Path(os.devnull)
    replayed = _replayed(log, path)
    if replayed.damage or is_power_lost(log, opening):
        raise _needs_repair(opening, "; ".join(replayed.damage))
    sealed = [*sealed_fragments(directory), *_unsealed(directory, log, opening)]
    lineage = Lineage(log.checkpoint.incarnation, log.checkpoint.epochs)
    return _opened(FragmentIndex(sealed), path, log.checkpoint.head, replayed, lineage)


def _replayed(log: Log, path: Path) -> Replay:
    file = ContentFile.open_sealed(path)
    try:
        return replay(None, log, file, lost_power=False)
    finally:
        file.release()


def _unsealed(directory: Path, log: Log, opening: Opening) -> list[SealedFragment]:
    """Return what a roll that was cut short left in its open file: it ends where the log begins."""
    found: list[SealedFragment] = []
    for path in directory.glob("*.open"):
        begin, size = int(path.stem, 16), path.stat().st_size
        if begin == log.checkpoint.head or not size:
            continue
        end = log.checkpoint.head
        if begin > end or size < end - begin:
            raise _needs_repair(opening, f"{path.name} is not what its log says")
        sha1, _ = _sums(path, end - begin)
        found.append(SealedFragment(begin, end, sha1, int(path.stat().st_mtime), path))
    return found


def _opened(
    index: FragmentIndex, path: Path, begin: int, replayed: Replay, lineage: Lineage
) -> ReadOnly:
    sha1, sums = _sums(path, replayed.end - begin)
    file = ContentFile.open_sealed(path, sums=sums)
    return ReadOnly(
        index=index,
        head=replayed.end,
        registers=replayed.registers,
        unconfirmed=replayed.unconfirmed,
        open_begin=begin,
        open_sum=sha1,
        file=file,
        lineage=lineage,
    )


def _sums(path: Path, length: int) -> tuple[bytes, BlockSums]:
    """Return the SHA-1 and the sums of the first bytes of a file."""
    sha1, sums, left = hashlib.sha1(usedforsecurity=False), BlockSums(), length
    with path.open("rb") as file:
        while left and (block := file.read(min(READ_BYTES, left))):
            sha1.update(block)
            sums.update(block)
            left -= len(block)
    sums.settle()
    return sha1.digest(), sums


def _needs_repair(opening: Opening, detail: str) -> OSError:
    return OSError(
        errno.ENOSPC,
        f"journal {opening.name} must be repaired, for which there is no room: {detail}",
    )
