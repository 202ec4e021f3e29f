"""A journal's files when something goes wrong in the middle: no false record, no lost descriptor."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from broadsheet.broker.config import BrokerConfig
from broadsheet.broker.disk import Buffer, Disk
from broadsheet.broker.recovery import open_journal
from broadsheet.broker.staging import Batch, StagedContent, StagingArea
from broadsheet.broker.store import INLINE_BYTES_MAX, JournalStoreError
from tests.support.failing_disk import FailingDisk, descriptors_under
from tests.support.journal_files import commit, content_by_span, crash, opening, reopened


@dataclass(frozen=True, slots=True)
class _Cheat:
    """Content that yields another length than it announces, as a truncated staging file would."""

    length: int
    yielded: int

    def blocks(self) -> Iterator[Sequence[Buffer]]:
        """Yield too much or too little."""
        yield [b"z" * self.yielded]


@pytest.mark.parametrize("yielded", [7, 13])
@pytest.mark.parametrize("offset", [0, INLINE_BYTES_MAX])
def test_content_of_another_length_is_refused_before_its_record(
    tmp_path: Path, yielded: int, offset: int
) -> None:
    """A batch that is not what was announced fails as a whole, and leaves neither record nor byte."""
    recovered = open_journal(Disk(), tmp_path / "j", opening())
    commit(recovered.store, b"kept")
    cheat = _Cheat(10 + offset, yielded + offset)

    with pytest.raises(JournalStoreError):
        recovered.store.commit(Batch(contents=[cheat], registers=None, at_ms=1000))
    failed, head = recovered.store.failed, recovered.store.head
    crash(recovered)
    again = reopened(tmp_path / "j")
    crash(again)

    assert (failed, head) == (True, 4)
    assert not again.damage
    assert content_by_span(again.index) == {(0, 4): b"kept"}


@pytest.mark.parametrize("failing", ["sync_directory", "sync_data", "write_at"])
@pytest.mark.parametrize("synced", [True, False])
def test_opening_that_fails_at_any_step_gives_its_descriptors_back(
    tmp_path: Path, failing: str, synced: bool
) -> None:
    """A journal on a bad disk is opened again each second: what one attempt leaks, an hour exhausts."""
    recovered = open_journal(Disk(), tmp_path / "j", opening())
    commit(recovered.store, b"content")
    crash(recovered)
    for step in range(1, 20):
        disk = FailingDisk()
        disk.fail_at(failing, step)
        with contextlib.suppress(OSError, JournalStoreError):
            crash(open_journal(disk, tmp_path / "j", opening(synced=synced)))
        assert descriptors_under(tmp_path) == []
        if not disk.has_failed:
            return
    raise AssertionError("opening takes more steps than this test knows")


@pytest.mark.parametrize("failing", ["sync_directory", "sync_data", "write_at"])
def test_roll_that_fails_at_any_step_gives_its_descriptors_back(
    tmp_path: Path, failing: str
) -> None:
    """So does a roll, once the failed store is closed."""
    for step in range(1, 8):
        disk = FailingDisk()
        recovered = open_journal(disk, tmp_path / f"{step}", opening())
        commit(recovered.store, b"content")
        disk.fail_at(failing, step)
        with contextlib.suppress(JournalStoreError):
            recovered.store.roll().retired.release()
        crash(recovered)
        assert descriptors_under(tmp_path) == []


async def test_content_in_tiny_chunks_takes_no_more_memory_than_it_counts(tmp_path: Path) -> None:
    """A chunk of one byte is an object of two hundred: many of them are joined, or the memory bound means nothing."""
    disk = Disk()
    area = StagingArea(disk, tmp_path, BrokerConfig(data_dir=tmp_path))
    content = StagedContent(area, summed=True)
    for number in range(10_000):
        await content.add(memoryview(b"%d" % (number % 10)))
    await content.add(memoryview(b"x" * 100_000))
    await content.add(memoryview(b"y"))
    await content.settle()

    groups = list(content.blocks())
    assert sum(len(group) for group in groups) <= 20
    assert b"".join(buffer for group in groups for buffer in group) == (
        b"0123456789" * 1000 + b"x" * 100_000 + b"y"
    )
    content.discard()
    assert area.memory_bytes == 0
    disk.close()


@pytest.mark.parametrize("summed", [True, False])
async def test_content_beyond_the_memory_for_it_is_whole_in_a_file(
    tmp_path: Path, *, summed: bool
) -> None:
    """Some chunks in memory, then a file with all of them, in order, summed or not."""
    disk = Disk()
    area = StagingArea(disk, tmp_path, BrokerConfig(data_dir=tmp_path, append_memory_bytes_max=10))
    content = StagedContent(area, summed=summed)
    for chunk in (b"four", b"five.", b"beyond", b"and on"):
        await content.add(memoryview(chunk))
    await content.settle()

    whole = b"fourfive.beyondand on"
    assert content.spool is not None
    assert content.spool.read_bytes() == whole
    assert b"".join(buffer for group in content.blocks() for buffer in group) == whole
    if summed:
        assert content.sum == hashlib.sha1(whole, usedforsecurity=False).digest()
    content.discard()
    disk.close()
    assert area.memory_bytes == 0
