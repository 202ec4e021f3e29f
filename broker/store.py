"""Write side of one journal's files. Blocking: called in the disk pool, by one caller at a time.

    NAME                          the journal's exact name
    commit-<generation>           commit log since its checkpoint
    <begin>.open                  bytes of the open fragment
    <begin>-<end>-<sha1>.raw      sealed fragments
    <begin>-….raw.sums            checksums of a sealed fragment's blocks, not synced

The order of writes makes each step repeatable: content and record are durable before any client learns of them; a new
log's checkpoint is durable before the open file takes its sealed name; the old log is removed last.
"""

from __future__ import annotations

import errno
from collections.abc import Sequence
from concurrent.futures import Future
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

import msgspec

from broadsheet.broker.commit_log import (
    LENGTH_MARK,
    Checkpoint,
    Commit,
    CommitLogWriter,
    Reserve,
    Trim,
    encode_record,
    generation_path,
)
from broadsheet.broker.content_file import ContentFile
from broadsheet.broker.disk import Disk
from broadsheet.broker.fragments import SealedFragment, fragment_name, joined_spans
from broadsheet.broker.open_fragment import OpenFragment
from broadsheet.broker.segment_recycler import SegmentRecycler
from broadsheet.broker.staging import Batch, extend_sums, joined

LOG_STEM = "commit"
INLINE_HASH_BYTES_MAX = 64 * 1024
"""As much as the event loop commits itself by default, so that it waits for no other thread."""
INLINE_BYTES_MAX = 128 * 1024
"""Largest batch that is stored inside its record: one sync instead of two, at the price of writing it twice."""
LOG_BYTES_MAX = 64 << 20
"""Log length at which a fragment is closed, so that recovery reads a bounded log."""
RESERVATION_BYTES = 64 << 20
"""Offsets reserved ahead while commits are not synced."""


class JournalStoreError(Exception):
    """A commit that failed at the disk; `rolled_back` tells whether it is certainly absent."""

    def __init__(self, error: OSError, *, rolled_back: bool) -> None:
        super().__init__(f"{error.strerror or error} (errno {error.errno})")
        self.rolled_back = rolled_back


@dataclass(frozen=True, slots=True)
class Rolled:
    """Result of sealing the open fragment."""

    sealed: SealedFragment | None
    """None if it was empty."""
    retired: ContentFile
    """File that the fragment was read from; its holder releases it on the event loop."""


