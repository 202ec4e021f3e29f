"""What a start finds and does not know: it is moved aside with a reason, never removed."""

from __future__ import annotations

from pathlib import Path

import pytest

from broadsheet.broker.catalogue import StoredCatalogue
from broadsheet.broker.errors import BrokerDataError
from broadsheet.broker.quarantine import JournalQuarantine
from broadsheet.broker.recovery import open_journal
from broadsheet.broker.store import INLINE_BYTES_MAX
from broadsheet.broker.strangers import Known, StrangerFate, fate_in_journals, fate_in_trash
from broadsheet.runtime.errors import ValidationError
from tests.support.journal_files import (
    UnsyncedDisk,
    commit,
    content_by_span,
    crash,
    opening,
    reopened,
)

LARGE = b"l" * (INLINE_BYTES_MAX + 1)


def _sealed(directory: Path, *parts: bytes) -> None:
    recovered = open_journal(UnsyncedDisk(), directory, opening())
    for part in parts:
        commit(recovered.store, part)
        recovered.store.roll().retired.release()
    crash(recovered)


def test_missing_or_damaged_name_file_costs_nothing(tmp_path: Path) -> None:
    """A directory's own name proves whose it is: its content is served, and its name file comes back."""
    for number, damage in enumerate((None, b"b/journal")):
        directory = tmp_path / str(number)
        _sealed(directory, b"acknowledged")
        name = directory / "NAME"
        if damage is None:
            name.unlink()
        else:
            name.write_bytes(damage)

        recovered = reopened(directory)
        crash(recovered)

        assert content_by_span(recovered.index) == {(0, 12): b"acknowledged"}
        assert name.read_bytes() == b"a/journal"
        assert not recovered.damage


def test_leftovers_of_an_interrupted_making_are_kept(tmp_path: Path) -> None:
    """An empty log without a name file holds nothing; it is moved away all the same, and the journal begins."""
    directory = tmp_path / "j"
    directory.mkdir()
    (directory / "commit-0000000001").write_bytes(b"BSLOG")

    recovered = reopened(directory)
    crash(recovered)

    assert recovered.store.head == 0
    (entry,) = JournalQuarantine(UnsyncedDisk(), tmp_path).entries()
    assert entry.reason.why == "the journal's creation was interrupted"
    assert (
        JournalQuarantine(UnsyncedDisk(), tmp_path).content(entry.id) / "commit-0000000001"
    ).read_bytes() == b"BSLOG"


def test_first_sealed_fragment_that_is_missing_is_declared(tmp_path: Path) -> None:
    """The log says where a journal begins: what is not there from then on was lost, not removed by retention."""
    _sealed(tmp_path / "j", b"one", b"two", b"three")
    min((tmp_path / "j").glob("*.raw")).unlink()

    recovered = reopened(tmp_path / "j")
    crash(recovered)

    assert recovered.store.state.unconfirmed
    assert recovered.store.state.holes == ((0, 3),)
    assert recovered.damage == ("bytes [0, 3) are in no fragment",)


def test_trimmed_beginning_is_not_damage(tmp_path: Path) -> None:
    """Retention notes the beginning first: stopped before it removed the files or after, nothing is declared."""
    _sealed(tmp_path / "j", b"one", b"two", b"three")
    recovered = reopened(tmp_path / "j")
    recovered.store.trim(6)
    crash(recovered)

    stopped = reopened(tmp_path / "j")
    crash(stopped)
    for fragment in list(stopped.index)[:2]:
        fragment.path.unlink()
    done = reopened(tmp_path / "j")
    crash(done)

    assert len(stopped.index) == 3
    assert [fragment.begin for fragment in done.index] == [6]
    assert not stopped.damage + done.damage
    assert not done.store.state.unconfirmed


