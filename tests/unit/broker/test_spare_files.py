"""Files that are kept to be written over: only those that are nobody else's, within bounds."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from broadsheet.broker.disk import Disk
from broadsheet.broker.segment_recycler import KEPT_BYTES_MIN, SegmentRecycler
from tests.support.failing_disk import FailingDisk, descriptors_under


def _spares(root: Path, *, disk: Disk | None = None, bytes_max: int = 1000) -> SegmentRecycler:
    (root / "spare").mkdir()
    return SegmentRecycler(disk or Disk(), root / "spare", bytes_max=bytes_max, file_bytes_min=10)


def _file(root: Path, name: str, size: int) -> Path:
    path = root / name
    path.write_bytes(name[:1].encode() * size)
    return path


def _left(root: Path) -> list[int]:
    return sorted(path.stat().st_size for path in (root / "spare").iterdir())


def test_the_largest_file_is_given_first_and_each_once(tmp_path: Path) -> None:
    """They come as they were, and are the taker's from then on."""
    spares = _spares(tmp_path)
    assert not spares
    files = [_file(tmp_path, name, size) for name, size in (("a", 20), ("b", 40), ("c", 30))]
    spares.retire(files)

    assert not any(path.exists() for path in files)
    taken = [spares.take() for _ in range(4)]
    assert [path and path.read_bytes() for path in taken] == [b"b" * 40, b"c" * 30, b"a" * 20, None]
    assert not spares


def test_small_files_and_those_beyond_the_bound_go(tmp_path: Path) -> None:
    """So do all, in the end, if the space is needed; then there is room for others."""
    spares = _spares(tmp_path, bytes_max=100)
    spares.retire([_file(tmp_path, "small", 9)])
    spares.retire([_file(tmp_path, str(number), 40) for number in range(4)])
    spares.retire([tmp_path / "missing"])
    assert _left(tmp_path) == [40, 40]
    assert list(tmp_path.iterdir()) == [tmp_path / "spare"]

    assert spares.give_up()
    assert _left(tmp_path) == []
    assert not spares.give_up()
    spares.retire([_file(tmp_path, "again", 100)])
    assert _left(tmp_path) == [100]


@pytest.mark.parametrize("mode", [os.O_RDONLY, os.O_RDWR])
def test_a_file_that_somebody_has_open_goes_and_its_holder_reads_on(
    tmp_path: Path, mode: int
) -> None:
    """Another's content must not come up under a reader."""
    spares = _spares(tmp_path)
    path = _file(tmp_path, "held", 50)
    holder = os.open(path, mode)
    spares.retire([path])
    try:
        assert (spares.take(), _left(tmp_path)) == (None, [])
        assert os.pread(holder, 100, 0) == b"h" * 50
    finally:
        os.close(holder)


def test_a_file_with_another_name_stays_what_it_is_there(tmp_path: Path) -> None:
    """Backups may share sealed fragments by hard links."""
    spares = _spares(tmp_path)
    path, backup = _file(tmp_path, "linked", 50), tmp_path / "backup"
    backup.hardlink_to(path)
    spares.retire([path])

    assert (spares.take(), _left(tmp_path), path.exists()) == (None, [], False)
    assert backup.read_bytes() == b"l" * 50


def test_a_disk_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    """The name that must not come back may: then the file goes, and counts no more."""
    disk = FailingDisk()
    spares = _spares(tmp_path, disk=disk, bytes_max=60)
    path = _file(tmp_path, "unsynced", 50)
    disk.fail_at("sync_directory", 1)
    spares.retire([path])

    assert disk.has_failed
    assert (bool(spares), _left(tmp_path), path.exists()) == (False, [], False)
    spares.retire([_file(tmp_path, "next", 60)])
    assert _left(tmp_path) == [60]
    assert descriptors_under(tmp_path) == []


def test_on_another_file_system_a_file_goes(tmp_path: Path) -> None:
    """It cannot be renamed from there."""
    memory = Path("/dev/shm")
    if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("there is only one file system to be had")
    spares = _spares(tmp_path)
    path = _file(memory, f"broker-spare-{os.getpid()}", 50)
    spares.retire([path])
    assert (path.exists(), _left(tmp_path)) == (False, [])


def test_files_are_kept_from_some_size_on_by_default(tmp_path: Path) -> None:
    """Those of small journals cost more than they save."""
    (tmp_path / "spare").mkdir()
    spares = SegmentRecycler(Disk(), tmp_path / "spare", bytes_max=10 * KEPT_BYTES_MIN)
    spares.retire(
        [_file(tmp_path, str(size), size) for size in (KEPT_BYTES_MIN - 1, KEPT_BYTES_MIN)]
    )
    assert _left(tmp_path) == [KEPT_BYTES_MIN]
