"""Two stores without threads: a file in the shard's recovery log, and a fenced row of a table in memory.

Both keep integers by key, and pass the conformance suite of stores. Both commit from callbacks once everything they
wait for is done, so they run on a virtual loop, where nothing may block.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import CancelledError, Future
from dataclasses import dataclass, field
from functools import partial
from typing import Final, Protocol, TypeVar

import msgspec

from broadsheet.consumer.application import Shard
from broadsheet.consumer.errors import CommitFencedError, StoreClosedError, StoreUnavailableError
from broadsheet.consumer.recoverylog.local_state import local_state_of, remove_if_there
from broadsheet.consumer.recoverylog.recorder import FileRecorder
from broadsheet.consumer.stores.json_file import decode_documents, encode_documents
from broadsheet.consumer.stores.state_file import RecordedStateFile, Segments
from broadsheet.journals.message.checkpoint import (
    EncodedCheckpoint,
    encoded,
    put_together,
    segments_named,
    taken_out,
)
from broadsheet.journals.pipelining import TurnFuture
from broadsheet.runtime.op_future import OpFuture
from broadsheet.testing.allocator.kernel.network import Link
from broadsheet.wire.shard_pb2 import Checkpoint

State = dict[str, int]
T = TypeVar("T")
_NEXT = "next.json"


class PiecewiseRecorder:
    """A `broadsheet.consumer.recoverylog.recorder.FileRecorder` that sends each operation separately, so that a crash
    may come between any two.
    """

    def __init__(self, recorder: FileRecorder) -> None:
        self._recorder = recorder

    def create(self, path: str) -> None:
        """Record a new, empty file."""
        self._recorder.create(path)
        self._recorder.barrier()

    def write(self, path: str, offset: int, content: bytes) -> None:
        """Record a write as two halves."""
        half = len(content) // 2
        self._recorder.write(path, offset, content[:half])
        self._recorder.barrier()
        self._recorder.write(path, offset + half, content[half:])
        self._recorder.barrier()

    def rename(self, path: str, to: str) -> None:
        """Record a rename."""
        self._recorder.rename(path, to)
        self._recorder.barrier()

    def remove(self, path: str) -> None:
        """Record a removal."""
        self._recorder.remove(path)
        self._recorder.barrier()

    def set_property(self, path: str, content: str) -> None:
        """Record a property."""
        self._recorder.set_property(path, content)
        self._recorder.barrier()

    def after(self, futures: Collection[Future[object]]) -> None:
        """Make later operations wait."""
        self._recorder.after(futures)

    def barrier(self) -> Future[None]:
        """Return a future that resolves when everything recorded before is durable."""
        return self._recorder.barrier()


class StoreObserver(Protocol):
    """An observer of the states that stores rely on."""

    def on_restored(self, state: Mapping[str, int]) -> None:
        """Note the state that a store restored."""
        ...

    def on_believed(self, state: Mapping[str, int]) -> None:
        """A store was told that this state is durable."""
        ...


class Unobserved:
    """An observer that ignores everything."""

    def on_restored(self, state: Mapping[str, int]) -> None:
        """Nothing."""

    def on_believed(self, state: Mapping[str, int]) -> None:
        """Nothing."""


def after_all(
    futures: Collection[Future[object]], then: Callable[[BaseException | None], None]
) -> None:
    """Call `then` once: with the first failure at once, or with None when all have succeeded."""
    left = len(futures)
    told = False

    def on_done(done: Future[object]) -> None:
        nonlocal left, told
        left -= 1
        error = CancelledError() if done.cancelled() else done.exception()
        if not told and (error is not None or left == 0):
            told = True
            then(error)

    for future in futures:
        future.add_done_callback(on_done)
    if not futures:
        then(None)


class RecordedStore:
    """A store of one file in the recovery log: a `JsonFileStore` that never blocks."""

    def __init__(
        self,
        shard: Shard,
        *,
        observer: StoreObserver | None = None,
        piecewise: bool = False,
    ) -> None:
        """Take the directory and the recorder of the shard.

        Args:
            shard: Has a recovery log.
            observer: Told the states that this store relies on.
            piecewise: Each commit takes several appends.
        """
        local_state = local_state_of(shard, None)
        assert local_state.recorder is not None, "a recovery log brings its recorder"
        self._fqn = shard.fqn
        self._directory = local_state.directory
        recorder: FileRecorder = local_state.recorder
        self._recorder = PiecewiseRecorder(recorder) if piecewise else recorder
        self._file = RecordedStateFile(shard.fqn, local_state, self._recorder)
        self._observer = observer or Unobserved()
        self._committed: State = {}
        self._commit: OpFuture | None = None
        self._closed = False
        self.keeps_segments = True
        self.state: State = {}
        """The state of the running transaction."""

    def committed_state(self) -> State:
        """Return a copy of the state as of the last commit."""
        return dict(self._committed)

    def restore_checkpoint(self, shard: Shard) -> Checkpoint:
        """Read the state that was played, or committed since."""
        del shard
        self._directory.mkdir(parents=True, exist_ok=True)
        remove_if_there(self._recorder, self._directory, _NEXT)
        checkpoint = Checkpoint()
        self._committed = {}
        if self._file.path.exists():
            state, checkpoint = decode_documents(self._file.path.read_bytes())
            self._committed = msgspec.json.decode(state, type=State)
        self.state = dict(self._committed)
        self._observer.on_restored(self._committed)
        segments = self._file.load_segments(segments_named(checkpoint))
        return put_together(checkpoint, segments)

    def start_commit(
        self, shard: Shard, checkpoint: Checkpoint, wait_for: Collection[Future[object]]
    ) -> OpFuture:
        """Replace the file; the log gets it once all of `wait_for` has succeeded."""
        del shard
        if self._closed:
            raise StoreClosedError(self._fqn)
        state = dict(self.state)
        kept, new_segments = taken_out(checkpoint)
        content = encode_documents(msgspec.json.encode(state), kept)
        self._commit = commit = _new_commit()
        self._recorder.after(wait_for)
        durable = self._file.replace(content, Segments(new_segments, segments_named(kept)))
        if isinstance(durable, TurnFuture):
            durable.when_sent(commit.sent)
        durable.add_done_callback(partial(self._settle, commit, state))
        return commit

    def destroy(self) -> None:
        """Abort a commit in progress; remove the files."""
        self._closed = True
        self._file.close()
        if self._commit is not None and not self._commit.done():
            self._commit.set_exception(StoreClosedError(self._fqn))

    def _settle(self, commit: OpFuture, state: State, durable: OpFuture) -> None:
        if commit.done():
            return
        failure = durable.exception()
        if failure is not None:
            commit.set_exception(failure)
            return
        self._committed = state
        self._observer.on_believed(state)
        commit.set_result(None)


def _new_commit() -> TurnFuture[None]:
    """Return a future that cannot be cancelled, because the application gets it too."""
    commit: TurnFuture[None] = TurnFuture()
    commit.set_running_or_notify_cancel()
    return commit


@dataclass(slots=True)
class Row:
    """A shard's row in a table."""

    fence: int = 0
    state: State = field(default_factory=dict)
    checkpoint: bytes = b""
    segments: dict[bytes, bytes] = field(default_factory=dict)
    """Segments of the checkpoint, by id."""


