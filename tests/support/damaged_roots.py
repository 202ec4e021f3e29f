"""A small data directory of a broker, damaged in one place, started over, and compared with what it was given.

What must hold, whatever was flipped, cut or removed: no wrong byte is served, nothing that was there is removed, and
what was acknowledged and is not served is declared. Only a cut may pass for a torn write.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path

from broadsheet.broker.catalogue import Catalogue, StoredCatalogue, read_catalogue
from broadsheet.broker.content_file import ContentFile
from broadsheet.broker.data_root import DataRoot, open_data_root
from broadsheet.broker.errors import BrokerDataError
from broadsheet.broker.fragment_sums import Verification, load_sums
from broadsheet.broker.fragments import SealedFragment
from broadsheet.broker.quarantine import JournalQuarantine
from broadsheet.broker.recovery import Opening, open_journal
from broadsheet.broker.store import INLINE_BYTES_MAX
from broadsheet.broker.strangers import settle_root
from broadsheet.journals.block_sums import BLOCK_BYTES, DamagedContentError
from broadsheet.runtime.task_group import TaskGroup
from broadsheet.wire.journal_pb2 import ApplyRequest
from tests.support.broker import journal_spec
from tests.support.journal_files import BOOT, UnsyncedDisk, commit, crash, in_memory, marks

SEALED, OPEN, LARGE, GONE = "a/sealed", "an/open", "a/large", "a/gone"
_PAYLOADS: Mapping[str, tuple[bytes, ...]] = {
    SEALED: (b"<first of the sealed>", b"<second of the sealed>", b"<third, which is open>"),
    OPEN: (b"<first of the open>", b"<second of the open>", b"<last of the open>"),
    LARGE: (b"<large " + b"l" * INLINE_BYTES_MAX + b">", b"<behind the large>"),
}


class Kind(IntEnum):
    """Kind of damage."""

    FLIP = 0
    CUT = 1
    REMOVE = 2


@dataclass(frozen=True, slots=True)
class Damage:
    """Damage to one file of a root."""

    file: str
    """Path relative to the root."""
    kind: Kind
    position: int
    """Of the flipped byte, or new length, bytes."""
    bit: int = 0


@dataclass(frozen=True, slots=True)
class Root:
    """A written data directory."""

    directory: Path
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Of its files, bytes, by their paths relative to it."""

    def damages(self, bit: int) -> Iterator[Damage]:
        """Yield each flip, cut and removal there is, flips in one bit of each byte."""
        for file, size in self.sizes.items():
            yield Damage(file, Kind.REMOVE, 0)
            for position in range(size):
                yield Damage(file, Kind.FLIP, position, (position + bit) % 8)
                yield Damage(file, Kind.CUT, position)


def make_root(directory: Path) -> Root:
    """Write a root with sealed, open and large content, and a deleted journal whose directory is still there."""
    asyncio.run(_write(directory))
    for path in [directory / "spool", directory / "spare"]:
        shutil.rmtree(path)
    files = sorted(path for path in directory.rglob("*") if path.is_file() and path.name != "LOCK")
    return Root(
        directory, {str(path.relative_to(directory)): path.stat().st_size for path in files}
    )


async def _write(directory: Path) -> None:
    disk = UnsyncedDisk()
    root = open_data_root(disk, directory, first_revision=100)
    async with TaskGroup() as group:
        catalogue = Catalogue(disk, root.catalogue, group)
        catalogue.load(read_catalogue(root.catalogue))
        for name in (*_PAYLOADS, GONE):
            change = ApplyRequest.Change(upsert=journal_spec(name), expect_mod_revision=0)
            assert await catalogue.apply([change])
        for name, payloads in {**_PAYLOADS, GONE: (b"<of a deleted journal>",)}.items():
            revision = catalogue.entries[name].create_revision
            path = root.journal_directory(name, revision)
            opened = open_journal(disk, path, _opening(name, disk, root))
            for number, payload in enumerate(payloads):
                commit(opened.store, payload, registers=marks(number))
                if name == SEALED and number < len(payloads) - 1:
                    opened.store.roll().retired.release()
            crash(opened)
        delete = ApplyRequest.Change(delete=GONE, expect_mod_revision=-1)
        assert await catalogue.apply([delete])
        catalogue.close()
    root.release()
    disk.close()


def _opening(name: str, disk: UnsyncedDisk, root: DataRoot) -> Opening:
    quarantine = JournalQuarantine(disk, root.directory)
    return Opening(name=name, synced=True, boot_id=BOOT, quarantine=quarantine)


