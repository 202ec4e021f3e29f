"""A row index with the commit that it is at: queries read it, a standby keeps it current, a primary goes on from it.

The number of the commit, its checkpoint and its segments are rows of the index, written together with the rows of the
commit. So an index that is there says from where on the files are to be read.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import islice
from typing import Final

import msgspec

from broadsheet.consumer.errors import StoreError
from broadsheet.consumer.keyed.recording import KeyedFrame
from broadsheet.consumer.keyed.row_index import (
    RowIndex,
    Rows,
    RowSnapshot,
    after_prefix,
    all_items,
)
from broadsheet.consumer.keyed.state_rows import (
    LOCAL,
    META,
    STATE,
    TIMERS,
    entries_of,
    entries_replaced,
    group_bytes,
    may_replace_entries,
)
from broadsheet.consumer.stores.stored_checkpoint import stored_checkpoint
from broadsheet.journals.message.checkpoint import segments_named
from broadsheet.wire.key_range import ALL_KEYS, KeyRange
from broadsheet.wire.shard_pb2 import Checkpoint

LOCAL_END: Final = META + b"\x01"
_NUMBER: Final = LOCAL + b"number"
_CHECKPOINT: Final = LOCAL + b"checkpoint"
_SEGMENT: Final = LOCAL + b"segment"
_STEP: Final = 4096
_PART_ROWS: Final = 512
"""Rows of a frame that are written at once while the index is made."""


class CommittedRowsView:
    """All rows as of one commit, to be iterated over once."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        rows: Iterator[tuple[bytes, bytes]],
        timers: Iterator[tuple[bytes, bytes]],
    ) -> None:
        self.checkpoint = checkpoint
        self._rows = rows
        self._timers = timers

    def rows(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield (place and suffix, row) of the rows of variables, in order."""
        for name, row in self._rows:
            yield name[1:], row

    def timers(self) -> Iterator[tuple[bytes, bytes]]:
        """Yield (place, row) of the timers of keys, in order."""
        for name, row in self._timers:
            yield name[1:], row

    def drop(self) -> None:
        """Forget the iterators."""
        self._rows = self._timers = iter(())


class CommittedIndex:
    """An index, its commit, and how many use it. One thread writes; any may read."""

    def __init__(self, fqn: str, rows: RowIndex) -> None:
        """Read which commit the index is at.

        Args:
            fqn: The shard, for errors.
            rows: The index. It is closed when the last user has released it.
        """
        self._fqn = fqn
        self.rows = rows
        number, checkpoint = rows.get_many([_NUMBER, _CHECKPOINT])
        self.number = 0 if number is None else int.from_bytes(number)
        """The last commit whose rows are here; 0: none, or not all of them."""
        self.checkpoint = checkpoint or b""
        self.segments: Mapping[bytes, bytes] = {
            name[len(_SEGMENT) :]: content
            for name, content in all_items(rows, _SEGMENT, after_prefix(_SEGMENT), step=_STEP)
        }
        self._lock = threading.Lock()
        """Held while the index goes from one commit to the next."""
        self._loading = 0, b""
        """The last commit of what `begin_again` took in."""
        self._users = 1

    def begin_again(self, frame: KeyedFrame, rows: Rows) -> None:
        """Take in a frame of files that are read from their beginning; the index is at no commit before `complete`.

        Raises:
            StoreError: a row is none of a keyed store.
        """
        # In parts, because each holds up the other threads, such as those of shards that serve. No part counts before
        # all are there.
        left = iter(rows.items())
        while part := dict(islice(left, _PART_ROWS)):
            with self._reading(frame):
                changes = {**part, **entries_of(part)}
            self.rows.write(changes)
        self.segments = {**self.segments, **frame.segments}
        if frame.number:
            self._loading = frame.number, frame.checkpoint

    def complete(self) -> None:
        """Be at the last commit that was taken in by `begin_again`.

        Not before, because a snapshot of some ranges has a number, too, and the rows of others come later: a life that
        ended between them must not be gone on from.
        """
        number, checkpoint = self._loading
        self.apply({}, number, checkpoint, self.segments)

    def follow(self, frame: KeyedFrame, rows: Rows) -> None:
        """Take in the commit behind the last one.

        Raises:
            StoreError: a row is none of a keyed store, or the index cannot be written.
        """
        with self._reading(frame):
            # Entries that the former rows asked for would be there until their time, one for each commit.
            timed = [name for name, row in rows.items() if may_replace_entries(name, row)]
            former = zip(timed, self.rows.get_many(timed), strict=True) if timed else ()
            changes = {**rows, **entries_replaced(former), **entries_of(rows)}
        self.apply(changes, frame.number, frame.checkpoint, frame.segments)

    @contextmanager
    def _reading(self, frame: KeyedFrame) -> Iterator[None]:
        try:
            yield
        except (IndexError, ValueError, msgspec.MsgspecError) as error:
            raise StoreError(
                self._fqn, f"commit {frame.number} has a row that cannot be read: {error}"
            ) from error

    def apply(
        self, changes: Rows, number: int, checkpoint: bytes, new_segments: Mapping[bytes, bytes]
    ) -> None:
        """Go to the next commit.

        Args:
            changes: Rows and entries.
            number: Of the commit.
            checkpoint: Its checkpoint.
            new_segments: Contents by id; those that the checkpoint does not name are dropped.

        Raises:
            StoreError: the index cannot be written.
        """
        local: dict[bytes, bytes | None] = {
            _NUMBER: number.to_bytes(8),
            _CHECKPOINT: checkpoint,
        }
        segments = self.segments
        if new_segments:
            known = {**segments, **new_segments}
            named = segments_named(stored_checkpoint(self._fqn, checkpoint))
            segments = {each: known[each] for each in named & known.keys()}
            local |= {_SEGMENT + each: None for each in self.segments.keys() - segments.keys()}
            local |= {_SEGMENT + each: segments[each] for each in segments}
        try:
            with self._lock:
                self.rows.write({**changes, **local})
                self.number, self.checkpoint, self.segments = number, checkpoint, segments
        except Exception as error:  # RocksDB's binding raises nothing more special.
            raise StoreError(
                self._fqn,
                f"cannot write to its index: {error}; the commit is durable, and the next life goes on from it",
            ) from error

    def view(self, owned: KeyRange = ALL_KEYS) -> CommittedRowsView:
        """Return all rows of some groups as of the last commit; `drop` the view in the end."""
        first, behind = group_bytes(owned.begin), group_bytes(owned.end)
        with self._lock:
            checkpoint = stored_checkpoint(self._fqn, self.checkpoint)
            return CommittedRowsView(
                checkpoint,
                self.rows.view(STATE + first, STATE + behind),
                self.rows.view(TIMERS + first, TIMERS + behind),
            )

    @contextmanager
    def reading(self) -> Iterator[tuple[RowSnapshot, Checkpoint]]:
        """Return the rows of one commit, and its checkpoint, for look-ups within the block.

        The checkpoint is a row that is written together with the others, so no lock is needed: a commit that the index
        takes in meanwhile does not wait for the block.
        """
        with self.rows.snapshot() as rows:
            yield rows, stored_checkpoint(self._fqn, rows.get(_CHECKPOINT) or b"")

    def others(self) -> dict[bytes, bytes]:
        """Return the recorded rows that are of no key."""
        return dict(all_items(self.rows, LOCAL_END, after_prefix(META), step=_STEP))

    def acquire(self) -> bool:
        """Become one of the users; False if the last one has released it."""
        with self._lock:
            if not self._users:
                return False
            self._users += 1
            return True

    def release(self) -> None:
        """Be a user no more; the last one closes it."""
        with self._lock:
            self._users -= 1
            is_last = not self._users
        if is_last:
            self.rows.close()
