"""The files of a keyed store: the rows that each commit changed, and snapshots of one range of groups at a time.

They are `broadsheet.consumer.stores.change_files`; a snapshot has the rows of a run of ranges, and all that is of no
key. Snapshots go round: whenever the changes since the last one are longer than what snapshots have made up for, the
next ranges are written, until they have made up for seven eighths. So a store ships each byte less than twice, what a
standby plays is at most about three times the state, and no snapshot is longer than a range and what was owed.

A snapshot is read and written in pieces, one behind each commit, because the next commit waits for it: a piece is
short, or twice what the commit changed. What commits change meanwhile in its ranges is written behind the pieces, so
that it is as of the last of them. How many ranges it has is known by then, and written over what it began with.

A life that ends within a snapshot leaves nothing of use but the length of its pieces. The pieces of the next life are
twice as long, so that lives that are short get a snapshot done, too: what they write in vain is at most about twice a
snapshot, however often a shard restarts.

A file of changes is removed once every range has a snapshot behind it; a snapshot, once all its ranges have newer ones.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Final

import msgspec
import zstandard

from broadsheet.consumer.errors import StoreError
from broadsheet.consumer.keyed.row_index import Rows
from broadsheet.consumer.keyed.state_rows import group_of_row, stranger_among
from broadsheet.consumer.recoverylog.local_state import LocalState
from broadsheet.consumer.stores.change_files import (
    ChangeFiles,
    RecordedFrame,
    RecordedLayout,
    Selection,
    StoredFile,
)
from broadsheet.consumer.stores.store_record import KEYED
from broadsheet.runtime.op_future import OpFuture
from broadsheet.wire.key_range import GROUPS

RANGES: Final = 64
GROUPS_PER_RANGE: Final = GROUPS // RANGES
SNAPSHOT_BYTES_MIN: Final = 1 << 20
"""Least bytes of changes after which snapshots are due."""
_PIECES: Final = 16
"""A piece has so many parts of these bytes, and makes up for what a commit changed twice."""
_RANGES_PER_PIECE: Final = 4
"""Ranges that a short piece goes through if they are empty: an index looks for rows among those that were removed."""
_VERSION: Final = 1
_PACKED_MIN: Final = 512
"""Bytes from which rows are compressed: shorter ones gain nothing."""
_PACKED_MAX: Final = 1 << 30
"""Bytes up to which rows are compressed, so that a few bytes of a log never unfold into more."""
_LEVEL: Final = 1
_decode_rows: Final = msgspec.msgpack.Decoder(dict[bytes, bytes | None]).decode


class KeyedLayout(RecordedLayout, frozen=True):
    """The first frame of a file."""

    begin: int = 0
    """First range of a snapshot."""
    end: int = RANGES
    """Behind the last one."""
    piece: int = 0
    """Bytes of a short piece of a snapshot; 0: not known."""


class KeyedFrame(RecordedFrame, omit_defaults=True):
    """A commit, or a part of a snapshot."""

    rows: bytes = b""
    """New values by row, in MessagePack; nil is a deletion."""
    packed: bool = False
    """The rows are compressed with Zstandard."""


ReadTo = dict[str, tuple[int, int]]
"""By file of changes, the bytes that were read, and the last commit in them."""


def new_frame(
    rows: Rows, number: int = 0, checkpoint: bytes = b"", segments: dict[bytes, bytes] | None = None
) -> KeyedFrame:
    """Return a frame of rows."""
    content = msgspec.msgpack.encode(rows) if rows else b""
    packed = _PACKED_MIN <= len(content) <= _PACKED_MAX
    if packed:
        content = zstandard.ZstdCompressor(level=_LEVEL).compress(content)
    return KeyedFrame(number, checkpoint, segments or {}, content, packed)


@dataclass(slots=True)
class _Making:
    """A snapshot that is read and written."""

    begin: int
    """Its first range."""
    end: int
    """The range that is read; those before it are complete."""
    rows: Iterator[Rows]
    """The rest of that range."""
    owed: int
    """Bytes that were owed at the last piece."""
    piece: int
    """Bytes of a short piece."""
    is_empty: bool = True
    """Whether the range that is read had no row so far."""
    size: int = 0
    """Bytes of the rows that are written."""
    changed: dict[bytes, bytes | None] = field(default_factory=dict)
    """Rows that commits changed since it began."""


class KeyedFiles:
    """Reads the files of a store when it opens, and writes them while it lives."""

    def __init__(
        self, fqn: str, local_state: LocalState, *, snapshot_bytes_min: int = SNAPSHOT_BYTES_MIN
    ) -> None:
        """Look at nothing yet."""
        self._files = ChangeFiles(
            fqn,
            local_state,
            KEYED,
            layout_type=KeyedLayout,
            frame_type=KeyedFrame,
            version=_VERSION,
        )
        self._fqn = fqn
        self._snapshot_bytes_min = snapshot_bytes_min
        self._newest: list[StoredFile | None] = [None] * RANGES
        """The newest snapshot of each range."""
        self._next = 0
        """The range whose snapshot is the oldest."""
        self._owed = 0
        """Bytes of changes that no snapshot has made up for."""
        self._resumed_at = 0
        """The last commit before the files that were read for an index that goes on."""
        self._piece_min = snapshot_bytes_min // _PIECES
        self._piece = self._piece_min
        """Bytes of a short piece of the next snapshot."""
        self._making: _Making | None = None

    def check(self) -> None:
        """Check that the directory holds this store's files, or nothing; see `ChangeFiles.check`."""
        self._files.check()

    def resumes(self, after: int) -> bool:
        """Tell whether the files still have every change behind a commit."""
        found = self._files.found()
        changes = [each.number for each in found if each.is_changes]
        newest = max((each.number for each in found), default=0)
        return any(number <= after for number in changes) if changes else after >= newest

    def load(
        self, *, after: int = 0, read_to: ReadTo | None = None, tidies: bool = True
    ) -> Iterator[tuple[KeyedFrame, Rows]]:
        """Yield the frames of the snapshots and commits that matter, in order, with their rows.

        Args:
            after: A commit whose rows are known: snapshots are not read then, nor are the commits up to this one
                yielded, but for itself, without its rows. If there is one, `resumes` must be true of it.
            read_to: As of `follow`: where these commits end.
            tidies: As of `ChangeFiles.load`.

        Raises:
            StoreError: a file is damaged.
            OSError: a file could not be made durable.
        """
        # In the order of commits a snapshot only repeats what the changes before it made, as far as they are there.
        known = partial(_known, after=after) if after else _none
        self._files.read_to.update(read_to or {})
        select = partial(self._select, known=known)
        if tidies and (unfinished := self._files.unfinished()) is not None:
            self._piece = max(self._piece_min, 2 * unfinished.piece)
        for file, _, frame in self._files.load(select, known=known, tidies=tidies):
            if not after or frame.number > after:
                yield frame, self._rows_of(file, frame)
            elif frame.number == after:
                yield frame, {}
        ages = [0 if each is None else each.number for each in self._newest]
        self._next = ages.index(min(ages))
        recent = [
            each for each in self._files.present if each.is_changes and each.number >= max(ages)
        ]
        self._owed = _owed_for(self._files.bytes_of(recent))

    @property
    def last_number(self) -> int:
        """Number of the last commit that the files had when they were loaded."""
        numbers = (number for _, number in self._files.read_to.values())
        return max((*numbers, *(each.number for each in self._files.present), self._resumed_at))

    @property
    def read_to(self) -> ReadTo:
        """The end of what was read of the files of changes."""
        return self._files.read_to

    def follow(self, after: int, read_to: ReadTo) -> Iterator[tuple[KeyedFrame, Rows]]:
        """Yield the commits behind one, as far as they are there; `resumes` must be true of it.

        Args:
            after: The commit.
            read_to: Where files were read to; becomes where they are.

        Raises:
            StoreError: a file is damaged.
        """
        self._files.read_to = read_to
        found = self._files.found()
        unread = frozenset(_known(found, after=after))
        for file in found:
            if not file.is_changes or file in unread:
                read_to.pop(file.name, None)
                continue
            for _, frame in self._files.frames(file):
                if frame.number > after:
                    yield frame, self._rows_of(file, frame)

    def append(self, frame: KeyedFrame) -> OpFuture | None:
        """Write a commit; what is returned must succeed first for it to be durable.

        Raises:
            OSError: it could not be written.
        """
        before = self._files.changes_bytes
        durable = self._files.append(KeyedLayout(_VERSION), frame)
        self._owed += _owed_for(self._files.changes_bytes - before)
        return durable

    def advance(self, rows_of: Callable[[int], Iterator[Rows]], changed: Rows) -> bool:
        """Write a piece of the snapshot that is due, if one is; return whether it has all ranges: call `snapshot`.

        Args:
            rows_of: Returns the rows of a range, in parts; each step reads what is there then.
            changed: Rows of the commit since the last call, which `rows_of` shows.

        Raises:
            OSError: it could not be written.
        """
        making = self._making
        if making is None:
            if self._owed < self._snapshot_bytes_min:
                return False
            making = _Making(self._next, self._next, rows_of(self._next), self._owed, self._piece)
            self._files.begin_snapshot(_layout_of(making))
            self._making = making
        else:
            making.changed |= changed
        # More than what was changed meanwhile, so that the snapshot catches up with what is owed.
        rest = max(making.piece, 2 * (self._owed - making.owed))
        making.owed = self._owed
        while rest > 0:
            rows = next(making.rows, None)
            if rows is None:
                if making.is_empty:
                    rest -= self._piece_min // _RANGES_PER_PIECE
                making.end += 1
                if making.end == RANGES or making.size >= self._owed:
                    return True
                making.rows, making.is_empty = rows_of(making.end), True
                continue
            making.is_empty = False
            part = new_frame(rows)
            self._files.add_to_snapshot(part)
            making.size += len(part.rows)
            rest -= len(part.rows)
        return False

    def snapshot(self, others: Rows, last: KeyedFrame) -> None:
        """End the snapshot that `advance` has written, and remove what nothing rests on any more.

        Args:
            others: The rows that are of no range.
            last: The frame of the last commit: its number, its checkpoint, and all segments.

        Requires:
            `advance` has returned True.

        Raises:
            OSError: it could not be written.
        """
        making, self._making = self._making, None
        assert making is not None, "it was read"
        begin, end = making.begin, making.end
        # A part may be of before some commits; with the rows that these changed it is as of the last one.
        later = {
            name: row
            for name, row in making.changed.items()
            if (group := group_of_row(name)) is not None
            and begin <= group // GROUPS_PER_RANGE < end
        }
        if later:
            self._files.add_to_snapshot(new_frame(later))
        self._files.add_to_snapshot(new_frame(others, last.number, last.checkpoint, last.segments))
        length = self._files.end_snapshot(number=last.number, layout=_layout_of(making))
        file = self._files.present[-1]
        self._newest[begin:end] = [file] * (end - begin)
        self._next = end % RANGES
        self._piece = self._piece_min
        self._owed -= length
        if end == RANGES and begin == 0:
            self._owed = 0  # All of the state: it is shorter than the changes.
        self._files.remove(self._replaced(tuple(self._files.present)))

    def close(self) -> None:
        """Close the files; later calls fail. Idempotent."""
        self._files.close()

    def _select(self, found: Sequence[StoredFile], *, known: Selection) -> Collection[StoredFile]:
        """Return the files that matter; note the newest snapshot of each range.

        An index that goes on needs changes which snapshots replace, too, for it reads no snapshot: a life that ended
        between the last snapshot and the removal of what it replaces has left both.
        """
        for file in found:
            if file.is_changes:
                continue
            layout = self._files.layout_of(file)
            if layout is None or not 0 <= layout.begin < layout.end <= RANGES:
                raise self._files.damaged(file.name, "its first frame names no ranges")
            self._newest[layout.begin : layout.end] = [file] * (layout.end - layout.begin)
        kept = set(found)
        kept.difference_update(self._replaced(found))
        passed = frozenset(known(found))
        if passed:
            resumed = [each for each in found if each.is_changes and each not in passed]
            kept.update(resumed)
            # A life that ended at its first commit may have left the file empty: those before it are known even so.
            self._resumed_at = min((each.number for each in resumed), default=0)
        return kept

    def _replaced(self, files: Sequence[StoredFile]) -> list[StoredFile]:
        """Return the files that nothing rests on, given the newest snapshots, in the order in which they must go."""
        newest = set(self._newest)
        floor = min(0 if each is None else each.number for each in self._newest)
        replaced = [each for each in files if not each.is_changes and each not in newest]
        for file in files:
            # A snapshot ends the file of changes before it, as does the next life's first commit.
            end = min((each.number for each in files if each.number > file.number), default=None)
            if file.is_changes and end is not None and end <= floor:
                replaced.append(file)
        return replaced

    def _rows_of(self, file: StoredFile, frame: KeyedFrame) -> Rows:
        if not frame.rows:
            return {}
        content = frame.rows
        try:
            if frame.packed:
                content = _unpacked(content)
            rows = _decode_rows(content)
        except (msgspec.MsgspecError, zstandard.ZstdError) as error:
            raise StoreError(
                self._fqn, f"{file.name} is damaged: its rows cannot be read: {error}"
            ) from error
        if (stranger := stranger_among(rows)) is not None:
            raise self._files.damaged(
                file.name,
                f"commit {frame.number} has a row {stranger!r:.80}, which no store records",
            )
        return rows


def _layout_of(making: _Making) -> KeyedLayout:
    """Return the first frame of a snapshot: of the same length, however many ranges there are."""
    return KeyedLayout(_VERSION, making.begin, making.end, making.piece)


def _unpacked(content: bytes) -> bytes:
    size = zstandard.frame_content_size(content)
    if size > _PACKED_MAX:
        raise zstandard.ZstdError(f"they unfold into {size} bytes, more than {_PACKED_MAX}")
    return zstandard.ZstdDecompressor().decompress(content)


def _known(found: Sequence[StoredFile], *, after: int) -> list[StoredFile]:
    """Return the files with nothing but what is in the commits up to one: all snapshots, and changes of before it."""
    current = max(
        (each.number for each in found if each.is_changes and each.number <= after), default=0
    )
    return [each for each in found if not each.is_changes or each.number < current]


def _owed_for(changed: int) -> int:
    """Return the bytes of snapshots that bytes of changes ask for.

    A little less than these, so that with what surrounds the rows in frames the log has at most two bytes for each byte
    of a row that changes.
    """
    return changed * 7 // 8


def _none(_: Sequence[StoredFile]) -> tuple[StoredFile, ...]:
    return ()