def problems_of(root: Root, *damages: Damage) -> list[str]:
    """Damage a copy of a root, start over it, and return what must not be."""
    with in_memory() as place:
        directory = place / "root"
        shutil.copytree(root.directory, directory)
        for damage in damages:
            _damage(directory, damage)
        before = _present(directory)
        problems: list[str] = []
        with _opened(directory) as opened:
            if opened is not None:
                is_cut = any(damage.kind is Kind.CUT for damage in damages)
                for name, payloads in _PAYLOADS.items():
                    problems += _problems_of_journal(opened, name, b"".join(payloads), is_cut)
        gone = before - _present(directory)
        return [*problems, *(f"removed {payload[:30]!r}" for payload in gone)]


def _damage(directory: Path, damage: Damage) -> None:
    path = directory / damage.file
    if damage.kind is Kind.REMOVE:
        path.unlink(missing_ok=True)
        return
    content = bytearray(path.read_bytes()) if path.exists() else bytearray()
    if damage.kind is Kind.CUT:
        path.write_bytes(content[: damage.position])
    elif content:
        content[damage.position % len(content)] ^= 1 << damage.bit
        path.write_bytes(content)


def _present(directory: Path) -> set[bytes]:
    """Return the payloads that some file still has."""
    files = [path.read_bytes() for path in directory.rglob("*") if path.is_file()]
    payloads = [payload for each in _PAYLOADS.values() for payload in each]
    return {payload for payload in payloads if any(payload in content for content in files)}


@dataclass(frozen=True, slots=True)
class _Opened:
    root: DataRoot
    stored: StoredCatalogue
    disk: UnsyncedDisk


@contextmanager
def _opened(directory: Path) -> Iterator[_Opened | None]:
    """Open a root as a broker does; None if that is refused in the documented way."""
    disk = UnsyncedDisk()
    try:
        root = open_data_root(disk, directory, first_revision=1)
    except BrokerDataError:
        disk.close()
        yield None
        return
    try:
        quarantine = JournalQuarantine(disk, root.directory)
        stored = settle_root(
            root,
            quarantine,
            read_catalogue(root.catalogue),
            accepts_loss=False,
            wall_seconds=1_000,
        )
        catalogue = Catalogue(disk, root.catalogue, TaskGroup())
        catalogue.load(stored)
        catalogue.close()
        yield _Opened(root, stored, disk)
    except BrokerDataError:
        yield None
    finally:
        root.release()
        disk.close()


def _problems_of_journal(opened: _Opened, name: str, truth: bytes, is_cut: bool) -> list[str]:
    entry = opened.stored.entries.get(name)
    if entry is None:
        return [f"{name} is not in the catalogue, and nothing says so"]
    path = opened.root.journal_directory(name, entry.create_revision)
    try:
        recovered = open_journal(opened.disk, path, _opening(name, opened.disk, opened.root))
    except OSError as error:
        # A log of another version is left alone.
        return [] if "version" in str(error) else [f"{name} cannot be opened: {error}"]
    crash(recovered)
    served, refused = bytearray(len(truth)), 0
    for fragment in recovered.index:
        for begin, content in _blocks_of(fragment):
            if content is None:
                refused += 1
            elif content != truth[begin : begin + len(content)]:
                return [f"{name}: wrong bytes at {begin}"]
            else:
                served[begin : begin + len(content)] = b"\1" * len(content)
    is_declared = recovered.store.state.unconfirmed or refused > 0 or is_cut
    return [] if all(served) or is_declared else [f"{name}: {served.count(0)} bytes are missing"]


def _blocks_of(fragment: SealedFragment) -> Iterator[tuple[int, bytes | None]]:
    """Yield what readers get of a fragment, block by block; None for a block that is refused."""
    verification = Verification(fragment)
    for _ in verification.slices():
        pass
    sums = load_sums(fragment) or (None if verification.damaged else verification.sums())
    if load_sums(fragment) is not None and not verification.damaged:
        sums = verification.sums()
    verification.close()
    if sums is None:
        yield fragment.begin, None
        return
    file = ContentFile.open_sealed(fragment.path, sums=sums)
    try:
        for at in range(0, fragment.end - fragment.begin, BLOCK_BYTES):
            length = min(BLOCK_BYTES, fragment.end - fragment.begin - at)
            try:
                yield fragment.begin + at, bytes(file.read(length, at))
            except DamagedContentError:
                yield fragment.begin + at, None
    finally:
        file.release()