class FencedTable:
    """Rows by shard, each with a fence. Faults are injected in front of it (`Way`)."""

    def __init__(self, on_commit: Callable[[str, State], object] = lambda _, __: None) -> None:
        """Begin empty.

        Args:
            on_commit: Called with each shard and state that becomes durable.
        """
        self.rows: dict[str, Row] = {}
        """By shard; a test may change them, as another program could."""
        self._on_commit = on_commit

    def restore(self, fqn: str) -> Row:
        """Raise the fence, and return a copy of the row."""
        row = self.rows.setdefault(fqn, Row())
        row.fence += 1
        return Row(row.fence, dict(row.state), row.checkpoint, dict(row.segments))

    def commit(self, fqn: str, fence: int, state: State, checkpoint: EncodedCheckpoint) -> None:
        """Replace the row.

        Raises:
            CommitFencedError: the fence was raised since.
        """
        row = self.rows.setdefault(fqn, Row())
        if row.fence != fence:
            raise CommitFencedError(fqn, fence, row.fence)
        row.state, row.checkpoint = dict(state), checkpoint.checkpoint
        row.segments |= checkpoint.new_segments
        row.segments = {each: row.segments[each] for each in checkpoint.named}
        self._on_commit(fqn, state)


Answer = Callable[[BaseException | None], None]


class Way(Protocol):
    """A link from a store to its table."""

    def check(self) -> None:
        """Raise if the table cannot be reached.

        Raises:
            StoreError: it cannot.
        """
        ...

    def send(self, action: Callable[[], None], answer: Answer) -> None:
        """Run `action` at the table, and call `answer` with its exception or None."""
        ...


