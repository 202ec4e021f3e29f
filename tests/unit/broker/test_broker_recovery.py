"""Recovery of a journal's directory from every kind of ending: cut, flipped, missing, interrupted."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from broadsheet.broker.commit_log import FILE_HEADER_BYTES, UNIT_BYTES
from broadsheet.broker.disk import Disk
from broadsheet.broker.recovery import open_journal
from broadsheet.broker.store import INLINE_BYTES_MAX, JournalStoreError
from broadsheet.wire.journal_pb2 import LabelSet
from tests.support.failing_disk import FailingDisk
from tests.support.journal_files import (
    commit,
    content_by_span,
    copied,
    crash,
    in_memory,
    marks,
    opening,
    reopened,
)

BATCHES = (b"first", b"second batch", b"3rd", b"the fourth of them")
ENDS = (0, 5, 17, 20, 38)


@pytest.fixture
def memory_path() -> Iterator[Path]:
    """A directory for thousands of small files."""
    with in_memory() as place:
        yield place


def _written(directory: Path) -> Path:
    """Commit the batches, each with its own registers, and crash; return the log."""
    recovered = open_journal(Disk(), directory, opening())
    for number, content in enumerate(BATCHES):
        commit(recovered.store, content, registers=marks(number))
    crash(recovered)
    (log,) = directory.glob("commit-*")
    return log


def _whole(directory: Path) -> bytes:
    recovered = reopened(directory)
    spans = content_by_span(recovered.index)
    crash(recovered)
    assert not recovered.damage
    return b"".join(content for _, content in sorted(spans.items()))


def test_recovery_after_a_crash_finds_everything_and_is_repeatable(tmp_path: Path) -> None:
    """I1: committed bytes, registers and the head come back, however often it crashes while idle."""
    _written(tmp_path / "j")
    for _ in range(3):
        recovered = reopened(tmp_path / "j")
        state = recovered.store.state
        crash(recovered)

        assert content_by_span(recovered.index) == {(0, 38): b"".join(BATCHES)}
        assert (state.head, state.unconfirmed) == (38, False)
        assert LabelSet.FromString(state.registers) == marks(3)


def test_recovery_truncated_anywhere_keeps_whole_batches_and_says_so(memory_path: Path) -> None:
    """Cut at any byte of the log: whole batches are kept, and appends are refused until the loss is accepted.

    A log that a crash left is told from one that was cut by its length, so no acknowledged batch goes in silence.
    """
    log = _written(memory_path / "j")
    whole = log.read_bytes()
    lengths = set()
    for size in range(len(whole)):
        directory = copied(memory_path / "j", memory_path / "copy")
        (directory / log.name).write_bytes(whole[:size])

        recovered = reopened(directory)
        state = recovered.store.state
        crash(recovered)

        assert recovered.damage, f"a cut to {size} bytes went unnoticed"
        assert state.unconfirmed
        assert state.head >= ENDS[-1], "offsets that were shown are not used again"
        kept = b"".join(content_by_span(recovered.index).values())
        assert len(kept) in ENDS
        assert b"".join(BATCHES).startswith(kept)
        lengths.add(len(kept))
    assert lengths == set(ENDS)


def test_recovery_truncated_between_units_of_a_long_log_says_so(memory_path: Path) -> None:
    """A record tells how long the log was before it, so even a cut at a round length is noticed."""
    recovered = open_journal(Disk(), memory_path / "j", opening())
    for number in range(200):
        commit(recovered.store, b"batch %03d" % number, registers=marks(number))
    end = recovered.store.log_bytes
    crash(recovered)
    (log,) = (memory_path / "j").glob("commit-*")
    whole = log.read_bytes()
    unnoticed = []
    for size in range(UNIT_BYTES, end, UNIT_BYTES):
        directory = copied(memory_path / "j", memory_path / "copy")
        (directory / log.name).write_bytes(whole[:size])
        recovered = reopened(directory)
        crash(recovered)
        if not recovered.damage:
            unnoticed.append(size)
    assert not unnoticed
    assert end > 2 * UNIT_BYTES


def test_recovery_of_an_end_before_the_remembered_head_says_so(tmp_path: Path) -> None:
    """An older copy of a directory, and a directory that is gone, are no new journals: their offsets stay used."""
    _written(tmp_path / "j")
    remembered = replace(opening(), least_head=50)
    for directory, content in ((tmp_path / "j", b"".join(BATCHES)), (tmp_path / "gone", b"")):
        recovered = open_journal(Disk(), directory, remembered)
        state = recovered.store.state
        crash(recovered)

        assert recovered.damage
        assert (state.head, state.unconfirmed) == (50, True)
        assert state.holes[-1][1] == 50
        assert b"".join(content_by_span(recovered.index).values()) == content


def test_recovery_bit_flip_loses_at_most_what_it_hit_and_says_so(memory_path: Path) -> None:
    """Each flipped bit is declared, in the last record too, which was acknowledged; no wrong byte is served."""
    log = _written(memory_path / "j")
    whole = log.read_bytes()
    written = len(whole.rstrip(b"\0"))
    everything = b"".join(BATCHES)
    for position in range(len(whole)):
        flipped = bytearray(whole)
        flipped[position] ^= 1 << (position % 8)
        directory = copied(memory_path / "j", memory_path / "copy")
        (directory / log.name).write_bytes(flipped)

        recovered = reopened(directory)
        state = recovered.store.state
        crash(recovered)

        for (begin, end), content in content_by_span(recovered.index).items():
            assert content == everything[begin:end]
        if state.unconfirmed:
            assert recovered.damage
            # Where the last record ended is not known for sure: no offset may be given out again.
            assert state.head >= 38
        else:
            # The log's id is there twice, and the zeros after its end say nothing.
            harmless = position < FILE_HEADER_BYTES or position >= written
            assert harmless, f"byte {position} was flipped unnoticed"
            assert content_by_span(recovered.index) == {(0, 38): everything}


def test_recovery_damaged_content_in_the_middle_becomes_a_declared_hole(tmp_path: Path) -> None:
    """Large batches live outside the log: a flipped byte there costs that batch, keeps the rest, and is declared."""
    recovered = open_journal(Disk(), tmp_path / "j", opening())
    parts = [bytes([65 + n]) * (INLINE_BYTES_MAX + n + 1) for n in range(3)]
    for part in parts:
        commit(recovered.store, part)
    crash(recovered)
    (open_file,) = (tmp_path / "j").glob("*.open")
    content = bytearray(open_file.read_bytes())
    content[len(parts[0]) + 7] ^= 1
    open_file.write_bytes(content)

    for _ in range(2):  # the declaration itself survives a crash
        recovered = reopened(tmp_path / "j")
        crash(recovered)
        state = recovered.store.state
        first, second = len(parts[0]), len(parts[0]) + len(parts[1])

        assert content_by_span(recovered.index) == {
            (0, first): parts[0],
            (second, second + len(parts[2])): parts[2],
        }
        assert (state.head, state.unconfirmed) == (sum(map(len, parts)), True)
        assert state.holes == ((first, second),)


def test_recovery_last_content_that_is_gone_is_declared(tmp_path: Path) -> None:
    """Content is synced before its record, so a record without its bytes was acknowledged: they are lost, not torn."""
    recovered = open_journal(Disk(), tmp_path / "j", opening())
    commit(recovered.store, b"kept")
    commit(recovered.store, b"z" * (INLINE_BYTES_MAX + 1))
    head = recovered.store.head
    crash(recovered)
    (open_file,) = (tmp_path / "j").glob("*.open")
    open_file.write_bytes(open_file.read_bytes()[:100])

    recovered = reopened(tmp_path / "j")
    state = recovered.store.state
    crash(recovered)

    assert content_by_span(recovered.index) == {(0, 4): b"kept"}
    assert (state.head, state.unconfirmed, state.holes) == (head, True, ((4, head),))


def test_recovery_of_inlined_content_does_not_need_the_open_file(tmp_path: Path) -> None:
    """Small batches are only synced with the log: a power loss may take the open file, and nothing is lost."""
    _written(tmp_path / "j")
    (open_file,) = (tmp_path / "j").glob("*.open")
    open_file.write_bytes(b"")

    assert _whole(tmp_path / "j") == b"".join(BATCHES)


def test_recovery_missing_sealed_fragment_is_declared(tmp_path: Path) -> None:
    """A fragment file that vanished leaves a hole that appends must confirm."""
    recovered = open_journal(Disk(), tmp_path / "j", opening())
    for part in (b"one", b"two", b"three"):
        commit(recovered.store, part)
        recovered.store.roll().retired.release()
    crash(recovered)
    middle = sorted((tmp_path / "j").glob("*.raw"))[1]
    middle.unlink()

    recovered = reopened(tmp_path / "j")
    crash(recovered)

    assert sorted(content_by_span(recovered.index)) == [(0, 3), (6, 11)]
    assert recovered.store.state.unconfirmed
    assert recovered.damage


@pytest.mark.parametrize("failing", ["sync_directory", "sync_data", "write_at"])
def test_recovery_after_a_roll_failed_at_any_step(tmp_path: Path, failing: str) -> None:
    """Sealing is repeatable: stopped at each disk operation in turn, the next start finds every byte once."""
    for step in range(1, 8):
        directory = tmp_path / f"{failing}-{step}"
        disk = FailingDisk()
        recovered = open_journal(disk, directory, opening())
        commit(recovered.store, b"content", registers=marks(7))
        disk.fail_at(failing, step)
        try:
            recovered.store.roll().retired.release()
        except JournalStoreError:
            assert recovered.store.failed
        crash(recovered)

        again = reopened(directory)
        state = again.store.state
        crash(again)
        assert content_by_span(again.index) == {(0, 7): b"content"}
        assert (state.head, state.unconfirmed) == (7, False)
        assert LabelSet.FromString(state.registers) == marks(7)


@pytest.mark.parametrize("failing", ["sync_data", "write_at"])
@pytest.mark.parametrize("size", [10, INLINE_BYTES_MAX + 1])
def test_failed_commit_is_rolled_back(tmp_path: Path, failing: str, size: int) -> None:
    """I17: a batch whose write or sync fails is not acknowledged, and no byte of it is there after recovery."""
    for step in (1, 2):
        directory = tmp_path / f"{step}"
        disk = FailingDisk()
        recovered = open_journal(disk, directory, opening())
        commit(recovered.store, b"kept")
        disk.fail_at(failing, step)
        if failing == "sync_data" and size <= INLINE_BYTES_MAX and step == 2:
            continue  # an inlined batch is synced once
        with pytest.raises(JournalStoreError) as caught:
            commit(recovered.store, b"z" * size)
        crash(recovered)

        assert caught.value.rolled_back
        assert "errno 28" in str(caught.value)
        assert _whole(directory) == b"kept"


def test_recovery_power_loss_without_sync_skips_offsets_readers_saw(tmp_path: Path) -> None:
    """I4, I5: under `off`, after another boot, the head never falls back onto offsets that were shown."""
    recovered = open_journal(Disk(), tmp_path / "j", opening(synced=False))
    recovered.store.reserve(10)
    commit(recovered.store, b"0123456789")
    reserved = recovered.store.state.reserved
    crash(recovered)

    same_boot = reopened(copied(tmp_path / "j", tmp_path / "a"), synced=False)
    other_boot = reopened(copied(tmp_path / "j", tmp_path / "b"), synced=False, boot_id="boot-2")
    crash(same_boot)
    crash(other_boot)

    assert same_boot.store.head == 10
    assert (other_boot.store.head, other_boot.store.state.unconfirmed) == (reserved, False)
    assert content_by_span(other_boot.index) == {(0, 10): b"0123456789"}
    assert other_boot.store.state.holes == ((10, reserved),)


def test_adoption_interrupted_before_its_commit_leaves_no_byte(tmp_path: Path) -> None:
    """A staged file that got its final name, but no log record, was never acknowledged: it goes."""
    disk = FailingDisk()
    recovered = open_journal(disk, tmp_path / "j", opening())
    commit(recovered.store, b"kept")
    recovered.store.roll().retired.release()
    spool = tmp_path / "spool"
    spool.write_bytes(b"big")
    disk.fail_at("write_at", 1)
    with pytest.raises(JournalStoreError):
        recovered.store.adopt(spool, length=3, digest=b"\x01" * 20, registers=None, confirms=False)
    crash(recovered)

    assert _whole(tmp_path / "j") == b"kept"
