"""The subject of the conformance suites: a kind of store, its holders, and a shard without progress."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self
from uuid import uuid4

from broadsheet.consumer.application import SegmentKeeper, Shard, Store
from broadsheet.consumer.recoverylog.local_state import LocalState
from broadsheet.journals.client import JournalClient
from broadsheet.journals.message.checkpoint import (
    packed_ids,
    packed_segment,
    put_together,
    segment_id,
)
from broadsheet.runtime.op_future import OpFuture
from broadsheet.testing.stores.recorded_log import RecordedLog
from broadsheet.wire.shard_pb2 import Checkpoint, ShardSpec

WAIT_SECONDS = 20.0


class StoreSubject(Protocol):
    """A uniform interface to one kind of store. Stores are `Any`, because only the subject knows their type."""

    @property
    def excludes(self) -> bool:
        """True if a newer holder must wait until an older one is destroyed; else it fences the older one."""
        ...

    @property
    def open_txn_blocks(self) -> bool:
        """True if a holder that has changed state in an open transaction makes a newer one wait."""
        ...

    def open(self, shard: Shard) -> Store:
        """Return a new holder of the shard's store, as another process would make it."""
        ...

    def put(self, store: Any, key: str, value: int) -> None:
        """Change the state of the running transaction."""
        ...

    def committed(self, store: Any) -> dict[str, int]:
        """Return the state as of the last commit, as a query sees it."""
        ...

    def leftovers(self, shard: Shard) -> list[str]:
        """Return the files and connections that destroyed holders wrongly left behind."""
        ...