def test_fragments_beyond_the_logged_end_are_served_and_the_loss_is_declared(
    tmp_path: Path,
) -> None:
    """A log that went back, as an old copy of it does, must not cost the fragments sealed since."""
    directory = tmp_path / "j"
    _sealed(directory, b"one")
    (old,) = directory.glob("commit-*")
    kept = old.read_bytes()
    _sealed(directory, b"two", b"three")
    for path in directory.glob("commit-*"):
        path.unlink()
    old.write_bytes(kept)

    recovered = reopened(directory)
    crash(recovered)

    assert content_by_span(recovered.index) == {(0, 3): b"one", (3, 6): b"two", (6, 11): b"three"}
    assert (recovered.store.head, recovered.store.state.unconfirmed) == (11, True)


def test_damaged_files_are_kept_aside(tmp_path: Path) -> None:
    """Of a damaged journal what verifies is served; log and open file are kept for who wants to look for more."""
    recovered = open_journal(UnsyncedDisk(), tmp_path / "j", opening())
    for part in (LARGE, LARGE, LARGE):
        commit(recovered.store, part)
    crash(recovered)
    (open_file,) = (tmp_path / "j").glob("*.open")
    content = bytearray(open_file.read_bytes())
    content[len(LARGE) + 3] ^= 1
    open_file.write_bytes(content)

    crash(reopened(tmp_path / "j"))

    kept = JournalQuarantine(UnsyncedDisk(), tmp_path).entries()
    assert sorted(Path(each.reason.path).suffix for each in kept) == ["", ".open"]
    assert {each.reason.journal for each in kept} == {"a/journal"}
    assert max(each.bytes for each in kept) == len(content)


def test_fates_of_directories() -> None:
    """Only a deletion that stands in the catalogue's log lets a directory go; trash goes by a trusted catalogue."""
    known = Known(live={"1-aaaaaaaaaaaaaaaa"}, deleted={"2-bbbbbbbbbbbbbbbb"})

    assert fate_in_journals("1-aaaaaaaaaaaaaaaa", known) is StrangerFate.KEEP
    assert fate_in_journals("2-bbbbbbbbbbbbbbbb", known) is StrangerFate.REMOVE
    assert fate_in_journals("3-cccccccccccccccc", known) is StrangerFate.QUARANTINE
    assert fate_in_trash("3-cccccccccccccccc", known, is_trusted=True) is StrangerFate.REMOVE
    assert fate_in_trash("3-cccccccccccccccc", known, is_trusted=False) is StrangerFate.QUARANTINE
    # The catalogue still has it, or an earlier version put it there without knowing it.
    assert fate_in_trash("1-aaaaaaaaaaaaaaaa", known, is_trusted=True) is StrangerFate.QUARANTINE
    assert (
        fate_in_trash("3-cccccccccccccccc.0a1b2c3d", known, is_trusted=True)
        is StrangerFate.QUARANTINE
    )
    assert Known.of(StoredCatalogue(entries={}, revision=1, path=Path())).live == set()


def test_entries_are_restored_or_purged_one_by_one(tmp_path: Path) -> None:
    """An entry goes back where nothing is, or away for ever; ids of others, and paths, are refused."""
    quarantine = JournalQuarantine(UnsyncedDisk(), tmp_path)
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "NAME").write_bytes(b"a/" + name.encode())
        quarantine.put(tmp_path / name, why="a test")
    by_journal = {each.reason.journal: each.id for each in quarantine.entries()}

    quarantine.purge(by_journal["a/second"])
    with pytest.raises(BrokerDataError, match="already exists"):
        quarantine.restore(by_journal["a/first"], tmp_path)
    quarantine.restore(by_journal["a/first"], tmp_path / "back")

    assert (tmp_path / "back" / "NAME").read_bytes() == b"a/first"
    assert quarantine.entries() == []
    for wrong in ("..", "../..", by_journal["a/second"]):
        with pytest.raises(ValidationError, match="there is no"):
            quarantine.purge(wrong)
