"""The recorder: ships a store's file changes into the shard's recovery log.

    store's thread      create, write, ... ─► frames, held until a barrier or `FLUSH_BYTES`
    event loop                                └─► one append after the other, each requiring our fence
    store's thread      barrier() ◄── resolves once every append before it is durable and was fenced by us

An append counts only if the journal's registers name us *after* it, because a journal that lost its registers lets any
author append, and if players find it (`broadsheet.consumer.recoverylog.log_writer`). A recorder that lost the fence
learns it from the next barrier, at once; it repeats nothing that cannot succeed, and sends nothing more.

A log may continue in another one (`take_over`). Hints must end in their own log, because otherwise a reader could not
tell where to continue after them; so if nothing live is touched in the new log, a write of no bytes is recorded there.

Source: gazette/core consumer/recoverylog/recorder.go (operations of each call, lower bounds of offsets). Failing fast,
and the requirement that the fence is seen, are ours.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection
from concurrent.futures import Future
from typing import Final, Protocol

from broadsheet.consumer.errors import RecoveryLogError
from broadsheet.consumer.recoverylog.foreign_bytes import OwnOperations
from broadsheet.consumer.recoverylog.fsm import FilePlacement, FileStateMachine, OperationOutcome
from broadsheet.consumer.recoverylog.log_writer import Appends, FramedOperations, RecoveryLogWriter
from broadsheet.consumer.recoverylog.operation import framed
from broadsheet.journals.pipelining import TurnFuture
from broadsheet.runtime.op_future import OpFuture
from broadsheet.wire.recorded_op_pb2 import FSMHints, Property, RecordedOp

FLUSH_BYTES: Final = 1 << 20
"""Number of recorded bytes at which they are sent without waiting for a barrier."""
UNSENT_BYTES_MAX: Final = 64 << 20
"""Number of recorded bytes not yet at the broker above which the store's thread waits."""
ANCHOR: Final = "/.recovery-log"
"""An empty file that anchors the hints in a new log when there is no other live file."""