@dataclass(frozen=True)
class FixedShard:
    """Implements `broadsheet.consumer.application.Shard`, without journals and without progress."""

    id: str = "shard-0001"
    root: str = field(default_factory=lambda: f"/conformance/{uuid4().hex}")
    local_state: LocalState | None = None

    @property
    def fqn(self) -> str:
        """Key of the spec."""
        return f"{self.root}/items/{self.id}"

    @property
    def spec(self) -> ShardSpec:
        """A spec without sources."""
        return ShardSpec(id=self.id)

    @property
    def journals(self) -> JournalClient:
        """None here."""
        raise AssertionError("the suite has no journals")

    def progress(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """No progress."""
        return {}, {}


class RecordedSubject:
    """A store that records, with a log in memory. A new holder gets what its log replays to."""

    excludes = False
    open_txn_blocks = False

    def __init__(
        self,
        directory: Path,
        *,
        new_store: Callable[[Shard], Store],
        put: Callable[[Any, str, int], None],
        committed: Callable[[Any], dict[str, int]],
    ) -> None:
        """Describe the store.

        Args:
            directory: For the directories of holders; empty.
            new_store: Makes the store; `shard.local_state` is set.
            put: Changes the state of the running transaction.
            committed: Returns the state as of the last commit, as a query sees it.
        """
        self._directory = directory
        self._new_store = new_store
        self._holders = 0
        self._logs: dict[str, RecordedLog] = {}
        self.put = put
        self.committed = committed

    def log_of(self, shard: Shard) -> RecordedLog:
        """Return the shard's recovery log."""
        return self._logs.setdefault(shard.fqn, RecordedLog())

    def open(self, shard: Shard) -> Store:
        """Replay the log into a directory of the new holder's own, and open it there."""
        return self.open_log(shard, self.log_of(shard))

    def open_log(self, shard: Shard, log: RecordedLog) -> Store:
        """Replay `log` in place of the shard's own, and open that."""
        assert isinstance(shard, FixedShard), "the suite makes the shards"
        self._holders += 1
        directory = self._directory / str(self._holders)
        recorder = log.hand_over(directory)
        return self._new_store(replace(shard, local_state=LocalState(directory, recorder)))

    def open_copy(self, shard: Shard) -> Store:
        """Replay the log into a copy without a recorder, and return a store there that is not open yet."""
        assert isinstance(shard, FixedShard), "the suite makes the shards"
        self._holders += 1
        directory = self.log_of(shard).replay(self._directory / str(self._holders))
        return self._new_store(replace(shard, local_state=LocalState(directory)))

    def leftovers(self, shard: Shard) -> list[str]:
        """Return the directories that are still there."""
        del shard
        return [str(path) for path in self._directory.iterdir()]


class Holders:
    """Holders of one shard's store, one after another; all destroyed in the end."""

    def __init__(self, subject: StoreSubject, shard: FixedShard) -> None:
        self._subject = subject
        self._shard = shard
        self._opened: list[Store] = []

    def open(self) -> Any:
        """Return a holder that has not restored; the holders before go on."""
        self._opened.append(self._subject.open(self._shard))
        return self._opened[-1]

    def following(self) -> tuple[Any, Checkpoint]:
        """Return a holder that took over, and the checkpoint it restored."""
        if self._subject.excludes:
            self.destroy()
        store = self.open()
        return store, store.restore_checkpoint(self._shard)

    def destroy(self) -> None:
        """Destroy all holders."""
        for store in self._opened:
            store.destroy()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.destroy()


def reading(offset: int) -> Checkpoint:
    """Return a checkpoint with every kind of content."""
    checkpoint = Checkpoint(ack_intents={"out/a": b"\x00\xffack\n"})
    source = checkpoint.sources["in/a;meta"]
    source.read_through = offset
    source.resume = b"\x00\xff{resume}"
    source.epoch.incarnation = b"\x00\xff\n"
    source.epoch.number, source.epoch.nonce = 2**64 - 1, 2**64 - 1
    source.reset = b"\x00\xff\n"
    entry = source.producers.add(id=b"\x01\x02\x03\x04\x05\x06")
    entry.state.last_ack = 2**64 - 1
    entry.state.begin = -1
    return checkpoint


def keeps_segments(store: Store) -> bool:
    """Return whether a store that has restored supports checkpoints that rest on segments."""
    return isinstance(store, SegmentKeeper) and store.keeps_segments


def resting(offset: int, *, carries: bool) -> Checkpoint:
    """Return a checkpoint that rests on two segments, of which the newer is another one at every third offset.

    Args:
        offset: Read through, from 1 on.
        carries: Bring the contents of both segments; each store is brought them at its life's first commit, and again
            when one of them is new.
    """
    checkpoint = reading(offset)
    source = checkpoint.sources["in/a;meta"]
    for content in _segments_at(offset):
        carried = content if carries or offset % _SEGMENT_COMMITS == 0 else b""
        source.segments.add(id=segment_id(content), content=carried)
    source.forgotten = packed_ids((20,))
    return checkpoint


def whole(checkpoint: Checkpoint) -> Checkpoint:
    """Return the checkpoint that a store must restore for one that `resting` returned."""
    contents = {segment_id(each): each for each in _segments_at(offset_of(checkpoint))}
    return put_together(checkpoint, contents)


_SEGMENT_COMMITS = 3


def _segments_at(offset: int) -> tuple[bytes, bytes]:
    older = packed_segment(((producer, 7) for producer in range(20, 400)), ())
    newer = packed_segment(((30, offset // _SEGMENT_COMMITS), (2**48 - 1, 2**64 - 1)), (21,))
    return older, newer


def offset_of(checkpoint: Checkpoint) -> int:
    """Return the offset that `reading` was given; 0 for an empty checkpoint."""
    return checkpoint.sources["in/a;meta"].read_through if checkpoint.sources else 0


def wait(commit: OpFuture) -> None:
    """Wait for a commit."""
    commit.result(WAIT_SECONDS)


def failure_of(operation: Callable[[], object]) -> Exception:
    """Return the error that `operation` raises.

    Raises:
        AssertionError: it raises nothing.
    """
    try:
        operation()
    except Exception as error:
        return error
    raise AssertionError("expected a failure, got none")
