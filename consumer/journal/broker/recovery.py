"""Opening a journal's directory: what survived, what is missing, and where to go on.

A torn tail was never acknowledged and is dropped. Acknowledged bytes that are gone are *declared*: every span that
verifies is served, the logged end stays the end of the index, and appends are refused until an operator's explicit
offset accepts the loss.

Source: gazette/core broker/append_fsm.go (the INDEX_HAS_GREATER_OFFSET protocol), our own log.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import msgspec

from consumer.journal.broker.content_file import ContentFile
from consumer.journal.broker.disk import Disk
from consumer.journal.broker.fragments import (
    FragmentIndex,
    SealedFragment,
    fragment_name,
    parse_fragment,
)
from consumer.journal.broker.frames import generation_path, generations
from consumer.journal.broker.open_fragment import open_path
from consumer.journal.broker.records import Checkpoint
from consumer.journal.broker.replay import (
    READ_BYTES,
    Log,
    Replay,
    Span,
    read_log,
    replay,
    salvage_log,
)
from consumer.journal.broker.store import LOG_STEM, JournalStore

NAME_FILE = "NAME"


@dataclass(frozen=True, slots=True)
class Recovered:
    """A journal ready to be served."""

    store: JournalStore
    index: FragmentIndex
    damage: tuple[str, ...]
    """What acknowledged bytes are gone, for people; empty if none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """How to open a journal's directory."""

    name: str
    synced: bool
    """Whether commits will be synced before they are acknowledged."""
    boot_id: str


def open_journal(disk: Disk, directory: Path, opening: Opening) -> Recovered:
    """Recover a journal's directory, or make it. Blocking.

    Raises:
        OSError, StoreError: the disk failed; it may be tried again.
    """
    if not (directory / NAME_FILE).exists():
        return _create(disk, directory, opening)
    return _Recovery(disk, directory, opening).run()


def _create(disk: Disk, directory: Path, opening: Opening) -> Recovered:
    directory.mkdir(parents=True, exist_ok=True)
    for leftover in directory.iterdir():
        # Without its name file the directory was never used: its making was cut short.
        leftover.unlink()
    checkpoint = Checkpoint(0, 0, b"", False, (), 0, opening.synced, opening.boot_id)
    store = JournalStore(
        disk, directory, generation=1, checkpoint=checkpoint, boot_id=opening.boot_id
    )
    with ExitStack() as undo:
        undo.callback(store.abandon)
        disk.write_file(directory / NAME_FILE, opening.name.encode())
        disk.sync_directory(directory.parent)
        undo.pop_all()
    return Recovered(store, FragmentIndex(), ())


