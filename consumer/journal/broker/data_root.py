"""The directory that one broker process owns.

LOCK        held for the life of the process
FORMAT      version of everything below
IDENTITY    cluster and member id, written once
BOOT        start counter
catalogue/  journal specs
journals/   one directory per journal incarnation
spool/      staged content of large appends; emptied at start
spare/      files of removed fragments, to be written over; emptied at start
trash/      deleted incarnations awaiting removal
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path

import msgspec

from consumer.errors import BrokerDataError
from consumer.journal.broker.disk import Disk, close_quietly

FORMAT_VERSION = "1"
BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")
ID_BITS = 62
"""Identities stay below 2^63 for tools that read JSON numbers as signed."""


class _Identity(msgspec.Struct, frozen=True):
    cluster_id: int
    member_id: int


class _Boot(msgspec.Struct, frozen=True):
    term: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRoot:
    """An opened, locked data directory."""

    directory: Path
    cluster_id: int
    member_id: int
    term: int
    """Starts of this root, this one included."""
    boot_id: str
    """Of the running kernel."""
    is_new: bool
    lock_fd: int

    @property
    def catalogue(self) -> Path:
        """Where journal specs are."""
        return self.directory / "catalogue"

    @property
    def journals(self) -> Path:
        """Where journals are."""
        return self.directory / "journals"

    @property
    def spool(self) -> Path:
        """Where large appends are staged."""
        return self.directory / "spool"

    @property
    def spare(self) -> Path:
        """Where files wait to be written over."""
        return self.directory / "spare"

    @property
    def trash(self) -> Path:
        """Where deleted journals wait for their removal."""
        return self.directory / "trash"

    def journal_directory(self, name: str, create_revision: int) -> Path:
        """Return the directory of one incarnation; names never become paths."""
        digest = hashlib.sha256(name.encode()).hexdigest()[:16]
        return self.journals / f"{create_revision}-{digest}"

    def discard_strangers(self, known: set[Path]) -> None:
        """Move directories of journals that are not in the catalogue to the trash."""
        for path in self.journals.iterdir():
            if path not in known:
                path.replace(self.trash / f"{path.name}.{secrets.token_hex(4)}")

    def empty_trash(self) -> None:
        """Remove what was deleted. Blocking."""
        for path in self.trash.iterdir():
            shutil.rmtree(path, ignore_errors=True)

    def release(self) -> None:
        """Let another process have the directory."""
        close_quietly(self.lock_fd)


def open_data_root(disk: Disk, directory: Path) -> DataRoot:
    """Lock a data directory, making it if it is new. Blocking.

    Raises:
        BrokerDataError: another process has it, or it is of another version, or no data directory at all.
    """
    directory.mkdir(parents=True, exist_ok=True)
    lock_fd = _lock(directory)
    try:
        return _open_locked(disk, directory.resolve(), lock_fd)
    except BaseException:
        close_quietly(lock_fd)
        raise


def _lock(directory: Path) -> int:
    fd = os.open(directory / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(fd, 64, 0).decode(errors="replace").strip()
        close_quietly(fd)
        raise BrokerDataError(
            str(directory),
            f"another broker ({holder or 'of unknown pid'}) is using it; stop that one first",
        ) from error
    os.ftruncate(fd, 0)
    os.pwrite(fd, f"pid {os.getpid()}".encode(), 0)
    return fd


def _open_locked(disk: Disk, directory: Path, lock_fd: int) -> DataRoot:
    is_new = not (directory / "FORMAT").exists()
    if is_new:
        _initialize(disk, directory)
    version = (directory / "FORMAT").read_text().strip()
    if version != FORMAT_VERSION:
        raise BrokerDataError(
            str(directory), f"its format is {version!r}, expected {FORMAT_VERSION!r}"
        )
    for name in ("spool", "spare"):
        shutil.rmtree(directory / name, ignore_errors=True)
    for name in ("catalogue", "journals", "spool", "spare", "trash"):
        (directory / name).mkdir(exist_ok=True)
    disk.sync_directory(directory)
    try:
        identity = msgspec.json.decode((directory / "IDENTITY").read_bytes(), type=_Identity)
        boot = msgspec.json.decode((directory / "BOOT").read_bytes(), type=_Boot)
    except (OSError, msgspec.DecodeError) as error:
        raise BrokerDataError(
            str(directory), f"IDENTITY or BOOT cannot be read: {error}"
        ) from error
    disk.write_file(directory / "BOOT", msgspec.json.encode(_Boot(boot.term + 1)))
    return DataRoot(
        directory=directory,
        cluster_id=identity.cluster_id,
        member_id=identity.member_id,
        term=boot.term + 1,
        boot_id=_boot_id(),
        is_new=is_new,
        lock_fd=lock_fd,
    )


def _initialize(disk: Disk, directory: Path) -> None:
    journals = directory / "journals"
    if journals.exists() and any(journals.iterdir()):
        raise BrokerDataError(
            str(directory), "it holds journals but no FORMAT file: it is damaged, restore that file"
        )
    strangers = {path.name for path in directory.iterdir()} - {
        "LOCK", "IDENTITY", "BOOT", "catalogue", "journals", "spool", "spare", "trash",
        ".IDENTITY.new", ".BOOT.new", ".FORMAT.new",
    }  # fmt: skip
    if strangers:
        raise BrokerDataError(
            str(directory), f"expected an empty directory, found {min(strangers)}"
        )
    identity = _Identity(secrets.randbits(ID_BITS) | 1, secrets.randbits(ID_BITS) | 1)
    disk.write_file(directory / "IDENTITY", msgspec.json.encode(identity))
    disk.write_file(directory / "BOOT", msgspec.json.encode(_Boot(0)))
    disk.write_file(directory / "FORMAT", FORMAT_VERSION.encode())


def _boot_id() -> str:
    return BOOT_ID_FILE.read_text().strip() if BOOT_ID_FILE.exists() else ""