class DirectWay:
    """A link without delay or loss."""

    def check(self) -> None:
        """Do nothing, because the table is always reachable."""

    def send(self, action: Callable[[], None], answer: Answer) -> None:
        """Run the action, and answer."""
        answer(raised_by(action))


def raised_by(action: Callable[[], None]) -> BaseException | None:
    """Run an action, and return its exception or None."""
    try:
        action()
    except Exception as error:
        return error
    return None


class FencedRowStore:
    """A store of one row, like `SqlStore`: each restore raises the fence, each commit requires it."""

    def __init__(
        self,
        shard: Shard,
        table: FencedTable,
        way: Way | None = None,
        observer: StoreObserver | None = None,
    ) -> None:
        self._fqn = shard.fqn
        self._table = table
        self._way = way or DirectWay()
        self._observer = observer or Unobserved()
        self._fence = 0
        self._committed: State = {}
        self._commit: OpFuture | None = None
        self._closed = False
        self.keeps_segments = True
        self.state: State = {}
        """The state of the running transaction."""

    def committed_state(self) -> State:
        """Return a copy of the state as of the last commit."""
        return dict(self._committed)

    def restore_checkpoint(self, shard: Shard) -> Checkpoint:
        """Fence older holders, and read the row."""
        del shard
        self._way.check()
        row = self._table.restore(self._fqn)
        self._fence = row.fence
        self._committed = row.state
        self.state = dict(row.state)
        self._observer.on_restored(row.state)
        return put_together(Checkpoint.FromString(row.checkpoint), row.segments)

    def start_commit(
        self, shard: Shard, checkpoint: Checkpoint, wait_for: Collection[Future[object]]
    ) -> OpFuture:
        """Replace the row once all of `wait_for` has succeeded."""
        del shard
        if self._closed:
            raise StoreClosedError(self._fqn)
        state = dict(self.state)
        self._commit = commit = _new_commit()
        action = partial(
            self._table.commit,
            self._fqn,
            self._fence,
            state,
            encoded(checkpoint),
        )
        after_all(wait_for, partial(self._send, commit, state, action))
        return commit

    def destroy(self) -> None:
        """Abort a commit that still waits; one already sent may arrive."""
        self._closed = True
        if self._commit is not None and not self._commit.done():
            self._commit.set_exception(StoreClosedError(self._fqn))

    def _send(
        self,
        commit: OpFuture,
        state: State,
        action: Callable[[], None],
        failure: BaseException | None,
    ) -> None:
        if commit.done():
            return
        if failure is not None:
            commit.set_exception(failure)
            return
        self._way.send(action, partial(self._settle, commit, state))

    def _settle(self, commit: OpFuture, state: State, failure: BaseException | None) -> None:
        if commit.done():
            return
        if failure is not None:
            commit.set_exception(failure)
            return
        self._committed = state
        self._observer.on_believed(state)
        commit.set_result(None)


IMPATIENCE_SECONDS: Final = 2.0


class FaultyTable:
    """A process's link to the table of a `FencedRowStore`, which delays, loses and cuts as the `Link` does."""

    def __init__(self, link: Link) -> None:
        self._link = link

    def check(self) -> None:
        """Raise if the link is cut."""
        if self._link.cut:
            raise _unavailable()

    def send(self, action: Callable[[], None], answer: Answer) -> None:
        """Run `action` when the request arrives; stop waiting for the answer after a while."""
        answered = False

        def settle(failure: BaseException | None) -> None:
            nonlocal answered
            if not answered:
                answered = True
                answer(failure)

        loop = asyncio.get_running_loop()
        # Called back in the context of the process, so that its pauses delay the answer too.
        settled: asyncio.Future[BaseException | None] = loop.create_future()
        settled.add_done_callback(lambda done: settle(done.result()))
        loop.call_later(IMPATIENCE_SECONDS, settle, _unavailable())

        def on_answer(failure: BaseException | None) -> None:
            if not settled.done():
                settled.set_result(failure)

        self._link.carry(lambda: self._perform(action, on_answer))

    def _perform(self, action: Callable[[], None], on_answer: Answer) -> None:
        failure = raised_by(action)
        self._link.carry(lambda: on_answer(failure))


def _unavailable() -> StoreUnavailableError:
    return StoreUnavailableError("simulated", "the table does not answer")