class _Recovery:
    """One run over a directory; its steps stand in `run`."""

    def __init__(self, disk: Disk, directory: Path, opening: Opening) -> None:
        self._disk = disk
        self._directory = directory
        self._opening = opening
        self._generations = generations(directory, LOG_STEM)
        self._damage: list[str] = []

    def run(self) -> Recovered:
        log = self._newest_log()
        self._settle_older_files(log)
        current = open_path(self._directory, log.checkpoint.head)
        replayed = self._replay_open(log, current)
        self._damage += replayed.damage
        whole = not replayed.spans or replayed.spans == ((log.checkpoint.head, replayed.end),)
        if not whole:
            self._copy_spans(current, log.checkpoint.head, replayed.spans)
        expected_end = replayed.spans[-1][1] if whole and replayed.spans else None
        store = self._new_store(log, replayed, pending=(log.checkpoint.head, expected_end))
        with ExitStack() as undo:
            undo.callback(store.abandon)
            self._retire_open(current, store, whole=whole, replayed=replayed)
            for generation in self._generations:
                generation_path(self._directory, LOG_STEM, generation).unlink(missing_ok=True)
            self._disk.sync_directory(self._directory)
            self._skip_reserved(log, store)
            undo.pop_all()
        return Recovered(store, FragmentIndex(self._sealed()), tuple(self._damage))

    def _newest_log(self) -> Log:
        for generation in reversed(self._generations):
            log = read_log(generation_path(self._directory, LOG_STEM, generation))
            if log is not None:
                return log
        begins = [int(path.stem, 16) for path in self._directory.glob("*.open")]
        begin = max([*begins, *(fragment.end for fragment in self._sealed())], default=0)
        newest = self._generations[-1] if self._generations else 0
        path = generation_path(self._directory, LOG_STEM, newest)
        if not path.exists():
            path.touch()
            self._generations.append(newest)
        return salvage_log(path, open_begin=begin)

    def _settle_older_files(self, log: Log) -> None:
        """Finish what a crash interrupted: seal open files that end where the checkpoint begins."""
        for path in sorted(self._directory.glob("*.open")):
            begin = int(path.stem, 16)
            if begin == log.checkpoint.head:
                continue
            if path.stat().st_size == 0:
                path.unlink()
            elif begin > log.checkpoint.head or self._is_covered(begin, log.checkpoint):
                path.rename(path.with_suffix(".damaged"))
            else:
                self._seal_file(path, begin, log.checkpoint.head)

    def _is_covered(self, begin: int, checkpoint: Checkpoint) -> bool:
        return any(hole[1] > begin for hole in checkpoint.holes) or any(
            fragment.end > begin for fragment in self._sealed() if fragment.end <= checkpoint.head
        )

    def _seal_file(self, path: Path, begin: int, end: int) -> None:
        with path.open("r+b") as file:
            end = min(end, begin + os.fstat(file.fileno()).st_size)
            file.truncate(end - begin)
            self._disk.sync_data(file.fileno())
            digest = hashlib.file_digest(file, "sha1").digest()
        os.utime(path)
        path.rename(self._directory / fragment_name(begin, end, digest))

    def _replay_open(self, log: Log, current: Path) -> Replay:
        file = ContentFile.open_growing(current)
        try:
            replayed = replay(self._disk, log, file)
            if log.salvaged:
                length = os.fstat(file.fd).st_size
                replayed = replace(replayed, end=replayed.end + length)
            os.ftruncate(file.fd, replayed.end - log.checkpoint.head)
            self._disk.sync_data(file.fd)
        finally:
            file.release()
        return replayed

    def _copy_spans(self, source: Path, begin: int, spans: tuple[Span, ...]) -> None:
        """Save each verified span as a fragment of its own."""
        for span_begin, span_end in spans:
            digest = hashlib.sha1(usedforsecurity=False)
            temporary = self._directory / f"{span_begin:016x}.copy"
            with source.open("rb") as reader, temporary.open("wb") as writer:
                reader.seek(span_begin - begin)
                left = span_end - span_begin
                while left:
                    block = reader.read(min(READ_BYTES, left))
                    digest.update(block)
                    writer.write(block)
                    left -= len(block)
                writer.flush()
                self._disk.sync_data(writer.fileno())
            temporary.rename(self._directory / fragment_name(span_begin, span_end, digest.digest()))
        self._disk.sync_directory(self._directory)

    def _sealed(self) -> list[SealedFragment]:
        """Return the sealed fragments whose file has the length that its name promises, by begin."""
        found: list[SealedFragment] = []
        for path in sorted(self._directory.glob("*.raw")):
            fragment = parse_fragment(path)
            if fragment is None or path.stat().st_size != fragment.end - fragment.begin:
                continue
            if not found or fragment.begin >= found[-1].end:
                found.append(fragment)
        return found

    def _new_store(
        self, log: Log, replayed: Replay, *, pending: tuple[int, int | None]
    ) -> JournalStore:
        """Begin a new log at the end; `pending` is the span that the open file is about to be sealed as."""
        self._drop_uncommitted(replayed.end)
        spans = [(fragment.begin, fragment.end) for fragment in self._sealed()]
        if pending[1] is not None:
            spans.append((pending[0], pending[1]))
        declared = _after_first(log.checkpoint.holes, spans)
        fresh = _gaps([*spans, *declared], replayed.end)
        holes = sorted([*declared, *fresh])
        self._damage += [f"bytes [{begin}, {end}) are in no fragment" for begin, end in fresh]
        checkpoint = Checkpoint(
            sequence=log.sequence + 1,
            head=replayed.end,
            registers=replayed.registers,
            unconfirmed=replayed.unconfirmed or bool(fresh),
            holes=tuple(holes),
            # Kept until the reserved offsets are skipped: a crash before that must find them again.
            reserved=max(log.reserved, replayed.end),
            synced=log.checkpoint.synced,
            boot_id=log.checkpoint.boot_id,
        )
        return JournalStore(
            self._disk,
            self._directory,
            generation=max(self._generations) + 1,
            checkpoint=checkpoint,
            boot_id=self._opening.boot_id,
        )

    def _drop_uncommitted(self, end: int) -> None:
        """Remove a staged file that was renamed but whose commit never became durable."""
        for fragment in self._sealed():
            if fragment.begin >= end:
                fragment.path.unlink()

    def _retire_open(
        self, current: Path, store: JournalStore, *, whole: bool, replayed: Replay
    ) -> None:
        if not current.exists() or int(current.stem, 16) == store.open_begin:
            return
        if not whole or (not replayed.spans and current.stat().st_size):
            current.rename(current.with_suffix(".damaged"))
        elif replayed.spans:
            self._seal_file(current, *replayed.spans[0])
        else:
            current.unlink()

    def _skip_reserved(self, log: Log, store: JournalStore) -> None:
        """After a power loss without syncs, go on beyond every offset that a reader may have seen."""
        lost = not log.checkpoint.synced and log.checkpoint.boot_id != self._opening.boot_id
        begin = max(log.reserved, store.head) if lost else store.head
        old = store.state
        if lost or old.synced != self._opening.synced or old.boot_id != self._opening.boot_id:
            store.roll(begin=begin, synced=self._opening.synced).retired.release()
            return
        if not self._opening.synced:
            store.state = msgspec.structs.replace(old, reserved=max(old.reserved, old.head))


def _after_first(holes: Iterable[Span], spans: Sequence[Span]) -> list[Span]:
    """Return the holes that do not lie before all content: what surrounded the others was removed by retention."""
    first = min((begin for begin, _ in spans), default=0)
    return [hole for hole in holes if hole[1] > first]


def _gaps(spans: list[Span], end: int) -> list[Span]:
    """Return what lies between spans, and between the last one and the end, bytes.

    What lies before the first one was removed by retention; but that never removes everything.
    """
    bounds = [*(sorted(spans) or [(0, 0)]), (end, end)]
    return [(before[1], after[0]) for before, after in pairwise(bounds) if before[1] < after[0]]
