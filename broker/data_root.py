"""The directory that one broker process owns.

LOCK        held for the life of the process
FORMAT      version of everything below
IDENTITY    cluster and member id, written once
BOOT        start counter
catalogue/  journal specs
journals/   one directory per journal incarnation
spool/      staged content of large appends; emptied at start
spare/      files of removed fragments, to be overwritten; emptied at start
trash/      deleted incarnations awaiting removal
quarantine/ unknown data that was found here, see `quarantine`
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import msgspec

from broadsheet.broker.catalogue import initialize_catalogue
from broadsheet.broker.disk import Disk, close_quietly, is_out_of_space
from broadsheet.broker.errors import BrokerDataError
from broadsheet.runtime.documents import DocumentError, decode_json
from broadsheet.runtime.private_directory import make_lasting

FORMAT_VERSION = "1"
BOOT_ID_FILE = Path("/proc/sys/kernel/random/boot_id")
ID_BITS = 62
"""Identities stay below 2^63, because some tools read JSON numbers as signed."""
READER = 1
"""Number of this reader of IDENTITY and BOOT. A later release may add fields, which this one ignores and keeps; if a
reader must know them, it writes a greater `min_reader`."""


class _Identity(msgspec.Struct, frozen=True):
    cluster_id: int
    member_id: int
    sum: int | None = None
    """CRC-32 of the two; None in files of earlier versions."""
    min_reader: int = 1


class _Boot(msgspec.Struct, frozen=True):
    term: int
    sum: int | None = None
    min_reader: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class DataRoot:
    """An opened, locked data directory."""

    directory: Path
    cluster_id: int
    member_id: int
    term: int
    """Number of starts of this directory, including this one."""
    boot_id: str
    """Boot id of the running kernel."""
    is_new: bool
    lock_fd: int

    @property
    def catalogue(self) -> Path:
        """Directory of the journal specs."""
        return self.directory / "catalogue"

    @property
    def journals(self) -> Path:
        """Directory of the journals."""
        return self.directory / "journals"

    @property
    def spool(self) -> Path:
        """Directory in which large appends are staged."""
        return self.directory / "spool"

    @property
    def spare(self) -> Path:
        """Directory of files that wait to be overwritten."""
        return self.directory / "spare"

    @property
    def trash(self) -> Path:
        """Directory in which deleted journals await removal."""
        return self.directory / "trash"

    def journal_directory(self, name: str, create_revision: int) -> Path:
        """Return the directory of one incarnation; it is derived so that names never become paths."""
        return self.journals / incarnation_name(name, create_revision)

    def release(self) -> None:
        """Release the lock, so that another process may use the directory."""
        close_quietly(self.lock_fd)


def incarnation_name(name: str, create_revision: int) -> str:
    """Return the directory name of one incarnation of a journal."""
    return f"{create_revision}-{hashlib.sha256(name.encode()).hexdigest()[:16]}"


def open_data_root(disk: Disk, directory: Path, *, first_revision: int) -> DataRoot:
    """Lock a data directory, creating it if it is new. Blocking.

    Args:
        disk: File operations.
        directory: The data directory.
        first_revision: Catalogue revision of a new one.

    Raises:
        BrokerDataError: another process has it, or it is damaged, or of another version, or no data directory at all.
        ValidationError: it is another user's, or others may write to it.
        OSError: the disk failed.
    """
    make_lasting(directory)
    lock_fd = lock_root(directory)
    try:
        return _open_locked(disk, directory.resolve(), lock_fd, first_revision)
    except BaseException:
        close_quietly(lock_fd)
        raise


def lock_root(directory: Path) -> int:
    """Lock a data directory; return the descriptor that holds the lock until it is closed.

    Raises:
        BrokerDataError: another process has it.
    """
    fd = os.open(directory / "LOCK", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(fd, 64, 0).decode(errors="replace").strip()
        close_quietly(fd)
        raise BrokerDataError(
            str(directory),
            f"another broker ({holder or 'of unknown pid'}) is using it; stop that one first",
        ) from error
    # The owner is written for people only; the lock itself needs no space on the disk.
    with contextlib.suppress(OSError):
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"pid {os.getpid()}".encode(), 0)
    return fd


def _open_locked(disk: Disk, directory: Path, lock_fd: int, first_revision: int) -> DataRoot:
    is_new = not (directory / "FORMAT").exists()
    if is_new:
        _initialize(disk, directory, first_revision)
    version = (directory / "FORMAT").read_bytes().decode(errors="replace").strip()
    if version != FORMAT_VERSION:
        raise BrokerDataError(
            str(directory / "FORMAT"),
            f"expected format {FORMAT_VERSION!r}, got {version!r}: start the release that wrote the directory, or "
            "restore the copy of before its upgrade",
        )
    _make_directories(disk, directory)
    identity = _read_identity(disk, directory / "IDENTITY")
    boot, fields = _read_boot(directory / "BOOT")
    term = boot.term + 1
    _write_unless_full(disk, directory / "BOOT", _encoded({**fields, **_boot(term)}))
    return DataRoot(
        directory=directory,
        cluster_id=identity.cluster_id,
        member_id=identity.member_id,
        term=term,
        boot_id=_boot_id(),
        is_new=is_new,
        lock_fd=lock_fd,
    )


def _make_directories(disk: Disk, directory: Path) -> None:
    for name in ("spool", "spare"):
        # Appends that were never answered, and files of removed fragments.
        shutil.rmtree(directory / name, ignore_errors=True)
    try:
        for name in ("catalogue", "journals", "spool", "spare", "trash", "quarantine"):
            (directory / name).mkdir(exist_ok=True)
        disk.sync_directory(directory)
        # Journals that an earlier process made, and may not have synced: the catalogue is about to say that they exist.
        disk.sync_directory(directory / "journals")
    except OSError as error:
        if not is_out_of_space(error):
            raise


def _write_unless_full(disk: Disk, path: Path, content: bytes) -> None:
    try:
        disk.write_file(path, content)
    except OSError as error:
        if not is_out_of_space(error):
            raise


def _read_identity(disk: Disk, path: Path) -> _Identity:
    """Read the ids, and add the checksum to those of an earlier version."""
    identity, fields = _decoded(path, _Identity)
    whole = _identity(identity.cluster_id, identity.member_id)
    if identity.sum is None:
        _write_unless_full(disk, path, _encoded({**fields, **whole}))
    elif identity.sum != whole["sum"]:
        raise _unreadable(path, "its checksum does not fit")
    return identity


def _read_boot(path: Path) -> tuple[_Boot, dict[str, object]]:
    """Read the counter; return all fields of the file, too."""
    boot, fields = _decoded(path, _Boot)
    if boot.sum is not None and boot.sum != _sum(boot.term):
        raise _unreadable(path, "its checksum does not fit")
    return boot, fields


RootFileT = TypeVar("RootFileT", _Identity, _Boot)


def _decoded(path: Path, kind: type[RootFileT]) -> tuple[RootFileT, dict[str, object]]:
    try:
        content = path.read_bytes()
        found, fields = decode_json(content, kind), decode_json(content, dict[str, object])
    except (OSError, DocumentError) as error:
        raise _unreadable(path, str(error)) from error
    if found.min_reader > READER:
        raise BrokerDataError(
            str(path),
            f"a later release wrote it, for readers from number {found.min_reader} on, and this one is {READER}: "
            "start that release",
        )
    # A flipped bit in the name of the checksum makes it an unknown field. Releases that add fields write a checksum.
    unknown = fields.keys() - kind.__struct_fields__
    if unknown and found.sum is None:
        raise _unreadable(path, f"unknown field {min(unknown)!r} without a checksum")
    return found, fields


def _unreadable(path: Path, detail: str) -> BrokerDataError:
    if path.name == "BOOT":
        advice = 'write {"term": N} into it, N no less than the number of starts so far'
    else:
        advice = (
            "restore it from a backup, or write other ids, which make clients list journals again"
        )
    return BrokerDataError(str(path), f"cannot be read: {detail}; {advice}")


def _identity(cluster_id: int, member_id: int) -> dict[str, int]:
    return {
        "cluster_id": cluster_id,
        "member_id": member_id,
        "sum": _sum(cluster_id, member_id),
    }


def _boot(term: int) -> dict[str, int]:
    return {"term": term, "sum": _sum(term)}


def _encoded(fields: Mapping[str, object]) -> bytes:
    return msgspec.json.encode(fields)


def _sum(*numbers: int) -> int:
    return zlib.crc32(repr(numbers).encode())


def _initialize(disk: Disk, directory: Path, first_revision: int) -> None:
    """Create a new root; FORMAT is written last, so that an interrupted creation begins again."""
    _require_unused(directory)
    (directory / "catalogue").mkdir(exist_ok=True)
    identity = _identity(secrets.randbits(ID_BITS) | 1, secrets.randbits(ID_BITS) | 1)
    disk.write_file(directory / "BOOT", _encoded(_boot(0)))
    disk.write_file(directory / "IDENTITY", _encoded(identity))
    initialize_catalogue(disk, directory / "catalogue", first_revision)
    disk.write_file(directory / "FORMAT", FORMAT_VERSION.encode())


def _require_unused(directory: Path) -> None:
    """Refuse a directory that was used before, or that is no data directory."""
    boot = directory / "BOOT"
    kept = [directory / name for name in ("journals", "trash", "quarantine")]
    used = any(path.is_dir() and any(path.iterdir()) for path in kept)
    if boot.exists():
        used = used or _read_boot(boot)[0].term > 0
    elif (directory / "IDENTITY").exists():
        # BOOT is the first file that a creation writes.
        used = True
    if used:
        raise BrokerDataError(
            str(directory / "FORMAT"),
            f"it is missing, but the directory was used before: write {FORMAT_VERSION} into it if "
            "this version of the broker wrote the directory",
        )
    strangers = {path.name for path in directory.iterdir()} - {
        "LOCK", "IDENTITY", "BOOT", "catalogue", "journals", "spool", "spare", "trash", "quarantine",
        ".IDENTITY.new", ".BOOT.new", ".FORMAT.new",
    }  # fmt: skip
    if strangers:
        raise BrokerDataError(
            str(directory), f"expected an empty directory, found {min(strangers)}"
        )


def _boot_id() -> str:
    return BOOT_ID_FILE.read_text().strip() if BOOT_ID_FILE.exists() else ""
