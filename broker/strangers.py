"""Directories that the catalogue does not name: removed if their deletion was acknowledged, else quarantined.

A directory younger than the catalogue proves that the catalogue went back in time, and so does a damaged log. Then
nothing is changed unless an operator has accepted the loss.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

import structlog

from broadsheet.broker.catalogue import StoredCatalogue, read_catalogue
from broadsheet.broker.data_root import DataRoot, incarnation_name, lock_root
from broadsheet.broker.disk import Disk, close_quietly, is_out_of_space
from broadsheet.broker.errors import BrokerDataError
from broadsheet.broker.quarantine import NAME_FILE, JournalQuarantine

ACCEPT_OPTION = "--accept-catalogue-loss"
_INCARNATION = re.compile(r"([0-9]{1,19})-[0-9a-f]{16}")
_log = structlog.get_logger()


class StrangerFate(Enum):
    """Treatment of an unknown directory at a start."""

    KEEP = "keep"
    REMOVE = "remove"
    QUARANTINE = "quarantine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """Directory names that the catalogue knows."""

    live: AbstractSet[str]
    deleted: AbstractSet[str]
    """Directory names of journals whose deletion is in the log."""

    @staticmethod
    def of(stored: StoredCatalogue) -> Known:
        """Return the names in a catalogue."""
        live = {
            incarnation_name(name, each.create_revision) for name, each in stored.entries.items()
        }
        return Known(live=live, deleted={incarnation_name(*each) for each in stored.deleted})


def fate_in_journals(name: str, known: Known) -> StrangerFate:
    """Decide on an entry of `journals/`."""
    if name in known.live:
        return StrangerFate.KEEP
    return StrangerFate.REMOVE if name in known.deleted else StrangerFate.QUARANTINE


def fate_in_trash(name: str, known: Known, *, is_trusted: bool) -> StrangerFate:
    """Decide on an entry of `trash/`, which receives directories once their deletion is durable.

    Args:
        name: Of the entry.
        known: To the catalogue.
        is_trusted: Whether the catalogue is whole.
    """
    is_deleted = name not in known.live and _INCARNATION.fullmatch(name) is not None
    # Without a trusted catalogue, a missing entry does not prove that the deletion was
    # acknowledged.
    return StrangerFate.REMOVE if is_trusted and is_deleted else StrangerFate.QUARANTINE


def create_revision_of(name: str) -> int:
    """Return the create revision in a directory's name; 0 if the name is not a journal's."""
    match = _INCARNATION.fullmatch(name)
    return int(match[1]) if match else 0


def settle_root(
    root: DataRoot,
    quarantine: JournalQuarantine,
    stored: StoredCatalogue,
    *,
    accepts_loss: bool,
    wall_seconds: int,
) -> StoredCatalogue:
    """Compare the directories with the catalogue; return the catalogue to use. Blocking.

    Args:
        root: The data directory.
        quarantine: Takes what is not known.
        stored: What the catalogue's log says.
        accepts_loss: An operator accepts that the catalogue lacks acknowledged changes.
        wall_seconds: The present time, which outranks any revision that may have been lost.

    Raises:
        BrokerDataError: the catalogue is damaged or went back, and no operator accepted that.
    """
    names = [path.name for path in (*root.journals.iterdir(), *root.trash.iterdir())]
    newest = max(map(create_revision_of, names), default=0)
    problem = stored.problem
    if not problem and newest > stored.revision:
        problem = (
            f"it ends at revision {stored.revision}, but a journal was created at {newest}: "
            "acknowledged changes are missing"
        )
    if problem and not accepts_loss:
        raise BrokerDataError(
            str(stored.path),
            f"{problem}; restore the catalogue from a backup, or start once with {ACCEPT_OPTION}, "
            "which quarantines the journals that it does not name",
        )
    if problem:
        _log.error("catalogue.loss_accepted", path=str(stored.path), detail=problem)
        quarantine.put_copy(root.catalogue, why=f"damaged catalogue: {problem}")
        # Clients may have seen the lost revisions, so the next one must exceed them all.
        stored = replace(stored, revision=max(stored.revision, newest, wall_seconds) + 1)
    _settle(root, quarantine, Known.of(stored), is_trusted=not problem)
    return stored


def with_journals_found(root: DataRoot, stored: StoredCatalogue) -> StoredCatalogue:
    """Return a catalogue that remembers each journal that has a directory, for one that an earlier version wrote.

    A creation that was interrupted leaves no name, and was never answered.
    """
    found = {
        name: 0
        for name, each in stored.entries.items()
        if name not in stored.least_heads
        and (root.journal_directory(name, each.create_revision) / NAME_FILE).exists()
    }
    return replace(stored, least_heads={**found, **stored.least_heads})


def _settle(
    root: DataRoot, quarantine: JournalQuarantine, known: Known, *, is_trusted: bool
) -> None:
    for path in sorted(root.journals.iterdir()):
        fate = fate_in_journals(path.name, known)
        _act(path, fate, quarantine, why="the catalogue names no such journal")
    for path in sorted(root.trash.iterdir()):
        fate = fate_in_trash(path.name, known, is_trusted=is_trusted)
        _act(path, fate, quarantine, why="nothing says that its deletion was acknowledged")


def _act(path: Path, fate: StrangerFate, quarantine: JournalQuarantine, *, why: str) -> None:
    if fate is StrangerFate.REMOVE:
        shutil.rmtree(path, ignore_errors=True)
    elif fate is StrangerFate.QUARANTINE:
        try:
            quarantine.put(path, why=why)
        except OSError as error:
            if not is_out_of_space(error):
                raise
            # It is harmless where it is, because no journal uses that name.
            _log.warning("quarantine.full", path=str(path), detail=str(error))


# Restoring quarantined data while its broker is stopped.


@contextmanager
def locked_quarantine(data_dir: Path) -> Iterator[JournalQuarantine]:
    """Yield the quarantine of a data directory, locked against brokers.

    Raises:
        BrokerDataError: there is no data directory, or a broker is using it.
    """
    if not (data_dir / "FORMAT").exists():
        raise BrokerDataError(str(data_dir), "not the data directory of a broker")
    lock_fd = lock_root(data_dir)
    try:
        yield JournalQuarantine(Disk(), data_dir.resolve())
    finally:
        close_quietly(lock_fd)


def restore_entry(data_dir: Path, entry: str) -> Path:
    """Put an entry back, and return its new path.

    A journal's directory becomes that of the journal with its name, whose spec must have been applied again. What that
    journal has so far is quarantined in turn. Other data returns to its original path.

    Raises:
        ValidationError: there is no such entry.
        BrokerDataError: its journal is not in the catalogue, or something is at its place.
        OSError: the disk failed.
    """
    with locked_quarantine(data_dir) as quarantine:
        root = data_dir.resolve()
        content = quarantine.content(entry)
        found = next(each for each in quarantine.entries() if each.id == entry)
        if not found.reason.path:
            raise BrokerDataError(str(content), "its original path is unknown; move it by hand")
        target = root / found.reason.path
        if (content / NAME_FILE).exists() or (content.is_dir() and found.reason.journal):
            target = _journal_directory(root, found.reason.journal)
            if target.exists():
                quarantine.put(target, why=f"replaced by the restored {entry}")
        quarantine.restore(entry, target)
        return target


def _journal_directory(root: Path, journal: str) -> Path:
    stored = read_catalogue(root / "catalogue")
    known = stored.entries.get(journal)
    if known is None:
        raise BrokerDataError(
            str(stored.path),
            f"it has no journal {journal!r}: start the broker, apply the journal's spec, stop the broker, then restore",
        )
    return root / "journals" / incarnation_name(journal, known.create_revision)