class JournalStore:
    """Write side of one journal's directory."""

    def __init__(
        self, disk: Disk, directory: Path, *, generation: int, checkpoint: Checkpoint, boot_id: str
    ) -> None:
        self._disk = disk
        self._boot_id = boot_id
        self.directory = directory
        self.state = checkpoint
        """State as of the last commit; its head is the write head."""
        self._generation = generation
        self._unsynced = False
        self.failed = False
        """True after a failed operation: only recovery may reopen the files."""
        with ExitStack() as undo:
            self._log = self._start_log(checkpoint)
            undo.callback(self._log.close)
            self._open = OpenFragment(disk, directory, checkpoint.head)
            undo.callback(self.file.release)
            self._open.truncate(0)
            disk.sync_directory(directory)
            undo.pop_all()

    @property
    def head(self) -> int:
        """The write head, bytes."""
        return self.state.head

    @property
    def file(self) -> ContentFile:
        """The content of the open fragment."""
        return self._open.file

    @property
    def open_begin(self) -> int:
        """First byte of the open fragment, bytes."""
        return self._open.begin

    @property
    def open_bytes(self) -> int:
        """Length of the open fragment, bytes."""
        return self.state.head - self._open.begin

    @property
    def log_path(self) -> Path:
        """The log's present file."""
        return self._log.path

    @property
    def log_bytes(self) -> int:
        """Length of the log's content, bytes; the file may be longer."""
        return self._log.size

    @property
    def log_is_long(self) -> bool:
        """True if the log has grown so much that the fragment should be closed."""
        return self._log.size > LOG_BYTES_MAX

    @property
    def has_unsynced(self) -> bool:
        """True if commits wait for a background sync."""
        return self._unsynced

    def open_sum(self) -> bytes:
        """Return the SHA-1 of the open fragment so far."""
        return self._open.sha1.copy().digest()

    def commit(self, batch: Batch) -> None:
        """Write a batch at the head and make it as durable as the policy says.

        Raises:
            JournalStoreError: the disk failed; the store is unusable from here on.
        """
        log_size = self._log.size
        try:
            self._commit(batch)
        except OSError as error:
            self.failed = True
            raise JournalStoreError(error, rolled_back=self._roll_back(log_size)) from error

    def _commit(self, batch: Batch) -> None:
        begin = self.state.head
        end = begin + sum(content.length for content in batch.contents)
        sha1, sums = self._open.sha1.copy(), self._open.sums.fork()
        # The SHA-1 of the fragment is needed only when readers look. It is computed while the disk
        # works, or at once if that takes less than handing it to another thread.
        hashing: Future[int] | None = None
        hashed = 0
        if end - begin <= INLINE_HASH_BYTES_MAX:
            hashed = extend_sums(sha1, sums, batch.contents)
        else:
            hashing = self._disk.start_hashing(lambda: extend_sums(sha1, sums, batch.contents))
        try:
            inlined = end - begin <= INLINE_BYTES_MAX
            position = begin - self.open_begin
            written = self._open.write(batch.contents, position, summed=not inlined)
            # Content must precede its record, because the record makes it count.
            if written.position != end - self.open_begin:
                raise _wrong_length(written.position, end - self.open_begin)
            record = self._record(batch, begin, end, written.checksum)
            self._log_commit(encode_record(record), inlined=inlined)
        finally:
            # Also after a failure, because the job reads the content.
            if hashing is not None:
                hashed = hashing.result()
        if hashed != end - begin:
            raise _wrong_length(hashed, end - begin)
        self._open.note_committed(sha1, sums)
        self._advance(record)

    def _record(self, batch: Batch, begin: int, end: int, checksum: bytes | None) -> Commit:
        """Return the record of a batch, with its content or with a checksum of the written content."""
        return Commit(
            sequence=self.state.sequence + 1,
            begin=begin,
            end=end,
            sums=() if checksum is None else ((end - begin, checksum),),
            at_ms=batch.at_ms,
            registers=batch.registers,
            confirms=batch.confirms,
            content=joined(batch.contents) if checksum is None else None,
            # Of a log that is not synced, no length is known to be durable.
            marked_length=LENGTH_MARK + (self._log.length if self.state.synced else 0),
        )

    def _log_commit(self, record: bytes, *, inlined: bool) -> None:
        if not self.state.synced:
            self._log.append(record)
            self._unsynced = True
            return
        # Content first, because a durable record promises it.
        if not inlined:
            self._open.sync()
        self._log.append_durably(record)

    def _advance(self, record: Commit) -> None:
        self.state = msgspec.structs.replace(
            self.state,
            sequence=record.sequence,
            head=record.end,
            registers=self.state.registers if record.registers is None else record.registers,
            unconfirmed=self.state.unconfirmed and not record.confirms,
        )

    def gains_by_spare(self, length: int) -> bool:
        """Tell whether to look for a recycled file before a batch of this length, bytes.

        Batches that fit into the log do without one, because they wait for the log alone.
        """
        return length > INLINE_BYTES_MAX and self._open.looks_for_spare(self.open_bytes)

    def use_spare(self, spares: SegmentRecycler) -> None:
        """Continue the open fragment in a recycled file, if there is one.

        Requires `gains_by_spare`. The holder of the old file releases it.

        Raises:
            JournalStoreError: the disk failed; the store is unusable from here on.
        """
        try:
            self._open.move_to_spare(spares, self.open_bytes)
        except OSError as error:
            self.failed = True
            raise JournalStoreError(error, rolled_back=True) from error

    def reserve(self, end: int) -> None:
        """Reserve offsets up to `end` durably, before they are shown without a sync.

        Raises:
            JournalStoreError: the disk failed; the store is unusable from here on.
        """
        if self.state.synced or end <= self.state.reserved:
            return
        record = Reserve(self.state.sequence + 1, end + RESERVATION_BYTES)
        log_size = self._log.size
        try:
            self._log.append(encode_record(record))
            self._log.sync()
        except OSError as error:
            self.failed = True
            raise JournalStoreError(error, rolled_back=self._roll_back(log_size)) from error
        self.state = msgspec.structs.replace(
            self.state, sequence=record.sequence, reserved=record.reserved
        )

    def trim(self, first: int) -> None:
        """Record durably that the journal begins at an offset, bytes.

        The fragments before it may be removed once this returns.

        Raises:
            JournalStoreError: the disk failed; the store is unusable from here on.
        """
        if first <= (self.state.first or 0):
            return
        record = Trim(self.state.sequence + 1, first)
        log_size = self._log.size
        try:
            self._log.append(encode_record(record))
            self._log.sync()
        except OSError as error:
            self.failed = True
            raise JournalStoreError(error, rolled_back=self._roll_back(log_size)) from error
        self.state = msgspec.structs.replace(
            self.state, sequence=record.sequence, first=record.first
        )

    def sync(self) -> None:
        """Force unsynced commits to the disk.

        Raises:
            JournalStoreError: the disk failed; the store is unusable from here on.
        """
        if not self._unsynced or self.failed:
            return
        self._unsynced = False
        try:
            self._open.sync()
            self._log.sync()
        except OSError as error:
            self.failed = True
            raise JournalStoreError(error, rolled_back=False) from error

    def _roll_back(self, log_size: int) -> bool:
        try:
            self._log.truncate(log_size)
            # Before the content goes, because a record without content would count as damage.
            self._log.sync()
            self._open.truncate(self.open_bytes)
        except OSError:
            return False
        return True

    def roll(
        self,
        *,
        begin: int | None = None,
        synced: bool | None = None,
        dropped: Sequence[tuple[int, int]] = (),
    ) -> Rolled:
        """Seal the open fragment and begin the next one.

        Args:
            begin: Where the next one begins, bytes; beyond the head it leaves a declared hole, and then the open
                fragment must be empty.
            synced: Whether commits are synced from here on; unchanged if None.
            dropped: Spans [begin, end) of sealed fragments that are about to be removed, bytes: declared holes, too.

        Raises:
            JournalStoreError: the disk failed; the store is unusable from here on.
        """
        head = self.state.head if begin is None else begin
        assert head == self.state.head or not self.open_bytes, "seal before jumping"
        holes = joined_spans((*self.state.holes, *dropped))
        if head > self.state.head:
            holes = (*holes, (self.state.head, head))
        syncs = self.state.synced if synced is None else synced
        try:
            self._open.truncate(self.open_bytes)
            if self.open_bytes:
                self._open.sync()
            return self._begin_fragment(
                msgspec.structs.replace(self._next_checkpoint(head, synced=syncs), holes=holes)
            )
        except OSError as error:
            self.failed = True
            # No append was being written, so none is in doubt.
            raise JournalStoreError(error, rolled_back=True) from error

    def _next_checkpoint(self, head: int, *, synced: bool) -> Checkpoint:
        return msgspec.structs.replace(
            self.state,
            sequence=self.state.sequence + 1,
            head=head,
            synced=synced,
            reserved=head if synced else head + RESERVATION_BYTES,
            boot_id=self._boot_id,
        )

    def _start_log(self, checkpoint: Checkpoint) -> CommitLogWriter:
        path = generation_path(self.directory, LOG_STEM, self._generation)
        return CommitLogWriter.create(self._disk, path, encode_record(checkpoint))

    def _begin_fragment(self, checkpoint: Checkpoint) -> Rolled:
        """Start a log, give the open file its sealed name, open the next file, and remove the old log."""
        self._generation += 1
        with ExitStack() as undo:
            log = self._start_log(checkpoint)
            undo.callback(log.close)
            retired, old_log = self._open, self._log
            sealed = retired.seal(self.open_bytes) if self.open_bytes else None
            # The next fragment begins elsewhere, so the empty file would be left behind.
            if sealed is None and checkpoint.head != retired.begin:
                retired.path.unlink()
            opened = OpenFragment(self._disk, self.directory, checkpoint.head)
            undo.callback(opened.file.release)
            self._disk.sync_directory(self.directory)
            old_log.path.unlink()
            undo.pop_all()
        old_log.close()
        self._log, self._open = log, opened
        self._unsynced = False
        self.state = checkpoint
        return Rolled(sealed, retired.file)

    def adopt(
        self, spool: Path, *, length: int, digest: bytes, registers: bytes | None, confirms: bool
    ) -> Rolled:
        """Commit a staged file as a sealed fragment, without copying it.

        Requires an empty open fragment. The log's new checkpoint is the commit.

        Raises:
            JournalStoreError: the disk failed; the store is unusable from here on.
        """
        assert not self.open_bytes, "seal before adopting"
        begin, end = self.state.head, self.state.head + length
        target = self.directory / fragment_name(begin, end, digest)
        checkpoint = msgspec.structs.replace(
            self._next_checkpoint(end, synced=self.state.synced),
            registers=self.state.registers if registers is None else registers,
            unconfirmed=self.state.unconfirmed and not confirms,
        )
        try:
            self._open.truncate(0)
            self._disk.sync_file(spool)
            spool.rename(target)
            self._disk.sync_directory(self.directory)
            mod_time = int(target.stat().st_mtime)
            rolled = self._begin_fragment(checkpoint)
        except OSError as error:
            # Recovery knows from the log whether the renamed file was committed, and removes it if
            # not.
            self.failed = True
            raise JournalStoreError(error, rolled_back=False) from error
        return replace(rolled, sealed=SealedFragment(begin, end, digest, mod_time, target))

    def close(self) -> None:
        """Make everything durable and close the log; the file that readers see stays with its holders.

        Raises:
            JournalStoreError: the disk failed.
        """
        if not self.failed:
            self.sync()
            if not self.state.synced:
                # Without a final sync, the next start could take this for a power loss.
                self.roll(synced=True)
                self.file.release()
        self._log.close()

    def abandon(self) -> None:
        """Release the files as they are; recovery can always open them again."""
        self._log.close()
        self.file.release()


def _wrong_length(found: int, announced: int) -> OSError:
    """Return the error for content without its announced length, bytes: its staging file was truncated."""
    return OSError(errno.EIO, f"staged content ends at {found}, expected {announced}")
