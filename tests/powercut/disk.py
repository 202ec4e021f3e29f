"""The disks that a power cut may leave: everything synced, and of the rest nothing, a part, or all.

The rules are those that POSIX gives and file systems use:

* Bytes of a file are on the disk once the file is synced. Of later writes each sector may be there, in any order.
  A file that grew may have its new length with zeros in it, or a length up to which sectors were written.
* A name is on the disk once its directory is synced; syncing the file does not suffice. Later changes of one directory
  are there up to one of them; those of different directories are independent of each other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path, PurePosixPath
from random import Random

from tests.powercut.trace import (
    Create,
    Event,
    FailedSync,
    Link,
    Remove,
    Rename,
    Said,
    Sync,
    Truncate,
    Write,
)

SECTOR_BYTES = 512


class Kept(Enum):
    """How much of what was not synced is found after the cut."""

    NOTHING = "nothing"
    PART = "part"
    ALL = "all"


@dataclass(frozen=True, slots=True)
class _Change:
    """A write, or, without content, a truncation to `offset`."""

    offset: int
    content: bytes | None
    is_durable: bool


@dataclass(slots=True, eq=False)
class _File:
    now: bytearray = field(default_factory=bytearray)
    """As processes see it."""
    durable: bytearray = field(default_factory=bytearray)
    unsynced: list[_Change] = field(default_factory=list)
    """Changes that may get to the disk by themselves, and will with a sync."""

    def change(self, change: _Change) -> None:
        self.unsynced.append(change)
        _apply(self.now, change)

    def sync(self) -> None:
        for change in self.unsynced:
            _apply(self.durable, change)
        self.unsynced.clear()

    def fail_sync(self) -> None:
        # The kernel takes what it could not write for written: it stays visible, and no later sync writes it.
        self.unsynced = [each for each in self.unsynced if each.is_durable]

    def content(self, random: Random, kept: Kept) -> bytearray:
        """Return the file after a cut; `random` chooses what is kept of the rest."""
        content = bytearray(self.durable)
        way = "all" if kept is Kept.ALL else "none"
        if kept is Kept.PART:
            way = random.choice(("none", "all", "first", "sectors", "sectors"))
        through = random.randrange(len(self.unsynced) + 1) if way == "first" else 0
        for index, change in enumerate(self.unsynced):
            if change.is_durable or way == "all" or (way == "first" and index < through):
                _apply(content, change)
            elif way == "sectors":
                _apply_in_part(content, change, random)
        return content


def _apply(content: bytearray, change: _Change) -> None:
    if change.content is None:
        del content[change.offset :]
        content.extend(bytes(change.offset - len(content)))
        return
    end = change.offset + len(change.content)
    content.extend(bytes(max(0, end - len(content))))
    content[change.offset : end] = change.content


def _apply_in_part(content: bytearray, change: _Change, random: Random) -> None:
    """Keep some sectors of a write, and none or all of what it made the file longer by."""
    if change.content is None:
        if random.random() < 0.5:
            _apply(content, change)
        return
    end = change.offset + len(change.content)
    share = random.choice((0.1, 0.5, 0.9))
    before = len(content)
    first = change.offset // SECTOR_BYTES * SECTOR_BYTES
    reach = before
    for begin in range(first, end, SECTOR_BYTES):
        if random.random() < share:
            start, stop = max(begin, change.offset), min(begin + SECTOR_BYTES, end)
            _apply(
                content,
                _Change(start, change.content[start - change.offset : stop - change.offset], False),
            )
            reach = max(reach, stop)
    # The length that the disk knows: of all, or of the sectors that were written.
    length = end if random.random() < 0.5 else min(end, -(-reach // SECTOR_BYTES) * SECTOR_BYTES)
    if length > len(content):
        content.extend(bytes(length - len(content)))


@dataclass(slots=True, eq=False)
class _Directory:
    now: dict[str, _Node] = field(default_factory=dict)
    durable: dict[str, _Node] = field(default_factory=dict)
    unsynced: list[_Naming] = field(default_factory=list)

    def sync(self) -> None:
        self.durable = dict(self.now)
        self.unsynced.clear()

    def names(self, choice: _Choice) -> dict[str, _Node]:
        """Return the directory after a cut."""
        names = dict(self.durable)
        for naming in self.unsynced:
            if choice.keeps(naming):
                naming.perform(self, names)
        return names


@dataclass(frozen=True, slots=True, eq=False)
class _Naming:
    """One change of names, which a cut keeps or drops as a whole."""

    home: _Directory
    """The directory in whose order it stands: of a rename, the one that gets the name."""
    names: tuple[tuple[_Directory, str, _Node | None], ...]
    """None: the name is gone."""

    def perform(self, directory: _Directory, names: dict[str, _Node]) -> None:
        for where, name, node in self.names:
            if where is not directory:
                continue
            if node is None:
                names.pop(name, None)
            else:
                names[name] = node


class _Choice:
    """What one cut keeps."""

    def __init__(self, random: Random, kept: Kept) -> None:
        self.random = random
        self.kept = kept
        self._through: dict[int, int] = {}

    def keeps(self, naming: _Naming) -> bool:
        home = naming.home
        if naming not in home.unsynced:
            return True  # That directory was synced since.
        if id(home) not in self._through:
            count = len(home.unsynced)
            part = self.random.randrange(count + 1)
            self._through[id(home)] = {Kept.NOTHING: 0, Kept.PART: part, Kept.ALL: count}[self.kept]
        return home.unsynced.index(naming) < self._through[id(home)]


_Node = _File | _Directory


class Disk:
    """A disk and the memory in front of it, below one directory that is itself durable."""

    def __init__(self) -> None:
        self._root = _Directory()

    def replay(self, event: Event) -> None:
        """Do what the process did."""
        match event:
            case Write(path, offset, content, is_durable):
                self._file(path).change(_Change(offset, content, is_durable))
            case Truncate(path, length):
                self._file(path).change(_Change(length, None, False))
            case Sync(path):
                self._at(path).sync()
            case FailedSync(path):
                self._file(path).fail_sync()
            case Create(path, is_directory):
                self._name(path, _Directory() if is_directory else _File())
            case Link(path, to):
                self._name(to, self._at(path))
            case Rename(path, to):
                self._rename(path, to)
            case Remove(path):
                self._name(path, None)
            case Said():
                pass

    def adopt(self, directory: Path) -> None:
        """Take over a directory of files as durable."""
        for path in sorted(directory.rglob("*")):
            name = str(path.relative_to(directory))
            self.replay(Create(name, path.is_dir()))
            if path.is_file():
                self._file(name).change(_Change(0, path.read_bytes(), False))
        for node in _walk(self._root):
            node.sync()

    def write_image(self, target: Path, random: Random, kept: Kept) -> None:
        """Write the disk as a power cut now might leave it; `target` is made."""
        contents: dict[_File, bytes] = {}
        choice = _Choice(random, kept)

        def write(directory: _Directory, path: Path) -> None:
            path.mkdir(mode=0o700)
            for name, node in sorted(directory.names(choice).items()):
                if isinstance(node, _Directory):
                    write(node, path / name)
                    continue
                if node not in contents:
                    contents[node] = bytes(node.content(random, kept))
                (path / name).write_bytes(contents[node])
                (path / name).chmod(0o600)

        write(self._root, target)

    def files(self) -> dict[str, bytes]:
        """Return what the process sees: each file's content, by path."""
        found: dict[str, bytes] = {}

        def collect(directory: _Directory, prefix: str) -> None:
            for name, node in directory.now.items():
                if isinstance(node, _Directory):
                    collect(node, f"{prefix}{name}/")
                else:
                    found[prefix + name] = bytes(node.now)

        collect(self._root, "")
        return found

    def _rename(self, path: str, to: str) -> None:
        node = self._at(path)
        source, name = self._parent(path)
        target, new_name = self._parent(to)
        self._do(_Naming(target, ((source, name, None), (target, new_name, node))))

    def _name(self, path: str, node: _Node | None) -> None:
        directory, name = self._parent(path)
        self._do(_Naming(directory, ((directory, name, node),)))

    def _do(self, naming: _Naming) -> None:
        for directory in dict.fromkeys(where for where, _, _ in naming.names):
            directory.unsynced.append(naming)
            naming.perform(directory, directory.now)

    def _parent(self, path: str) -> tuple[_Directory, str]:
        where = PurePosixPath(path)
        parent = self._at(str(where.parent))
        assert isinstance(parent, _Directory), path
        return parent, where.name

    def _at(self, path: str) -> _Node:
        node: _Node = self._root
        for part in PurePosixPath(path).parts:
            assert isinstance(node, _Directory), path
            node = node.now[part]
        return node

    def _file(self, path: str) -> _File:
        node = self._at(path)
        assert isinstance(node, _File), path
        return node


def _walk(directory: _Directory) -> Iterator[_Node]:
    yield directory
    for node in directory.now.values():
        if isinstance(node, _Directory):
            yield from _walk(node)
        else:
            yield node
