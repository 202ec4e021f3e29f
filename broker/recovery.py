"""Recovery of a journal's directory: the surviving content, the losses, and the offset to continue at.

A torn tail was never acknowledged and is dropped. Unusable data is moved to the quarantine. Lost acknowledged bytes are
*declared*: every span that verifies is served, the logged end stays the end of the index, and appends are refused until
an operator's explicit offset accepts the loss.

Source: gazette/core broker/append_fsm.go (the INDEX_HAS_GREATER_OFFSET protocol), our own log.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec
import structlog

from broadsheet.broker.commit_log import Checkpoint, generation_path, generations
from broadsheet.broker.content_file import ContentFile
from broadsheet.broker.disk import Disk
from broadsheet.broker.fragment_sums import write_sums
from broadsheet.broker.fragments import (
    FETCHED_SUFFIX,
    STORED_SUFFIX,
    FragmentIndex,
    SealedFragment,
    fragment_name,
    parse_fragment,
    write_record,
)
from broadsheet.broker.lineage import UNKNOWN, Lineage
from broadsheet.broker.open_fragment import open_path
from broadsheet.broker.quarantine import NAME_FILE, JournalQuarantine
from broadsheet.broker.replay import (
    READ_BYTES,
    FragmentReplay,
    Log,
    Span,
    is_cut_off,
    read_log,
    replay,
    salvage_log,
)
from broadsheet.broker.store import LOG_STEM, JournalStore
from broadsheet.journals.block_sums import BlockSums

_TORN = "the journal's log ends within a record: what follows was not acknowledged, unless the log was cut"
_log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class RecoveredJournal:
    """A journal ready to be served."""

    store: JournalStore
    index: FragmentIndex
    damage: tuple[str, ...]
    """Descriptions of lost acknowledged bytes, for people; empty if none are lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """Parameters of opening a journal's directory."""

    name: str
    synced: bool
    """True if commits will be synced before they are acknowledged."""
    boot_id: str
    quarantine: JournalQuarantine | None = None
    """Takes unusable data; if None, a quarantine beside the journal's directory does."""
    least_head: int | None = None
    """A head that the journal has reached, bytes; None if it has never had a directory, as far as is known."""
    stored: Sequence[SealedFragment] = ()
    """For a journal without a directory: its fragments in stores, in order of their offsets."""
    lineage: Lineage = UNKNOWN
    """For a journal without a directory: the lineage of these fragments."""


def open_journal(disk: Disk, directory: Path, opening: Opening) -> RecoveredJournal:
    """Recover a journal's directory, or create it. Blocking.

    Raises:
        OSError, JournalStoreError: the disk failed; it may be tried again.
    """
    aside = opening.quarantine or JournalQuarantine(disk, directory.parent)
    name = directory / NAME_FILE
    if not name.exists() and not _was_used(directory, aside):
        return _create(disk, directory, opening)
    if not name.exists() or name.read_bytes() != opening.name.encode():
        # The directory's name has a hash of the journal's name, so a mismatch means that the name
        # file is damaged.
        _log.error("journal.name_restored", journal=opening.name, path=str(name))
        disk.write_file(name, opening.name.encode())
    # The process that created it may have been killed before it synced its name, which appends then rest on.
    disk.sync_directory(directory.parent)
    return _Recovery(disk, directory, opening, aside).run()


def _was_used(directory: Path, aside: JournalQuarantine) -> bool:
    """Tell whether a directory without a name file holds a journal; moves away what an interrupted creation left."""
    if not directory.is_dir():
        return False
    # Records of copies come first at a creation, and are made again from the store.
    left = [path for path in directory.iterdir() if path.suffix not in (".new", STORED_SUFFIX)]
    logs = [generation_path(directory, LOG_STEM, each) for each in generations(directory, LOG_STEM)]
    others = [path for path in left if path not in logs]
    # A complete log or any content is worth recovering, whether the name was lost or never written.
    if not all(map(is_cut_off, logs)) or any(path.stat().st_size for path in others):
        return True
    if any(path.suffix != ".new" for path in directory.iterdir()):
        aside.put(directory, why="the journal's creation was interrupted")
    return False


