"""The disk that power cuts leave, by hand: if it kept too much, no test on it would find anything."""

from __future__ import annotations

from pathlib import Path
from random import Random

from tests.powercut.disk import SECTOR_BYTES, Disk, Kept
from tests.powercut.trace import Create, Event, FailedSync, Remove, Rename, Sync, Truncate, Write

NEW = (Create("f"), Write("f", 0, b"old"), Sync("f"), Sync("."))


def _left(
    tmp_path: Path, *events: Event, kept: Kept = Kept.NOTHING, seed: int = 0
) -> dict[str, bytes]:
    """Return the files after a cut."""
    disk = Disk()
    for event in events:
        disk.replay(event)
    tmp_path.mkdir(exist_ok=True)
    image = tmp_path / f"{kept.value}-{seed}"
    disk.write_image(image, Random(seed), kept)
    return {
        str(path.relative_to(image)): path.read_bytes()
        for path in image.rglob("*")
        if path.is_file()
    }


def test_disk_after_a_cut_has_what_was_synced_and_no_more(tmp_path: Path) -> None:
    """A file's bytes come with its own sync, its name with its directory's: neither stands for the other."""
    assert _left(tmp_path / "a", *NEW, Write("f", 0, b"new")) == {"f": b"old"}
    assert _left(tmp_path / "b", Create("f"), Write("f", 0, b"x"), Sync("f")) == {}
    assert _left(tmp_path / "c", Create("f"), Write("f", 0, b"x"), Sync(".")) == {"f": b""}
    assert _left(tmp_path / "d", *NEW, Truncate("f", 0)) == {"f": b"old"}
    assert _left(tmp_path / "e", *NEW, Rename("f", "g")) == {"f": b"old"}
    assert _left(tmp_path / "f", *NEW, Remove("f")) == {"f": b"old"}


def test_disk_after_a_failed_sync_never_gets_what_it_was_to_write(tmp_path: Path) -> None:
    """The kernel takes the pages for clean: only writing them again helps, not another sync."""
    lost = (*NEW, Write("f", 0, b"new"), FailedSync("f"), Sync("f"))
    assert _left(tmp_path / "a", *lost, kept=Kept.ALL) == {"f": b"old"}
    assert _left(tmp_path / "b", *lost, Write("f", 0, b"new"), Sync("f")) == {"f": b"new"}


def test_disk_after_a_cut_may_have_any_sectors_of_a_write(tmp_path: Path) -> None:
    """A write of three sectors is found whole, gone, and in parts; a durable write is always whole."""
    content = b"x" * 3 * SECTOR_BYTES
    found = {
        _left(tmp_path, *NEW, Write("f", 0, content), kept=Kept.PART, seed=seed)["f"]
        for seed in range(60)
    }
    assert {b"old", content} <= found
    assert any(b"\0" * SECTOR_BYTES in each and b"x" in each for each in found)
    durable = Write("f", 0, content, is_durable=True)
    assert _left(tmp_path, *NEW, durable) == {"f": content}


def test_disk_after_a_cut_has_a_rename_whole_or_not_at_all(tmp_path: Path) -> None:
    """A file is never without a name in between, whatever part of a directory's changes is kept."""
    for seed in range(20):
        left = _left(tmp_path, *NEW, Rename("f", "g"), kept=Kept.PART, seed=seed)
        assert left in ({"f": b"old"}, {"g": b"old"})
