"""Ships what a store does to its files into the shard's recovery log.

    store's thread      create, write, ... ─► frames, held back until a barrier or `FLUSH_BYTES`
    event loop                                └─► one append after the other, each demanding our fence
    store's thread      barrier() ◄── resolves once every append before it is durable and was fenced by us

An append is believed only if the journal's registers name us *after* it: a journal that lost its registers lets anyone
append. Whoever lost the fence learns it from the next barrier, at once; nothing is repeated that cannot succeed, and
nothing more is sent.

A log may go on in another one (`take_over`). Hints must end in the log that they are of, or nobody could tell where to
go on behind them; so where nothing live is touched in the new log, a write of no bytes is recorded there.

Source: gazette/core consumer/recoverylog/recorder.go (operations of each call, lower bounds of offsets). Failing fast,
and the demand that the fence is seen, are ours.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Final, Protocol

from broadsheet.consumer.errors import (
    LogDataLossError,
    LogFencedError,
    RecoveryLogError,
    RegisterMismatchError,
)
from broadsheet.consumer.op_future import OpFuture, TurnFuture
from broadsheet.consumer.protocol.journal_pb2 import AppendResponse, LabelSelector, LabelSet
from broadsheet.consumer.protocol.recorded_op_pb2 import FSMHints, Property, RecordedOp
from broadsheet.consumer.recoverylog.fsm import (
    FilePlacement,
    FileStateMachine,
    OperationOutcome,
    fence_check,
    fence_of,
    holds_fence,
)
from broadsheet.consumer.recoverylog.operation import framed

FLUSH_BYTES: Final = 1 << 20
"""Recorded bytes that are sent without waiting for a barrier."""
UNSENT_BYTES_MAX: Final = 64 << 20
"""Recorded bytes that the broker does not have yet, above which the store's thread waits."""
ANCHOR: Final = "/.recovery-log"
"""An empty file that holds the place in a new log when there is no other file to."""


class Appends(Protocol):
    """Performs appends of one log in order; `broadsheet.consumer.journal.append_service.AppendService`."""

    def append(
        self,
        journal: str,
        content: Sequence[bytes],
        *,
        after: Iterable[Future[object]] = (),
        check_registers: LabelSelector | None = None,
        union_registers: LabelSet | None = None,
    ) -> Future[AppendResponse]:
        """Queue an append for when all of `after` have succeeded; no content at all makes a barrier."""
        ...