def _create(disk: Disk, directory: Path, opening: Opening) -> RecoveredJournal:
    """Create a journal.

    One with fragments in stores begins at their end, and one that had a directory at the least head that is known:
    what followed is lost, and an operator must confirm that.
    """
    directory.mkdir(parents=True, exist_ok=True)
    stored = opening.stored
    for fragment in stored:
        write_record(disk, fragment)
    spans = [(fragment.begin, fragment.end) for fragment in stored]
    first = min((begin for begin, _ in spans), default=0)
    head = max((end for _, end in spans), default=0)
    damage: tuple[str, ...] = ()
    if opening.least_head is not None:
        # Offset 0 cannot be confirmed, because an append that names it names none.
        head = max(head, opening.least_head, 1)
        damage = (f"its directory is gone, and the journal had content up to {head} at least",)
    # Shards that have read no more than the stores hold go on; those that have read beyond see that it is lost.
    lineage = opening.lineage.next_epoch(head)
    checkpoint = Checkpoint(
        sequence=0,
        head=head,
        registers=b"",
        # What was appended after the newest fragment, if anything, is lost.
        unconfirmed=bool(stored) or bool(damage),
        holes=tuple(_gaps(first, spans, head)),
        reserved=head,
        synced=opening.synced,
        boot_id=opening.boot_id,
        first=first,
        incarnation=lineage.incarnation,
        epochs=lineage.epochs,
    )
    store = JournalStore(
        disk, directory, generation=1, checkpoint=checkpoint, boot_id=opening.boot_id
    )
    with ExitStack() as undo:
        undo.callback(store.abandon)
        disk.write_file(directory / NAME_FILE, opening.name.encode())
        disk.sync_directory(directory.parent)
        undo.pop_all()
    return RecoveredJournal(store, FragmentIndex(stored), damage)


