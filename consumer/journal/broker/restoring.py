"""Restoring quarantined data while its broker is stopped."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from consumer.errors import BrokerDataError
from consumer.journal.broker.catalogue import read_catalogue
from consumer.journal.broker.data_root import incarnation_name, lock_root
from consumer.journal.broker.disk import Disk, close_quietly
from consumer.journal.broker.quarantine import NAME_FILE, Quarantine


@contextmanager
def locked_quarantine(data_dir: Path) -> Iterator[Quarantine]:
    """Yield the quarantine of a data directory that no broker uses meanwhile.

    Raises:
        BrokerDataError: there is no data directory, or a broker is using it.
    """
    if not (data_dir / "FORMAT").exists():
        raise BrokerDataError(str(data_dir), "it is no data directory of a broker")
    lock_fd = lock_root(data_dir)
    try:
        yield Quarantine(Disk(), data_dir.resolve())
    finally:
        close_quietly(lock_fd)


def restore_entry(data_dir: Path, entry: str) -> Path:
    """Put an entry back, and return where it is now.

    A journal's directory becomes that of the journal of its name, which must have been applied anew. What that one has
    so far is quarantined in turn. Anything else goes where it was.

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
            raise BrokerDataError(str(content), "where it was is not known; move it by hand")
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
