"""Snapshots of ranges, which are read in pieces between commits."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
import zstandard

from broadsheet.consumer.errors import StoreClosedError, StoreError
from broadsheet.consumer.keyed.follower import KeyedFollower
from broadsheet.consumer.keyed.recording import RANGES, KeyedFiles, KeyedFrame, new_frame
from broadsheet.consumer.keyed.row_index import MemoryIndex, Rows
from broadsheet.consumer.keyed.state_rows import META, STATE, TIMERS, group_bytes
from broadsheet.consumer.recoverylog.local_state import LocalState
from broadsheet.consumer.stores.change_files import ChangeFiles, RecordedFrame, RecordedLayout
from broadsheet.consumer.stores.store_record import KEYED
from broadsheet.testing.stores.recorded_log import MirroringRecorder, RecordedChange, RecordedLog
from broadsheet.wire.key_range import GROUPS

PART = 50
"""Rows of a part."""


def row(number: int) -> bytes:
    """Return the name of a row; all groups have some."""
    return STATE + group_bytes(number % GROUPS) + number.to_bytes(4)


class Index:
    """Rows, and how many of them are read for snapshots."""

    def __init__(self) -> None:
        self.rows: dict[bytes, bytes] = {}
        self.read = 0

    def rows_of(self, number: int) -> Iterator[Rows]:
        """Yield a range in parts, each as of when it is asked for."""
        width = GROUPS // RANGES
        begin, end = STATE + group_bytes(number * width), STATE + group_bytes((number + 1) * width)
        while part := sorted(name for name in self.rows if begin <= name < end)[:PART]:
            self.read += len(part)
            yield {name: self.rows[name] for name in part}
            begin = part[-1] + b"\x00"


def test_snapshot_is_read_in_short_pieces_and_is_as_of_its_commit(tmp_path: Path) -> None:
    """A commit waits for the piece of a snapshot that is read behind the one before. None may read much more than was
    changed, however large a range is; and the files, with rows that changed and went while pieces were read, load as
    the state is.
    """
    files = KeyedFiles("shard", LocalState(tmp_path), snapshot_bytes_min=20_000)
    files.check()
    list(files.load())
    index, pieces, snapshots = Index(), list[int](), 0
    written, begun = list[int](), tmp_path / "snapshot.next"
    for number in range(1, 400):
        # The first commit is most of the state, so that ranges are long; later ones change a few rows.
        changed: dict[bytes, bytes | None] = {
            row(each * 37 % 20_000): None if number > 1 and each % 5 == 0 else b"%d" % number * 20
            for each in (range(20_000) if number == 1 else range(number * 10, number * 10 + 10))
        }
        durable = files.append(new_frame(changed, number))
        assert durable is None, "without a recorder it is on disk"
        for name, value in changed.items():
            if value is None:
                index.rows.pop(name, None)
            else:
                index.rows[name] = value
        before, size = index.read, begun.stat().st_size if begun.exists() else 0
        is_complete = files.advance(index.rows_of, changed)
        pieces.append(index.read - before)
        written.append(begun.stat().st_size - size if begun.exists() else 0)
        if is_complete:
            snapshots += 1
            files.snapshot({}, KeyedFrame(number, b"", {}))
    files.close()
    assert snapshots >= 2
    # A piece is a sixteenth of what makes a snapshot due, and ends with a part. The first makes up for the whole state.
    assert max(pieces[1:]) <= 10 * PART
    # What a piece reads it writes, too: nothing is left for the end.
    assert [bool(each) for each in written] == [bool(each) for each in pieces]
    _, loaded = _loaded(KeyedFiles("shard", LocalState(tmp_path)))
    assert loaded == index.rows


def test_log_that_ends_anywhere_in_a_snapshot_has_all_commits(tmp_path: Path) -> None:
    """A snapshot is on its way while commits come: wherever a log ends, its files load as of a commit, with all that
    the log had confirmed; the next life removes what was begun, here and in the log, and writes its own.
    """
    log, states = RecordedLog(), [dict[bytes, bytes]()]
    (tmp_path / "first").mkdir()
    first = _files(tmp_path / "first", log)
    confirmed = {0: 0}
    for number, rows in enumerate(_commit(first, 1, 120), start=1):
        states.append(rows)
        confirmed[log.barriers[-1]] = number
    kinds = [change.kind for change in log.changes if "snapshot" in change.path]
    assert kinds.count("rename") > 2
    # Most of a snapshot's writes come between commits.
    assert kinds.count("write") > 5 * kinds.count("rename")

    begun = 0
    for count, files in log.cuts(is_whole=lambda _: True):
        directory = files.write_to(tmp_path / f"cut-{count}")
        numbers, loaded = _loaded(KeyedFiles("shard", LocalState(directory)))
        least = max(number for barrier, number in confirmed.items() if barrier <= count)
        last = max(numbers, default=0)
        assert last >= least
        assert loaded == states[last]
        if "/snapshot.next" not in files.paths() or count % 7:
            continue
        begun += 1
        after = RecordedLog()
        after.files = files.copy()
        for rows in _commit(_files(directory, after), last + 1, 30, loaded):
            loaded = rows
        assert after.changes[0] == RecordedChange("remove", "/snapshot.next")
        _, replayed = _loaded(
            KeyedFiles("shard", LocalState(after.replay(tmp_path / f"after-{count}")))
        )
        assert replayed == loaded
    assert begun > 3


@pytest.mark.parametrize("commits", [2, 5])
def test_lives_that_end_within_snapshots_get_one_done(tmp_path: Path, commits: int) -> None:
    """A shard may restart over and over after a few commits: what it began in vain does not add up, and its files are
    not longer than those of a shard that lives long.
    """
    log, rows, last = RecordedLog(), dict[bytes, bytes](), 0
    sizes = list[int]()
    for life in range(40):
        directory = log.replay(tmp_path / f"life-{life}")
        *_, rows = _commit(_files(directory, log), last + 1, commits, rows)
        last += commits
        sizes.append(log.files.size_bytes())
    state = sum(len(name) + len(value) for name, value in rows.items())
    changed = last * 10 * (len(row(0)) + 80)
    written = sum(len(change.content) for change in log.changes)
    assert any(change.kind == "rename" for change in log.changes)
    assert max(sizes) < 3 * state + 20_000, f"of {state}"
    assert written < 4 * changed
    _, loaded = _loaded(KeyedFiles("shard", LocalState(log.replay(tmp_path / "end"))))
    assert loaded == rows


def test_snapshot_that_an_earlier_life_left_in_ruins_is_removed(tmp_path: Path) -> None:
    """After a power cut it may have anything; it is of no use, and no reason to refuse the others."""
    files = KeyedFiles("shard", LocalState(tmp_path))
    files.check()
    list(files.load())
    files.append(new_frame({row(1): b"1"}, 1))
    files.close()
    for content in (b"", b"\x00" * 100, bytes(7) + b"\x05" + b"wrong" * 9):
        (tmp_path / "snapshot.next").write_bytes(content)
        again = KeyedFiles("shard", LocalState(tmp_path))
        assert [rows for _, rows in again.load()] == [{row(1): b"1"}]
        again.close()
        assert not (tmp_path / "snapshot.next").exists()


class _StalledRecorder(MirroringRecorder):
    """Answers a write once the store is closed, which waits some seconds for a thread that writes."""

    files: ChangeFiles[RecordedLayout, RecordedFrame] | None = None

    def write(self, path: str, offset: int, content: bytes) -> None:
        super().write(path, offset, content)
        if self.files is not None:
            self.files.close()


@pytest.mark.parametrize("ends", [False, True], ids=["within", "at its end"])
def test_snapshot_that_outlives_its_store_gets_no_name(tmp_path: Path, ends: bool) -> None:
    """A thread that outlives its store writes nothing after the close. Another file may have the descriptor by then,
    and another life may write a snapshot of its own.
    """
    log = RecordedLog()
    log.recorders += 1
    recorder = _StalledRecorder(log, log.recorders)
    files = ChangeFiles(
        "shard",
        LocalState(tmp_path, recorder),
        KEYED,
        layout_type=RecordedLayout,
        frame_type=RecordedFrame,
        version=1,
    )
    files.append(RecordedLayout(1), RecordedFrame(1))
    files.begin_snapshot(RecordedLayout(1))
    if ends:
        files.add_to_snapshot(RecordedFrame(1))
    recorder.files = files
    if not ends:
        files.add_to_snapshot(RecordedFrame())
        with pytest.raises(StoreClosedError):
            files.add_to_snapshot(RecordedFrame(1))
    with pytest.raises(StoreClosedError):
        files.end_snapshot(number=1, layout=RecordedLayout(1))

    assert (tmp_path / "snapshot.next").exists()
    assert not list(tmp_path.glob("snapshot-*"))
    assert not any(change.kind == "rename" for change in log.changes)


def _files(directory: Path, log: RecordedLog) -> KeyedFiles:
    return KeyedFiles("shard", LocalState(directory, log.recorder()), snapshot_bytes_min=2_000)


def _commit(
    files: KeyedFiles, first: int, commits: int, rows: dict[bytes, bytes] | None = None
) -> Iterator[dict[bytes, bytes]]:
    """Load, and commit changes of a few rows each; yield the rows as of each commit."""
    files.check()
    list(files.load())
    index = Index()
    index.rows = dict(rows or {})
    for number in range(first, first + commits):
        value = zlib.crc32(b"%d" % number).to_bytes(4) * 20
        changed: dict[bytes, bytes | None] = {
            row((number * 7 + each * 41) % 2_000): None if each == 9 and number % 3 == 0 else value
            for each in range(10)
        }
        files.append(new_frame(changed, number))
        for name, content in changed.items():
            if content is None:
                index.rows.pop(name, None)
            else:
                index.rows[name] = content
        if files.advance(index.rows_of, changed):
            files.snapshot({}, KeyedFrame(number, b"", {}))
        yield dict(index.rows)
    files.close()


def _loaded(files: KeyedFiles) -> tuple[list[int], dict[bytes, bytes]]:
    """Return the numbers of the commits that files have, and the rows as of the last."""
    numbers, rows = list[int](), dict[bytes, bytes]()
    for frame, changed in files.load(tidies=False):
        numbers += [frame.number] if frame.number else []
        for name, value in changed.items():
            if value is None:
                rows.pop(name, None)
            else:
                rows[name] = value
    return numbers, rows


@pytest.mark.parametrize(
    ("name", "value", "what"),
    [
        (b"", b"x", "which no store records"),
        (b"x\x00\x00key", b"x", "which no store records"),
        # Of the index alone: which commit it is at, and an entry for a timer that nobody registered.
        (b"m\x00number", (9).to_bytes(8), "which no store records"),
        (b"t" + bytes(8) + b"key", b"", "which no store records"),
        (b"m\x00checkpoint", None, "which no store records"),
        (STATE + b"\x00\x00key\x00\x01", b"", "cannot be read"),
        (TIMERS + b"\x00\x00key", b"\xc1", "cannot be read"),
        (TIMERS + b"\x00\x00key", b"\x91\xa1x", "cannot be read"),
    ],
)
@pytest.mark.parametrize("has_index", [False, True], ids=["from the beginning", "followed"])
def test_row_that_no_store_records_is_refused_and_changes_nothing(
    tmp_path: Path, name: bytes, value: bytes | None, what: str, has_index: bool
) -> None:
    """A frame may be whole, and yet of a release that is later, or of somebody who wrote into the log: its rows are
    not taken for entries of the index, nor for its commit; the error names what it found.
    """
    files = KeyedFiles("shard", LocalState(tmp_path))
    files.check()
    list(files.load())
    files.append(new_frame({META + b"times": b"1"}, 1))
    follower = KeyedFollower("shard", MemoryIndex)
    if has_index:
        follower.follow(tmp_path)
    files.append(new_frame({name: value}, 2))
    files.close()

    with pytest.raises(StoreError, match=what):
        follower.follow(tmp_path)

    taken = follower.take()
    assert (None if taken is None else taken[0].number) == (1 if has_index else None)


def test_frame_that_would_unfold_into_more_than_memory_is_refused(tmp_path: Path) -> None:
    """A few bytes of a log can say that they unfold into any number of bytes."""
    files = KeyedFiles("shard", LocalState(tmp_path))
    files.check()
    list(files.load())
    whole = zstandard.ZstdCompressor().compress(b"")
    # Magic, a descriptor that says that the size has eight bytes and that no window follows, and that size.
    bomb = whole[:4] + b"\xe0" + (1 << 40).to_bytes(8, "little")
    assert zstandard.frame_content_size(bomb) == 1 << 40
    files.append(KeyedFrame(1, b"", {}, bomb, packed=True))
    files.close()

    with pytest.raises(StoreError, match="unfold into 1099511627776 bytes"):
        KeyedFollower("shard", MemoryIndex).follow(tmp_path)