class _Recovery:
    """One recovery of a directory; `run` lists its steps."""

    def __init__(
        self, disk: Disk, directory: Path, opening: Opening, quarantine: JournalQuarantine
    ) -> None:
        self._disk = disk
        self._directory = directory
        self._opening = opening
        self._quarantine = quarantine
        self._generations = generations(directory, LOG_STEM)
        self._damage: list[str] = []
        self._keeps_files = False
        """True if open file and log are to be moved to the quarantine unchanged."""

    def run(self) -> RecoveredJournal:
        log = self._newest_log()
        self._settle_older_files(log)
        # A crash interrupted these fetches; the store still has the content.
        for path in self._directory.glob(f".*{FETCHED_SUFFIX}"):
            path.unlink(missing_ok=True)
        current = open_path(self._directory, log.checkpoint.head)
        replayed = self._with_later_fragments(self._replay_open(log, current))
        replayed = self._with_least_head(log, replayed)
        self._damage += replayed.damage
        self._keeps_files = self._keeps_files or bool(self._damage)
        content = ((log.checkpoint.head, replayed.end),)
        whole = not self._keeps_files and replayed.spans in ((), content)
        if not whole:
            self._copy_spans(current, log.checkpoint.head, replayed.spans)
        if not whole and replayed.end == log.checkpoint.head and current.stat().st_size:
            # Moved away because the next open file has the same name.
            self._set_aside(current)
        expected_end = replayed.spans[-1][1] if whole and replayed.spans else None
        store = self._new_store(log, replayed, pending=(log.checkpoint.head, expected_end))
        with ExitStack() as undo:
            undo.callback(store.abandon)
            self._retire_open(current, store, whole=whole, replayed=replayed)
            for generation in self._generations:
                self._retire_log(generation_path(self._directory, LOG_STEM, generation))
            self._disk.sync_directory(self._directory)
            self._skip_reserved(log, store)
            undo.pop_all()
        return RecoveredJournal(store, FragmentIndex(self._sealed()), tuple(self._damage))

    def _newest_log(self) -> Log:
        damaged: Path | None = None
        for generation in reversed(self._generations):
            path = generation_path(self._directory, LOG_STEM, generation)
            log = read_log(path)
            if log is not None:
                return log
            if not is_cut_off(path):
                # An older generation does not know what followed this one's checkpoint.
                damaged = path
                break
        begins = [int(path.stem, 16) for path in self._directory.glob("*.open")]
        begin = max([*begins, *(fragment.end for fragment in self._sealed())], default=0)
        # Every log was interrupted at its creation, or none exists, so there are no records to
        # salvage.
        if damaged is None:
            newest = self._generations[-1] if self._generations else 0
            damaged = generation_path(self._directory, LOG_STEM, newest)
            if not damaged.exists():
                damaged.touch()
                self._generations.append(newest)
        return salvage_log(damaged, open_begin=begin)

    def _retire_log(self, path: Path) -> None:
        """Remove a log whose journal is intact; quarantine a damaged one for investigation."""
        if (self._damage or self._keeps_files) and path.exists() and path.stat().st_size:
            self._set_aside(path)
        else:
            path.unlink(missing_ok=True)

    def _set_aside(self, path: Path, why: str = "") -> None:
        why = why or "; ".join(self._damage) or _TORN
        self._quarantine.put(path, why=why, journal=self._opening.name)

    def _with_later_fragments(self, replayed: FragmentReplay) -> FragmentReplay:
        """Add sealed fragments beyond the logged end: their existence means that the log went back."""
        later = [fragment for fragment in self._sealed() if fragment.begin >= replayed.end]
        if not later:
            return replayed
        is_published = later[0].stored is not None
        follows = len(later) == 1 and later[0].begin == replayed.end
        if follows and not replayed.damage and not is_published:
            # A staged file that was renamed, but whose commit never became durable.
            self._set_aside(later[0].path, "its append was never acknowledged")
            return replayed
        begin, end = later[0].begin, later[-1].end
        damage = f"fragments [{begin}, {end}) are beyond the logged end {replayed.end}"
        return replace(replayed, end=end, unconfirmed=True, damage=(*replayed.damage, damage))

    def _with_least_head(self, log: Log, replayed: FragmentReplay) -> FragmentReplay:
        """Compare the end with the head that the catalogue remembers, before which only a cut log or a copy ends."""
        least = self._opening.least_head or 0
        # Commits that were not synced may be lost with the power; their offsets are skipped.
        if replayed.end >= least or is_power_lost(log, self._opening):
            return replayed
        damage = f"it ends at {replayed.end}, and the catalogue remembers {least}"
        return replace(replayed, end=least, unconfirmed=True, damage=(*replayed.damage, damage))

    def _settle_older_files(self, log: Log) -> None:
        """Finish what a crash interrupted: seal open files that end where the checkpoint begins."""
        for path in sorted(self._directory.glob("*.open")):
            begin = int(path.stem, 16)
            if begin == log.checkpoint.head:
                continue
            if path.stat().st_size == 0:
                path.unlink()
            # It cannot end at the checkpoint: it begins after it, or its bytes are already sealed
            # or declared lost.
            elif begin > log.checkpoint.head or self._is_covered(begin, log.checkpoint):
                self._set_aside(path)
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
            digest, sums = hashlib.sha1(usedforsecurity=False), BlockSums()
            while block := file.read(READ_BYTES):
                digest.update(block)
                sums.update(block)
        os.utime(path)
        target = self._directory / fragment_name(begin, end, digest.digest())
        path.rename(target)
        sums.settle()
        write_sums(target, end - begin, sums.encoded())

    def _replay_open(self, log: Log, current: Path) -> FragmentReplay:
        file = ContentFile.open_growing(current)
        try:
            replayed = replay(self._disk, log, file, lost_power=is_power_lost(log, self._opening))
            if log.salvaged:
                length = os.fstat(file.fd).st_size
                # Without checkpoint and records, the file's length is the only bound of the
                # acknowledged content.
                replayed = replace(replayed, end=replayed.end + length)
            length = replayed.end - log.checkpoint.head
            # A log is torn by an interrupted write or by damage; only damage leaves more content
            # than the log knows of.
            self._keeps_files = log.torn and os.fstat(file.fd).st_size > length
            if not replayed.damage and not self._keeps_files:
                # The following bytes were never acknowledged, or were in the file before it was
                # recycled.
                os.ftruncate(file.fd, length)
            self._disk.sync_data(file.fd)
        finally:
            file.release()
        return replayed

    def _copy_spans(self, source: Path, begin: int, spans: tuple[Span, ...]) -> None:
        """Save each verified span as a separate fragment."""
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
        return sealed_fragments(self._directory)

    def _new_store(
        self, log: Log, replayed: FragmentReplay, *, pending: tuple[int, int | None]
    ) -> JournalStore:
        """Begin a new log at the end; `pending` is the span as which the open file is about to be sealed."""
        spans = [(fragment.begin, fragment.end) for fragment in self._sealed()]
        if pending[1] is not None:
            spans.append((pending[0], pending[1]))
        first, holes = _beginning(log, spans)
        fresh = _gaps(first, [*spans, *holes], replayed.end)
        holes = sorted([*holes, *fresh])
        self._damage += [f"bytes [{begin}, {end}) are in no fragment" for begin, end in fresh]
        lineage = Lineage(log.checkpoint.incarnation, log.checkpoint.epochs).next_epoch(
            self._go_on_at(log, replayed.end)
        )
        checkpoint = Checkpoint(
            sequence=log.sequence + 1,
            head=replayed.end,
            registers=replayed.registers,
            unconfirmed=replayed.unconfirmed or bool(fresh),
            holes=tuple(holes),
            # Kept until the reserved offsets are skipped, because a recovery after a crash before
            # that must find them.
            reserved=max(log.reserved, replayed.end),
            synced=log.checkpoint.synced,
            boot_id=log.checkpoint.boot_id,
            first=first,
            incarnation=lineage.incarnation,
            epochs=lineage.epochs,
        )
        return JournalStore(
            self._disk,
            self._directory,
            generation=max(self._generations) + 1,
            checkpoint=checkpoint,
            boot_id=self._opening.boot_id,
        )

    def _retire_open(
        self, current: Path, store: JournalStore, *, whole: bool, replayed: FragmentReplay
    ) -> None:
        if not current.exists() or int(current.stem, 16) == store.open_begin:
            return
        if current.stat().st_size and (not whole or not replayed.spans):
            self._set_aside(current)
        elif replayed.spans:
            self._seal_file(current, *replayed.spans[0])
        else:
            current.unlink()

    def _skip_reserved(self, log: Log, store: JournalStore) -> None:
        """Continue beyond every offset that a reader may have seen, after a power loss without syncs."""
        begin = self._go_on_at(log, store.head)
        old = store.state
        if (
            is_power_lost(log, self._opening)
            or old.synced != self._opening.synced
            or old.boot_id != self._opening.boot_id
        ):
            store.roll(begin=begin, synced=self._opening.synced).retired.release()
            return
        if not self._opening.synced:
            store.state = msgspec.structs.replace(old, reserved=max(old.reserved, old.head))

    def _go_on_at(self, log: Log, end: int) -> int:
        """Return the first offset of new content, bytes, for a journal that was recovered up to `end`."""
        return max(log.reserved, end) if is_power_lost(log, self._opening) else end


