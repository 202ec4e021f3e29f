"""An open fragment that goes on in a file which held another's content: nothing of that ever shows."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from broadsheet.broker.disk import Disk
from broadsheet.broker.open_fragment import COPY_BYTES_MAX
from broadsheet.broker.recovery import RecoveredJournal, open_journal
from broadsheet.broker.segment_recycler import SegmentRecycler
from broadsheet.broker.store import INLINE_BYTES_MAX, JournalStore, JournalStoreError
from tests.support.failing_disk import FailingDisk, descriptors_under
from tests.support.journal_files import commit, content_by_span, crash, opening, reopened

LARGE = b"L" * (INLINE_BYTES_MAX + 5)
"""Stands in the file alone."""
USED = 1 << 20


def _spares(root: Path, disk: Disk, *, used: int = USED) -> SegmentRecycler:
    (root / "spare").mkdir(exist_ok=True)
    spares = SegmentRecycler(disk, root / "spare", bytes_max=64 << 20, file_bytes_min=1)
    old = root / "old"
    old.write_bytes(b"\xee" * used)
    spares.retire([old])
    assert spares
    return spares


def _use(store: JournalStore, spares: SegmentRecycler) -> None:
    before = store.file
    store.use_spare(spares)
    assert store.file is not before
    before.release()


def _content(recovered: RecoveredJournal) -> bytes:
    crash(recovered)
    assert not recovered.damage
    return b"".join(part for _, part in sorted(content_by_span(recovered.index).items()))


@pytest.mark.parametrize("used", [1, 5000, len(LARGE) + 1, 3 * USED])
@pytest.mark.parametrize("before", [b"", b"some that stood in the first file"])
def test_content_in_a_used_file_is_read_recovered_and_sealed(
    tmp_path: Path, used: int, before: bytes
) -> None:
    """Shorter than what comes, or longer: at once, after a crash, and under its sealed name."""
    disk = Disk()
    spares = _spares(tmp_path, disk, used=used)
    recovered = open_journal(disk, tmp_path / "j", opening())
    store, expected = recovered.store, before + LARGE + b"small"
    if before:
        commit(store, before)
    assert store.gains_by_spare(len(LARGE))
    _use(store, spares)
    assert not store.gains_by_spare(len(LARGE))
    commit(store, LARGE)
    commit(store, b"small")
    assert store.file.read(len(expected), 0) == expected
    crash(recovered)

    recovered = reopened(tmp_path / "j")
    assert content_by_span(recovered.index) == {(0, len(expected)): expected}
    spares = _spares(tmp_path, disk, used=used)
    _use(recovered.store, spares)
    commit(recovered.store, LARGE)
    rolled = recovered.store.roll()
    rolled.retired.release()
    assert rolled.sealed is not None
    assert rolled.sealed.path.read_bytes() == LARGE
    assert _content(recovered) == expected
    assert _content(reopened(tmp_path / "j")) == expected + LARGE


@pytest.mark.parametrize("synced", [True, False])
def test_a_crash_right_after_the_change_of_files_loses_nothing(
    tmp_path: Path, *, synced: bool
) -> None:
    """The new file has what the first one had, and old bytes behind it that no record speaks of."""
    disk = Disk()
    recovered = open_journal(disk, tmp_path / "j", opening(synced=synced))
    commit(recovered.store, b"kept")
    _use(recovered.store, _spares(tmp_path, disk))
    crash(recovered)
    (current,) = (tmp_path / "j").glob("*.open")
    assert current.stat().st_size == USED

    again = reopened(tmp_path / "j", synced=synced)
    assert again.store.head == 4
    assert _content(again) == b"kept"


def test_a_batch_that_did_not_reach_the_used_file_is_dropped(tmp_path: Path) -> None:
    """Old bytes stand in its place after a loss of power without syncs, and fail its checksum."""
    disk = Disk()
    recovered = open_journal(disk, tmp_path / "j", opening(synced=False))
    commit(recovered.store, b"kept")
    _use(recovered.store, _spares(tmp_path, disk))
    commit(recovered.store, LARGE)
    os.pwrite(recovered.store.file.fd, b"\xee" * 4096, 8192)
    crash(recovered)

    again = reopened(tmp_path / "j", boot_id="boot-2")
    assert again.store.head == 4
    assert _content(again) == b"kept"


def test_a_jump_over_an_unused_spare_leaves_none_of_it(tmp_path: Path) -> None:
    """The empty fragment's file goes, whatever it held."""
    disk = Disk()
    recovered = open_journal(disk, tmp_path / "j", opening())
    _use(recovered.store, _spares(tmp_path, disk))
    recovered.store.roll(begin=100).retired.release()
    commit(recovered.store, b"behind the jump")
    assert bytes(recovered.store.file.read(15, 0)) == b"behind the jump"
    crash(recovered)
    assert [path.stat().st_size for path in (tmp_path / "j").glob("*.open")] == [15]
    assert _content(reopened(tmp_path / "j")) == b"behind the jump"


def test_a_page_that_ends_in_a_used_file_is_written_whole(tmp_path: Path) -> None:
    """The disk need not be read for old bytes of a page that nobody will read."""
    disk = Disk()
    recovered = open_journal(disk, tmp_path / "j", opening())
    _use(recovered.store, _spares(tmp_path, disk, used=len(LARGE) + 10_000))
    commit(recovered.store, LARGE)
    end = -(-len(LARGE) // 4096) * 4096
    found = recovered.store.file.read_present(end + 1, 0)
    crash(recovered)
    assert found == LARGE + bytes(end - len(LARGE)) + b"\xee"


def test_who_does_not_gain_looks_for_no_spare(tmp_path: Path) -> None:
    """Small batches wait for the log alone; a long fragment would have to be copied."""
    disk = Disk()
    recovered = open_journal(disk, tmp_path / "j", opening())
    assert not recovered.store.gains_by_spare(INLINE_BYTES_MAX)
    commit(recovered.store, b"x" * COPY_BYTES_MAX)
    assert recovered.store.gains_by_spare(len(LARGE))
    commit(recovered.store, b"y")
    assert not recovered.store.gains_by_spare(len(LARGE))
    recovered.store.roll().retired.release()
    assert recovered.store.gains_by_spare(len(LARGE))
    crash(recovered)


@pytest.mark.parametrize("failing", ["sync_directory", "sync_data", "write_at"])
def test_a_change_of_files_that_fails_loses_nothing_and_leaks_nothing(
    tmp_path: Path, failing: str
) -> None:
    """The store is unusable, as after any failure of the disk, and recovery finds what was committed."""
    disk = FailingDisk()
    spares = _spares(tmp_path, disk)
    recovered = open_journal(disk, tmp_path / "j", opening())
    commit(recovered.store, b"kept")
    disk.fail_at(failing, 1)
    with pytest.raises(JournalStoreError):
        recovered.store.use_spare(spares)
    assert recovered.store.failed
    with contextlib.suppress(JournalStoreError):
        recovered.store.close()
    recovered.store.file.release()
    assert descriptors_under(tmp_path) == []
    assert list((tmp_path / "spare").iterdir()) == []
    assert _content(reopened(tmp_path / "j")) == b"kept"