class Recorder:
    """Implements `broadsheet.consumer.recoverylog.recorder.FileRecorder`.

    Made on the event loop; called by one thread at a time that is not the loop's; `snapshot_hints` by the loop.
    """

    def __init__(
        self, fsm: FileStateMachine, appends: Appends, *, log: str, author: int, head: int
    ) -> None:
        """Go on where a player left off.

        Args:
            fsm: As recovered; ours from now on.
            appends: Runs on the current event loop, until after the last barrier.
            log: Where to record.
            author: Ours; the log's fence.
            head: Lower bound of the write head of the log that was played, bytes: after the operation that handed it
                over.
        """
        self._fsm = fsm
        self._forked = fsm.last_log != log
        self._appends = appends
        self._log = log
        self._author = author
        self._event_loop = asyncio.get_running_loop()
        self._lock = threading.Lock()
        self._head = 0 if self._forked else head
        self._newest: AppendResponse | None = None
        self._after: list[Future[object]] = []
        """What must have succeeded before anything more gets into the log."""
        self._pieces: list[bytes] = []
        self._pieces_bytes = 0
        self._unsent_bytes = 0
        self._room = threading.Condition(self._lock)
        self._failure: BaseException | None = None
        self._recorded_bytes = 0

    @property
    def recorded_bytes(self) -> int:
        """Bytes recorded in this recorder's life."""
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
            while self._unsent_bytes > UNSENT_BYTES_MAX and self._failure is None:
                self._room.wait()

    def rename(self, path: str, to: str) -> None:
        """Record that a file has another name now, and that a file which had that name is gone."""
        if path == to:
            return
        with self._lock:
            fnode = self._fsm.links[path]
            self._unlink_if_there(to)
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
        """Let what is recorded from here on get into the log only once all these have succeeded."""
        with self._lock:
            self._after.extend(futures)

    def barrier(self) -> OpFuture:
        """Return what resolves when everything recorded before is durable in the log.

        It fails with `LogFencedError` when another recorder took over, and with what ended the appends otherwise.
        """
        barrier = _barrier()
        with self._lock:
            self._send(barrier)
        return barrier

    # -- what the shard calls

    def snapshot_hints(self) -> tuple[FSMHints, OpFuture]:
        """Return hints of now, and what resolves once the log has every operation that they cover."""
        barrier = _barrier()
        with self._lock:
            if self._forked:
                self._anchor()
            hints = self._fsm.hints(self._log)
            self._send(barrier)
        return hints, barrier

    def take_over(self) -> OpFuture:
        """Go on in another log than the one that was played: the first append there makes us its only writer.

        Requires:
            Nothing was recorded before.
        """
        barrier = _barrier()
        with self._lock:
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
        verdict = self._fsm.apply(op, payload, FilePlacement(self._log, self._head, 0))
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
        """Record something of a live file in our log, if nothing is."""
        fsm = self._fsm
        newest = max(
            fsm.fnodes, key=lambda number: fsm.fnodes[number].segments[-1].last_seq, default=0
        )
        if not newest:
            self._apply(RecordedOp(create=RecordedOp.Create(path=ANCHOR)))
        elif fsm.fnodes[newest].segments[-1].log != self._log:
            self._apply(RecordedOp(write=RecordedOp.Write(fnode=newest)))

    def _send(self, barrier: TurnFuture[None] | None, *, takes_over: bool = False) -> None:
        """Hand over what is held back, in order of the calls; an empty hand is a barrier, too."""
        pieces, size, after = self._pieces, self._pieces_bytes, self._after
        self._pieces, self._pieces_bytes, self._after = [], 0, []
        append = partial(self._append, pieces, size, barrier, takes_over=takes_over, after=after)
        try:
            self._event_loop.call_soon_threadsafe(append)
        except RuntimeError as error:
            self._failure = RecoveryLogError(
                self._log, "the process ends: its event loop is closed"
            )
            self._failure.__cause__ = error
            self._unsent_bytes -= size
            self._room.notify_all()
            if barrier is not None:
                barrier.set_exception(self._failure)

    # -- on the event loop

    def _append(
        self,
        pieces: Sequence[bytes],
        size: int,
        barrier: TurnFuture[None] | None,
        *,
        takes_over: bool,
        after: Collection[Future[object]],
    ) -> None:
        if self._failure is not None:
            self._settle(size, barrier)
            return
        future = self._appends.append(
            self._log,
            pieces,
            after=after,
            check_registers=None if takes_over else fence_check(self._author),
            union_registers=fence_of(self._author) if takes_over else None,
        )
        future.add_done_callback(partial(self._on_appended, size=size, barrier=barrier))
        if barrier is not None and isinstance(future, TurnFuture):
            future.when_sent(barrier.sent)

    def _on_appended(
        self, future: Future[AppendResponse], *, size: int, barrier: OpFuture | None
    ) -> None:
        failure = future.exception() or self._doubt(future.result())
        if self._failure is None and failure is not None:
            self._failure = self._told(failure)
        self._settle(size, barrier)

    def _settle(self, size: int, barrier: OpFuture | None) -> None:
        """Take note that bytes need no room any more, and tell who waits for them what became of all so far."""
        with self._lock:
            self._unsent_bytes -= size
            self._room.notify_all()
        if barrier is None:
            return
        if self._failure is not None:
            barrier.set_exception(self._failure)
        else:
            barrier.set_result(None)

    def _doubt(self, response: AppendResponse) -> BaseException | None:
        """Return why an append that succeeded is not to be believed."""
        if not holds_fence(response.registers, self._author):
            return LogFencedError(
                self._log,
                f"the journal's registers no longer name author {self._author}; they were lost, or taken over",
            )
        commit = response.commit
        if response is self._newest:
            return None  # Appends that went out together share their answer.
        self._newest = response
        if commit.begin < self._head:
            return LogDataLossError(
                self._log,
                f"an append landed at {commit.begin}, below {self._head} where one had ended: the broker lost data",
            )
        self._head = commit.end
        return None

    def _told(self, failure: BaseException) -> BaseException:
        if isinstance(failure, RegisterMismatchError):
            fenced = LogFencedError(self._log, f"another recorder took over: {failure}")
            fenced.__cause__ = failure
            return fenced
        return failure


def _barrier() -> TurnFuture[None]:
    """Return a future that nobody can cancel: who stops waiting for it must not surprise us."""
    barrier: TurnFuture[None] = TurnFuture()
    barrier.set_running_or_notify_cancel()
    return barrier


# What a store calls so that changes of its files get into the shard's recovery log.


class FileRecorder(Protocol):
    """Records changes of files, in order; called by one thread at a time, never by the event loop's."""

    def create(self, path: str) -> None:
        """Record a new, empty file; `path` is relative to the store's directory, and starts with a slash."""
        ...

    def write(self, path: str, offset: int, content: bytes) -> None:
        """Record that a file holds `content` from `offset`, bytes, on."""
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
        """Let what is recorded from here on get into the log only once all these have succeeded.

        If one fails, nothing more gets there, and barriers fail. If the futures are left unresolved, they must fail at
        last: whoever gives up on them must see to it.
        """
        ...

    def barrier(self) -> Future[None]:
        """Return what resolves when everything recorded before is durable in the log, and fails when fenced.

        A `TurnFuture` also tells which append makes it so.
        """
        ...
