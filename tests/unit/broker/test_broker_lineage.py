"""What a journal's directory says of its identity, over restarts, damage and copies."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from broadsheet.broker.commit_log import decode_record, encode_record
from broadsheet.broker.lineage import EPOCHS_MAX, Lineage
from broadsheet.broker.recovery import RecoveredJournal
from broadsheet.journals.guard import Present, RememberedOffset, present_epoch, standing
from broadsheet.wire.identity_pb2 import JournalEpoch, JournalIdentity
from tests.support.journal_files import commit, copied, crash, reopened


def identity(recovered: RecoveredJournal) -> JournalIdentity:
    """Return what clients are told."""
    state = recovered.store.state
    return Lineage(state.incarnation, state.epochs).message()


def epoch(recovered: RecoveredJournal) -> JournalEpoch:
    """Return what a reader remembers."""
    found = present_epoch(identity(recovered))
    assert found is not None
    return found


def judged(offset: int, remembered: JournalEpoch, recovered: RecoveredJournal) -> RememberedOffset:
    """Judge an offset by an opened journal."""
    return standing(offset, remembered, Present(recovered.store.head, identity(recovered)))


def test_incarnation_survives_restarts_and_rolls(tmp_path: Path) -> None:
    """Shards must read on after any number of restarts, clean or not, that lost nothing."""
    opened = reopened(tmp_path / "journal")
    remembered = epoch(opened)
    for text in (b"first", b"second"):
        commit(opened.store, text)
        opened.store.roll().retired.release()
        crash(opened)
        opened = reopened(tmp_path / "journal")
        assert identity(opened).incarnation == remembered.incarnation
    assert opened.store.head == len(b"firstsecond")
    assert judged(len(b"first"), remembered, opened) is RememberedOffset.SAME
    crash(opened)


def test_each_directory_is_an_incarnation_of_its_own(tmp_path: Path) -> None:
    """A lost data directory begins at the same revision and offset: only chance can tell the two apart."""
    one, two = reopened(tmp_path / "one"), reopened(tmp_path / "two")
    commit(one.store, b"content")
    commit(two.store, b"content")

    assert judged(len(b"content"), epoch(one), two) is RememberedOffset.REPLACED
    crash(one)
    crash(two)


def test_last_frame_that_a_disk_lost_contradicts_what_was_read_of_it(tmp_path: Path) -> None:
    """A broker cannot tell a frame that a lying disk never wrote from one that was never sent to it. A reader that had
    read it must learn so even after others have written beyond its offset.
    """
    directory = tmp_path / "journal"
    opened = reopened(directory)
    commit(opened.store, b"kept")
    kept = opened.store.log_bytes
    commit(opened.store, b"read and lost")
    head, remembered = opened.store.head, epoch(opened)
    log = opened.store.log_path
    crash(opened)
    content = log.read_bytes()
    log.write_bytes(content[:kept] + bytes(len(content) - kept))

    opened = reopened(directory)

    assert opened.store.head == len(b"kept")
    commit(opened.store, b"written by somebody else since then")
    assert opened.store.head > head, "the offset alone says nothing any more"
    assert judged(head, remembered, opened) is RememberedOffset.REPLACED
    assert judged(len(b"kept"), remembered, opened) is RememberedOffset.SAME
    crash(opened)


def test_older_copy_of_a_directory_contradicts_what_was_read_since(tmp_path: Path) -> None:
    """A directory restored from a backup lost what came after it, though nothing in it is damaged."""
    directory = tmp_path / "journal"
    opened = reopened(directory)
    commit(opened.store, b"in the backup")
    crash(opened)
    backup = copied(directory, tmp_path / "backup")
    opened = reopened(directory)
    commit(opened.store, b"after it")
    head, remembered = opened.store.head, epoch(opened)
    crash(opened)

    restored = reopened(backup)
    commit(restored.store, b"something else, and more of it")

    assert restored.store.head > head
    assert judged(head, remembered, restored) is RememberedOffset.REPLACED
    crash(restored)


def test_power_loss_without_syncs_goes_on_beyond_what_was_shown(tmp_path: Path) -> None:
    """Bytes that readers saw may be gone then, but nothing new is written at their offsets: shards read on."""
    directory = tmp_path / "journal"
    opened = reopened(directory, synced=False)
    opened.store.reserve(100)
    commit(opened.store, bytes(100))
    remembered = epoch(opened)
    crash(opened)

    opened = reopened(directory, synced=False, boot_id="boot-2")

    assert judged(100, remembered, opened) is RememberedOffset.SAME
    crash(opened)


def test_epochs_kept_are_bounded(tmp_path: Path) -> None:
    """A broker that restarts daily must not send an ever longer answer."""
    opened = reopened(tmp_path / "journal")
    for _ in range(EPOCHS_MAX + 3):
        crash(opened)
        opened = reopened(tmp_path / "journal")

    epochs = identity(opened).epochs
    assert len(epochs) == EPOCHS_MAX
    assert epochs[-1].number == EPOCHS_MAX + 4
    crash(opened)


def test_log_of_before_incarnations_is_given_one(tmp_path: Path) -> None:
    """Directories of earlier versions are opened as they are; their checkpoints have no epoch to contradict."""
    directory = tmp_path / "journal"
    opened = reopened(directory)
    commit(opened.store, b"content")
    opened.store.roll().retired.release()
    state = opened.store.state
    plain = msgspec.msgpack.decode(encode_record(state))
    old = decode_record(msgspec.msgpack.encode(plain[:9]))
    assert old == msgspec.structs.replace(state, incarnation=b"", epochs=(), first=None)
    crash(opened)

    lineage = Lineage(b"", ()).next_epoch(state.head)

    assert lineage.incarnation
    assert [begin for _, _, begin in lineage.epochs] == [state.head]


@pytest.mark.parametrize("number", [1, 7])
def test_next_epoch_follows_the_last_one(number: int) -> None:
    """Numbers order epochs, also after older ones were left out."""
    lineage = Lineage(b"x" * 16, ((number, 5, 0),)).next_epoch(30)

    assert [(each[0], each[2]) for each in lineage.epochs] == [(number, 0), (number + 1, 30)]
