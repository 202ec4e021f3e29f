"""Read-only opening of a journal, so that a full disk does not prevent reads. Blocking; writes nothing.

Only journals that need no repair are opened in this way. If recovery would have to drop, declare or restore anything,
the journal waits for space.
"""

from __future__ import annotations

import errno
import hashlib
import os
from dataclasses import dataclass
from pathlib import Path

from broadsheet.broker.commit_log import generation_path, generations
from broadsheet.broker.content_file import ContentFile
from broadsheet.broker.fragments import FragmentIndex, SealedFragment
from broadsheet.broker.lineage import UNKNOWN, Lineage
from broadsheet.broker.open_fragment import open_path
from broadsheet.broker.quarantine import NAME_FILE
from broadsheet.broker.recovery import Opening, is_power_lost, sealed_fragments
from broadsheet.broker.replay import READ_BYTES, FragmentReplay, Log, read_log, replay
from broadsheet.broker.store import LOG_STEM
from broadsheet.journals.block_sums import BlockSums

SPACE_TO_OPEN_BYTES = 1 << 20
"""Free space below which a journal is not opened for writing, because recovery would fail half way."""


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
    """Lineage of the last opening, because this one writes nothing."""


def open_read_only(directory: Path, opening: Opening) -> ReadOnly:
    """Open a journal's directory for reading.

    Raises:
        OSError: the disk failed, or the journal needs repair first.
    """
    known = generations(directory, LOG_STEM) if directory.is_dir() else []
    if not known:
        if directory.is_dir() and any(directory.iterdir()):
            raise _needs_repair(opening, "its log is missing")
        if opening.least_head is not None:
            raise _needs_repair(opening, "its directory is gone")
        nothing = FragmentReplay(end=0, spans=(), registers=b"", unconfirmed=False, damage=())
        return _opened(FragmentIndex(), Path(os.devnull), 0, nothing, UNKNOWN)
    log = read_log(generation_path(directory, LOG_STEM, known[-1]))
    if log is None or not (directory / NAME_FILE).exists():
        raise _needs_repair(opening, "its log or its name is damaged")
    path = open_path(directory, log.checkpoint.head)
    path = path if path.exists() else Path(os.devnull)
    replayed = _replayed(log, path)
    if replayed.end < (opening.least_head or 0):
        raise _needs_repair(opening, f"it ends before {opening.least_head}")
    if replayed.damage or is_power_lost(log, opening):
        raise _needs_repair(opening, "; ".join(replayed.damage))
    sealed = [*sealed_fragments(directory), *_unsealed(directory, log, opening)]
    lineage = Lineage(log.checkpoint.incarnation, log.checkpoint.epochs)
    return _opened(FragmentIndex(sealed), path, log.checkpoint.head, replayed, lineage)


def _replayed(log: Log, path: Path) -> FragmentReplay:
    file = ContentFile.open_sealed(path)
    try:
        return replay(None, log, file, lost_power=False)
    finally:
        file.release()


def _unsealed(directory: Path, log: Log, opening: Opening) -> list[SealedFragment]:
    """Return fragments that an interrupted roll left as an open file, which ends where the log begins."""
    found: list[SealedFragment] = []
    for path in directory.glob("*.open"):
        begin, size = int(path.stem, 16), path.stat().st_size
        if begin == log.checkpoint.head or not size:
            continue
        end = log.checkpoint.head
        if begin > end or size < end - begin:
            raise _needs_repair(opening, f"{path.name} does not match its log")
        sha1, _ = _sums(path, end - begin)
        found.append(SealedFragment(begin, end, sha1, int(path.stat().st_mtime), path))
    return found


def _opened(
    index: FragmentIndex, path: Path, begin: int, replayed: FragmentReplay, lineage: Lineage
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
    """Return the SHA-1 and the checksums of the first bytes of a file."""
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
        f"journal {opening.name} needs repair, but the disk has no space for it: {detail}",
    )