def is_power_lost(log: Log, opening: Opening) -> bool:
    """Tell whether commits that were never synced may be lost."""
    return not log.checkpoint.synced and log.checkpoint.boot_id != opening.boot_id


def sealed_fragments(directory: Path) -> list[SealedFragment]:
    """Return the sealed fragments whose file has the length in its name, or that are in a store, ordered by begin."""
    found: list[SealedFragment] = []
    paths = {
        *directory.glob("*.raw"),
        *(path.with_suffix("") for path in directory.glob(f"*.raw{STORED_SUFFIX}")),
    }
    for path in sorted(paths):
        fragment = _parsed(path)
        if fragment is not None and (not found or _follows(found[-1], fragment)):
            found.append(fragment)
    return found


def _parsed(path: Path) -> SealedFragment | None:
    try:
        fragment = parse_fragment(path)
    except FileNotFoundError:  # The file is gone, and the record of its copy is damaged.
        return None
    if fragment is None or fragment.stored is not None:
        return fragment
    return fragment if path.stat().st_size == fragment.end - fragment.begin else None


def _follows(before: SealedFragment, after: SealedFragment) -> bool:
    """Tell whether a fragment goes on after another one; those of a store may overlap."""
    overlaps = before.stored is not None and before.begin < after.begin and before.end < after.end
    return after.begin >= before.end or overlaps


def _beginning(log: Log, spans: Sequence[Span]) -> tuple[int, list[Span]]:
    """Return the first offset of a journal, and the known holes after it, bytes.

    Content missing before that was removed on purpose. Logs of earlier versions do not have the offset: for them it is
    that of the first content, which the log records from now on.
    """
    first = log.first
    if first is None:
        first = min((begin for begin, _ in spans), default=0)
    holes: list[Span] = []
    for begin, end in sorted(log.checkpoint.holes):
        if begin <= first:
            first = max(first, end)
        else:
            holes.append((begin, end))
    return first, holes


def _gaps(first: int, spans: Iterable[Span], end: int) -> list[Span]:
    """Return the spans of a journal, from its beginning to its end, that have no content, bytes."""
    gaps: list[Span] = []
    cursor = first
    for begin, stop in sorted(spans):
        if begin > cursor:
            gaps.append((cursor, begin))
        cursor = max(cursor, stop)
    if cursor < end:
        gaps.append((cursor, end))
    return gaps
