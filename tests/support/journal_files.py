"""Writing journal directories without a broker, to damage and recover them."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from broadsheet.broker.disk import Buffer, Disk
from broadsheet.broker.fragments import FragmentIndex
from broadsheet.broker.recovery import Opening, RecoveredJournal, open_journal
from broadsheet.broker.staging import Batch
from broadsheet.broker.store import JournalStore
from broadsheet.wire.journal_pb2 import LabelSet
from broadsheet.wire.labels import label_set

BOOT = "boot-1"


@dataclass(frozen=True, slots=True)
class PlainContent:
    """Content of one append, in memory."""

    content: bytes

    @property
    def length(self) -> int:
        """Bytes."""
        return len(self.content)

    def blocks(self) -> Iterator[Sequence[Buffer]]:
        """Yield the content."""
        yield [self.content]


class UnsyncedDisk(Disk):
    """Leaves everything to the kernel: for tests that recover thousands of times and lose no power."""

    def __init__(self) -> None:
        super().__init__(writes_durably=False)

    def sync_data(self, fd: int) -> None:
        """Do nothing."""

    def sync_directory(self, directory: Path) -> None:
        """Do nothing."""

    def write_file(self, path: Path, content: bytes) -> None:
        """Write at once."""
        path.write_bytes(content)


@contextmanager
def in_memory() -> Iterator[Path]:
    """Yield a directory for thousands of short-lived files, in memory if the system has such."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if os.access(memory, os.W_OK) else None) as place:
        yield Path(place)


def opening(*, synced: bool = True, boot_id: str = BOOT) -> Opening:
    """Return how the tests open their journal."""
    return Opening(name="a/journal", synced=synced, boot_id=boot_id)


def commit(store: JournalStore, *contents: bytes, registers: LabelSet | None = None) -> None:
    """Commit one batch."""
    encoded = None if registers is None else registers.SerializeToString(deterministic=True)
    store.commit(
        Batch(
            contents=[PlainContent(content) for content in contents], registers=encoded, at_ms=1000
        )
    )


def marks(number: int) -> LabelSet:
    """Return registers that tell which batch set them."""
    return label_set(("batch", str(number)))


def crash(recovered: RecoveredJournal) -> None:
    """Leave the files as a kill would, but give the descriptors back."""
    recovered.store.abandon()


def reopened(directory: Path, *, synced: bool = True, boot_id: str = BOOT) -> RecoveredJournal:
    """Recover a directory."""
    return open_journal(UnsyncedDisk(), directory, opening(synced=synced, boot_id=boot_id))


def copied(directory: Path, target: Path) -> Path:
    """Return a fresh copy of a directory."""
    shutil.rmtree(target, ignore_errors=True)
    shutil.copytree(directory, target)
    return target


def content_by_span(index: FragmentIndex) -> dict[tuple[int, int], bytes]:
    """Return what the sealed fragments hold, having checked that each name hashes its bytes."""
    found = {}
    for fragment in index:
        content = fragment.path.read_bytes()
        assert hashlib.sha1(content, usedforsecurity=False).digest() == fragment.sum
        found[fragment.begin, fragment.end] = content
    return found