class Recorder:
    """The `FileRecorder` of one shard's recovery log.

    Created on the event loop; called by one thread at a time other than the loop's; `snapshot_hints` by the loop.
    """

    def __init__(
        self, fsm: FileStateMachine, appends: Appends, *, log: str, author: int, head: int
    ) -> None:
        """Continue where a player stopped.

        Args:
            fsm: As recovered; the recorder owns it from now on.
            appends: Runs on the current event loop, until after the last barrier.
            log: The log to record into.
            author: Ours; the log's fence.
            head: Lower bound of the write head of the log that was played, bytes: after the operation that handed it
                over.
        """
        self._fsm = fsm
        self._forked = fsm.last_log != log
        self._log = log
        self._author = author
        self._event_loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._writer = RecoveryLogWriter(
            appends,
            log=log,
            author=author,
            head=None if self._forked else head,
            on_settled=self._on_settled,
        )
        self._sent_seq, self._sent_checksum = fsm.next_seq, fsm.next_checksum
        """Of the first operation that is not sent yet."""
        self._after: list[Future[object]] = []
        """Futures that must succeed before anything more is appended to the log."""
        self._pieces: list[bytes] = []
        self._pieces_bytes = 0
        self._unsent_bytes = 0
        self._room = threading.Condition(self._lock)
        self._recorded_bytes = 0

    @property
    def recorded_bytes(self) -> int:
        """Number of bytes recorded by this recorder."""
        return self._recorded_bytes

    # -- what a store calls

    def create(self, path: str) -> None:
        """Record a new, empty file; one that had the name is gone."""
        with self._lock:
            self._unlink_if_there(path)
            self._apply(RecordedOp(create=RecordedOp.Create(path=path)))

    def write(self, path: str, offset: int, content: bytes) -> None:
        """Record that a file holds `content` from `offset`, bytes, on."""
        with self._lock:
            fnode = self._fsm.links[path]
            write = RecordedOp.Write(fnode=fnode, offset=offset, length=len(content))
            self._apply(RecordedOp(write=write), content)
            self._flush(FLUSH_BYTES)
            # Backpressure: a slow broker slows the store down. After a failure nothing is sent, so nothing is awaited.
            while self._unsent_bytes > UNSENT_BYTES_MAX and self._writer.failure is None:
                self._room.wait()

    def rename(self, path: str, to: str) -> None:
        """Record that a file has another name now, and that a file which had that name is gone."""
        if path == to:
            return
        with self._lock:
            fnode = self._fsm.links[path]
            self._unlink_if_there(to)
            # Linked before it is unlinked, because a file without a path is removed.
            self._apply(RecordedOp(link=RecordedOp.Link(fnode=fnode, path=to)))
            self._apply(RecordedOp(unlink=RecordedOp.Link(fnode=fnode, path=path)))

    def remove(self, path: str) -> None:
        """Record that a file is gone."""
        with self._lock:
            unlink = RecordedOp.Link(fnode=self._fsm.links[path], path=path)
            self._apply(RecordedOp(unlink=unlink))

    def set_property(self, path: str, content: str) -> None:
        """Record a small file that is replaced as a whole."""
        with self._lock:
            self._unlink_if_there(path)
            self._apply(RecordedOp(property=Property(path=path, content=content)))

    def after(self, futures: Collection[Future[object]]) -> None:
        """Append what is recorded from here on only once all these futures have succeeded."""
        with self._lock:
            self._after.extend(futures)

    def barrier(self) -> OpFuture:
        """Return a future that resolves when everything recorded before is durable in the log.

        It fails with `LogFencedError` when another recorder took over, else with the error that ended the appends.
        """
        barrier = _barrier()
        with self._lock:
            self._send(barrier)
        return barrier

    # -- what the shard calls

    def snapshot_hints(self) -> tuple[FSMHints, OpFuture]:
        """Return the current hints, and a future that resolves once the log has every operation that they cover."""
        barrier = _barrier()
        with self._lock:
            # The recovered files may lie in another log, but hints must end in ours.
            if self._forked:
                self._anchor()
            hints = self._fsm.hints(self._log)
            self._send(barrier)
        return hints, barrier

    def take_over(self) -> OpFuture:
        """Continue in another log than the one that was played; the first append there makes us its only writer.

        Requires:
            Nothing was recorded before.
        """
        barrier = _barrier()
        with self._lock:
            # An operation without an effect on files, which hands the log over.
            self._apply(RecordedOp())
            self._anchor()
            self._send(barrier, takes_over=True)
        return barrier

    # -- with the lock held

    def _unlink_if_there(self, path: str) -> None:
        fnode = self._fsm.links.get(path)
        if fnode is not None:
            self._apply(RecordedOp(unlink=RecordedOp.Link(fnode=fnode, path=path)))

    def _apply(self, op: RecordedOp, content: bytes = b"") -> None:
        op.author = self._author
        op.seq_no = self._fsm.next_seq
        op.checksum = self._fsm.next_checksum
        payload = op.SerializeToString()
        verdict = self._fsm.apply(op, payload, FilePlacement(self._log, self._writer.head, 0))
        assert verdict is OperationOutcome.APPLIED, (
            f"{op} recorded against the files there are: {verdict}"
        )
        frame = framed(payload)
        self._pieces.append(frame)
        if content:
            self._pieces.append(content)
        size = len(frame) + len(content)
        self._pieces_bytes += size
        self._unsent_bytes += size
        self._recorded_bytes += size

    def _flush(self, at_least_bytes: int) -> None:
        if self._pieces_bytes >= at_least_bytes:
            self._send(None)

    def _anchor(self) -> None:
        """Record a write of a live file in our log, if the log has none."""
        fsm = self._fsm
        newest = max(
            fsm.fnodes, key=lambda number: fsm.fnodes[number].segments[-1].last_seq, default=0
        )
        if not newest:
            self._apply(RecordedOp(create=RecordedOp.Create(path=ANCHOR)))
        elif fsm.fnodes[newest].segments[-1].log != self._log:
            self._apply(RecordedOp(write=RecordedOp.Write(fnode=newest)))

    def _send(self, barrier: TurnFuture[None] | None, *, takes_over: bool = False) -> None:
        """Send the held frames, in order of the calls; sending none is a barrier, too."""
        frames = FramedOperations(
            pieces=self._pieces,
            size=self._pieces_bytes,
            own=OwnOperations(
                author=self._author,
                first_seq=self._sent_seq,
                first_checksum=self._sent_checksum,
                next_seq=self._fsm.next_seq,
            ),
            barrier=barrier,
            takes_over=takes_over,
            after=self._after,
        )
        self._pieces, self._pieces_bytes, self._after = [], 0, []
        self._sent_seq, self._sent_checksum = self._fsm.next_seq, self._fsm.next_checksum
        try:
            self._event_loop.call_soon_threadsafe(self._writer.send, frames)
        except RuntimeError as error:
            failure = RecoveryLogError(self._log, "the process ends: its event loop is closed")
            failure.__cause__ = error
            self._writer.failure = failure
            self._unsent_bytes -= frames.size
            self._room.notify_all()
            if barrier is not None:
                barrier.set_exception(failure)

    def _on_settled(self, frames: FramedOperations) -> None:
        """Release the room of what was sent; on the event loop."""
        with self._lock:
            self._unsent_bytes -= frames.size
            self._room.notify_all()


def _barrier() -> TurnFuture[None]:
    """Return a future that cannot be cancelled, so that a caller who stops waiting cannot break its settlement."""
    barrier: TurnFuture[None] = TurnFuture()
    barrier.set_running_or_notify_cancel()
    return barrier


class FileRecorder(Protocol):
    """The store's interface to the recovery log: records changes of its files, in order.

    Called by one thread at a time, never by the event loop's.
    """

    def create(self, path: str) -> None:
        """Record a new, empty file; `path` is relative to the store's directory, and starts with a slash."""
        ...

    def write(self, path: str, offset: int, content: bytes) -> None:
        """Record that a file holds `content` from `offset`, bytes, on; the log has all of a write or nothing of it."""
        ...

    def rename(self, path: str, to: str) -> None:
        """Record that a file has another name now, and that a file which had that name is gone."""
        ...

    def remove(self, path: str) -> None:
        """Record that a file is gone."""
        ...

    def set_property(self, path: str, content: str) -> None:
        """Record a small file that is replaced as a whole."""
        ...

    def after(self, futures: Collection[Future[object]]) -> None:
        """Append what is recorded from here on only once all these futures have succeeded.

        If one fails, nothing more is appended, and barriers fail. Every future must be resolved in the end: a caller
        that gives up on one must make it fail.
        """
        ...

    def barrier(self) -> Future[None]:
        """Return a future that resolves when everything recorded before is durable, and fails when fenced.

        A `TurnFuture` also names the append that makes it durable.
        """
        ...
