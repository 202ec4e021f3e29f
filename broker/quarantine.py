"""Quarantine: data of unknown origin, moved aside instead of removed, and kept until an operator decides.

    quarantine/<entry>/REASON     what it was, where, why and when it was moved here (JSON)
    quarantine/<entry>/content    the file or directory itself

The reason is durable before the move. An entry without content is a move that was cut short, and means nothing.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
import structlog

from broadsheet.broker.disk import Disk
from broadsheet.broker.errors import BrokerDataError
from broadsheet.runtime.documents import DocumentError, decode_json
from broadsheet.runtime.errors import ValidationError

REASON_FILE: Final = "REASON"
CONTENT: Final = "content"
NAME_FILE: Final = "NAME"
"""Inside a journal's directory: the journal's exact name."""
NAME_BYTES_MAX = 4096
"""More of a damaged name is not read."""
_ENTRY = re.compile(r"[0-9]{8}T[0-9]{6}Z-[0-9a-f]{8}-[0-9A-Za-z._-]{1,200}")

_log = structlog.get_logger()


class QuarantineReason(msgspec.Struct, frozen=True, kw_only=True):
    """Record beside a quarantined file or directory."""

    path: str
    """Original path, relative to the data directory."""
    why: str
    at: str
    """Time of the move, RFC 3339."""
    journal: str = ""
    """Journal that the data belongs to, if known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Quarantined:
    """One entry of the quarantine."""

    id: str
    reason: QuarantineReason
    bytes: int
    """Size of all its files."""


class JournalQuarantine:
    """The quarantine of a data directory. Blocking; called in any thread."""

    def __init__(self, disk: Disk, root: Path) -> None:
        self._disk = disk
        self._root = root
        self.directory = root / "quarantine"

    def put(self, path: Path, *, why: str, journal: str = "") -> str:
        """Move a file or directory here, and return the id of its entry.

        Raises:
            OSError: the disk failed; the file is where it was.
        """
        entry, target = self._begin(path, why=why, journal=journal)
        try:
            path.rename(target / CONTENT)
        except BaseException:
            shutil.rmtree(target, ignore_errors=True)
            raise
        for directory in (target, self.directory, path.parent):
            self._disk.sync_directory(directory)
        _log.error("quarantine.added", entry=entry, path=str(path), journal=journal, why=why)
        return entry

    def put_copy(self, directory: Path, *, why: str) -> str:
        """Copy a directory that is about to be rewritten into the quarantine; return the id of its entry.

        Raises:
            OSError: the disk failed.
        """
        entry, target = self._begin(directory, why=why, journal="")
        (target / CONTENT).mkdir()
        for path in directory.iterdir():
            self._disk.write_file(target / CONTENT / path.name, path.read_bytes())
        self._disk.sync_directory(self.directory)
        _log.error("quarantine.added", entry=entry, path=str(directory), why=why)
        return entry

    def _begin(self, path: Path, *, why: str, journal: str) -> tuple[str, Path]:
        """Create an entry without content."""
        now = datetime.now(UTC)
        entry = f"{now:%Y%m%dT%H%M%SZ}-{secrets.token_hex(4)}-{_printable(path.name)}"
        target = self.directory / entry
        reason = QuarantineReason(
            path=str(path.relative_to(self._root)),
            why=why,
            at=now.isoformat(),
            journal=journal or _name_in(path),
        )
        target.mkdir(parents=True)
        try:
            self._disk.write_file(target / REASON_FILE, msgspec.json.encode(reason))
        except BaseException:
            shutil.rmtree(target, ignore_errors=True)
            raise
        return entry, target

    def entries(self) -> list[Quarantined]:
        """Return all entries, oldest first."""
        if not self.directory.is_dir():
            return []
        found: list[Quarantined] = []
        for target in sorted(self.directory.iterdir()):
            content = target / CONTENT
            if content.exists() or content.is_symlink():
                found.append(
                    Quarantined(id=target.name, reason=_reason_of(target), bytes=_size_of(content))
                )
        return found

    def content(self, entry: str) -> Path:
        """Return the path of an entry's file or directory.

        Raises:
            ValidationError: there is no such entry.
        """
        path = self.directory / entry / CONTENT
        if not _ENTRY.fullmatch(entry) or not path.exists():
            raise ValidationError("entry", f"there is no {entry!r} in {self.directory}; list them")
        return path

    def purge(self, entry: str) -> None:
        """Remove one entry permanently.

        Raises:
            ValidationError: there is no such entry.
            OSError: the disk failed.
        """
        self.content(entry)
        shutil.rmtree(self.directory / entry)
        _log.warning("quarantine.purged", entry=entry)

    def restore(self, entry: str, target: Path) -> None:
        """Move an entry's content to an unused path.

        Raises:
            ValidationError: there is no such entry.
            BrokerDataError: something is at the target.
            OSError: the disk failed.
        """
        content = self.content(entry)
        if target.exists():
            raise BrokerDataError(
                str(target), f"cannot restore {entry} here: the path already exists"
            )
        content.rename(target)
        self._disk.sync_directory(target.parent)
        shutil.rmtree(self.directory / entry, ignore_errors=True)
        _log.warning("quarantine.restored", entry=entry, path=str(target))


def _printable(name: str) -> str:
    return re.sub(r"[^0-9A-Za-z._-]", "_", name)[:200] or "_"


def _name_in(path: Path) -> str:
    """Return the journal name recorded in a directory, or an empty text."""
    with contextlib.suppress(OSError, UnicodeDecodeError), (path / NAME_FILE).open("rb") as file:
        return file.read(NAME_BYTES_MAX).decode()
    return ""


def _reason_of(target: Path) -> QuarantineReason:
    try:
        return decode_json((target / REASON_FILE).read_bytes(), QuarantineReason)
    except (OSError, DocumentError) as error:
        return QuarantineReason(path="", why=f"its {REASON_FILE} cannot be read: {error}", at="")


def _size_of(path: Path) -> int:
    if not path.is_dir():
        return path.lstat().st_size
    return sum(each.lstat().st_size for each in path.rglob("*") if not each.is_dir())
