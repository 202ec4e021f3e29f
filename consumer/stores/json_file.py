"""A store of one JSON value in a local file, for small states, first steps, and tests.

    {directory}/{shard id, quoted}/state.json    state and checkpoint, as of the last commit
                                   next.json     the commit being written
                                   producers-…   producers long silent, which the checkpoint rests on
                                   epoch         number of restores of the shard; its lock guards all of them

The file has three JSON documents, one a line:

    {"journal/a": 1234}                      offsets read through, bytes by journal (for older readers)
    {...}                                    the application's state
    {"sources": ..., "ack_intents": ...}     the checkpoint

A commit writes next.json whole, syncs it and renames it over state.json, so a crash leaves either commit. Every restore
raises the epoch, and a commit looks at it under the lock: a primary whose epoch is not the newest cannot commit. That
holds among processes that see the directory through one kernel; for shards that move between machines give the shard a
recovery log, which then holds the file and is its fence (`broadsheet.consumer.recoverylog.local_state`), or use
`SqlStore`.

Source: gazette/core consumer/store_json_file.go (files, documents and the names in the third; the fence there is the
recovery log's).
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, TypeVar

import msgspec
from google.protobuf.message import DecodeError

from broadsheet.consumer.application import Shard
from broadsheet.consumer.errors import StoreError
from broadsheet.consumer.recoverylog.local_state import LocalState, directory_name, local_state_of
from broadsheet.consumer.stores.commit_thread import CommitSteps, CommitThread
from broadsheet.consumer.stores.json_state import JsonState
from broadsheet.consumer.stores.state_file import (
    KeptStateFile,
    RecordedStateFile,
    Segments,
    StateFile,
)
from broadsheet.consumer.stores.state_tables import TableScan, picked, require_table, row_batches
from broadsheet.consumer.stores.stored_checkpoint import whole_checkpoint
from broadsheet.journals.message.checkpoint import read_through_of, segments_named, taken_out
from broadsheet.runtime.documents import decode_json
from broadsheet.runtime.errors import ValidationError
from broadsheet.runtime.op_future import OpFuture, failed
from broadsheet.wire.identity_pb2 import JournalEpoch
from broadsheet.wire.shard_pb2 import Checkpoint

if TYPE_CHECKING:
    import pyarrow as pa

StateT = TypeVar("StateT")


STATE_TABLE: Final = "state"


def state_schema() -> pa.Schema:
    """Return the columns of a state's table: the entry's name, or the element's index; empty for any other state."""
    import pyarrow as pa

    return pa.schema([("key", pa.string()), ("value", pa.string())])


def rows_of(state: bytes, columns: Sequence[str]) -> Iterator[tuple[str, ...]]:
    """Yield the rows of a state: an entry of an object, or an element of an array, with its value as JSON.

    Args:
        state: As JSON. Values are passed on unchanged.
        columns: Of `state_schema`.
    """
    for key, value in _entries(state):
        entry = {"key": key, "value": value}
        yield tuple(entry[column] for column in columns)


def _entries(state: bytes) -> Iterator[tuple[str, str]]:
    first = state.lstrip()[:1]
    if first == b"{":
        entries = msgspec.json.decode(state, type=dict[str, msgspec.Raw])
        yield from ((key, bytes(value).decode()) for key, value in entries.items())
    elif first == b"[":
        elements = msgspec.json.decode(state, type=list[msgspec.Raw])
        yield from ((str(index), bytes(each).decode()) for index, each in enumerate(elements))
    else:
        yield "", state.decode()


class JsonFileStore(Generic[StateT]):
    """Keeps `state`, a value that JSON can hold and msgspec reads back as it is, and the checkpoint in one file."""

    def __init__(
        self,
        shard: Shard,
        directory: Path | None = None,
        *,
        initial: StateT,
        state_type: Any = None,
        lock_wait_seconds: float = 10.0,
    ) -> None:
        """Create a store; nothing is read before `restore_checkpoint`.

        Args:
            shard: The shard; its id names the directory of its files.
            directory: Holds the files of any number of shards. Not used if the shard has a recovery log; must be given
                if it has none.
            initial: The state before the first commit, e.g. `{}`. Copied.
            state_type: What to decode the state as, e.g. `dict[str, int]` or a `msgspec.Struct`. None is the type of
                `initial`. Keys that are not text, and values that JSON does not have, need it: `dict[int, Decimal]`.
            lock_wait_seconds: Longest wait for another primary of this shard that is just committing.

        Raises:
            ValidationError: `initial` is no such state, or JSON cannot hold it.
        """
        self._fqn = shard.fqn
        self._file = _file_of(shard, directory, lock_wait_seconds)
        self._initial = copy.deepcopy(initial)
        self._codec: JsonState[StateT] = JsonState(state_type or type(initial))
        try:
            self._committed = (self._codec.encode(initial), Checkpoint())
        except ValueError as error:
            raise ValidationError("initial", str(error)) from error
        """State and checkpoint of the last commit; replaced as one."""
        self.keeps_segments = True
        self._is_shards_own = shard.local_state is not None
        self._commits = CommitThread(shard.fqn, recorded=self._is_shards_own)
        self.state: StateT = copy.deepcopy(initial)
        """The state of the running transaction; change it or replace it, on the worker thread."""

    def committed_state(self) -> StateT:
        """Return a copy of the state as of the last commit; for queries, on any thread."""
        return self._codec.decode(self._committed[0])

    def tables(self) -> Mapping[str, pa.Schema]:
        """Return the one table, "state"."""
        return {STATE_TABLE: state_schema()}

    @contextmanager
    def scan(self, table: str, columns: Sequence[str] = ()) -> Iterator[TableScan]:
        """Return the entries of the last committed state, each value as JSON, and its checkpoint."""
        state, checkpoint = self._committed
        schema = picked(require_table(self.tables(), table), columns)
        rows = rows_of(state, schema.names)
        yield TableScan(checkpoint, schema, row_batches(rows, schema, fqn=self._fqn))

    def open_copy(self) -> None:
        """Read a copy of what a standby played, for scans only."""
        if not self._is_shards_own:
            raise StoreError(self._fqn, "its file is its primary's, and no standby has it")
        try:
            self._take_over(self._file.path.read_bytes())
        except OSError as error:
            raise StoreError(
                self._fqn, f"the primary has not made its file yet: {error}"
            ) from error

    def restore_checkpoint(self, shard: Shard) -> Checkpoint:
        """Fence older holders, and read the last committed state and checkpoint."""
        del shard
        try:
            content = self._file.restore()
            if content is None:
                self.state, checkpoint = copy.deepcopy(self._initial), Checkpoint()
            else:
                checkpoint = self._take_over(content)
            segments = self._file.load_segments(segments_named(checkpoint))
            return whole_checkpoint(self._fqn, checkpoint, segments)
        except OSError as error:
            raise StoreError(self._fqn, f"cannot restore: {error}") from error

    def start_commit(
        self, shard: Shard, checkpoint: Checkpoint, wait_for: Collection[Future[object]]
    ) -> OpFuture:
        """Encode the state now; write it on a separate thread after `wait_for`.

        The commit fails with a `StoreError` if the state would be read back as another one
        (`broadsheet.consumer.stores.json_state`).
        """
        del shard
        try:
            state = self._codec.encode(self.state)
        except ValueError as error:
            return failed(StoreError(self._fqn, f"the state cannot be committed as JSON: {error}"))
        kept, new_segments = taken_out(checkpoint)
        segments = Segments(new_segments, segments_named(kept))
        return self._commits.start(
            CommitSteps(
                write=partial(self._commit, encode_documents(state, kept), segments),
                settle=partial(self._settle, (state, kept)),
            ),
            wait_for,
        )

    def destroy(self) -> None:
        """Abort a commit that still waits. The files are the store and stay, unless a recovery log has them."""
        try:
            self._commits.close()
        finally:
            self._file.close()

    def _take_over(self, content: bytes) -> Checkpoint:
        try:
            state, checkpoint = decode_documents(content)
            self.state = self._codec.decode(state)
        except (ValueError, RecursionError) as error:
            raise StoreError(self._fqn, f"{self._file.path} cannot be read: {error}") from error
        self._committed = (state, checkpoint)
        return checkpoint

    def _commit(self, content: bytes, segments: Segments) -> OpFuture | None:
        try:
            return self._file.replace(content, segments)
        except OSError as error:
            raise StoreError(self._fqn, f"cannot commit: {error}") from error

    def _settle(self, committed: tuple[bytes, Checkpoint]) -> None:
        self._committed = committed


def _file_of(shard: Shard, directory: Path | None, lock_wait_seconds: float) -> StateFile:
    given = LocalState(directory / directory_name(shard.id)) if directory is not None else None
    local_state = local_state_of(shard, given)
    if local_state.recorder is not None:
        return RecordedStateFile(shard.fqn, local_state, local_state.recorder)
    return KeptStateFile(shard.fqn, local_state.directory, lock_wait_seconds=lock_wait_seconds)


# The documents of the file.


class _ProducerState(msgspec.Struct, omit_defaults=True):
    last_ack: int = 0
    begin: int = 0


class _Producer(msgspec.Struct):
    id: bytes
    """Base64 in the file, as every `bytes` here."""
    state: _ProducerState


class _Source(msgspec.Struct, omit_defaults=True):
    read_through: int = 0
    producers: list[_Producer] = []
    resume: bytes = b""
    epoch: bytes = b""
    """A JournalEpoch, encoded; empty if there is none."""
    reset: bytes = b""
    segments: list[bytes] = []
    """Ids; their contents are in files beside this one."""
    forgotten: bytes = b""


class _Checkpoint(msgspec.Struct, omit_defaults=True):
    sources: dict[str, _Source] = {}
    ack_intents: dict[str, bytes] = {}


def encode_documents(state: bytes, checkpoint: Checkpoint) -> bytes:
    """Return the file's content.

    Args:
        state: The application's state, one JSON document without a newline.
        checkpoint: What the state has read through.
    """
    sources = {
        journal: _Source(
            source.read_through,
            [
                _Producer(entry.id, _ProducerState(entry.state.last_ack, entry.state.begin))
                for entry in source.producers
            ],
            source.resume,
            source.epoch.SerializeToString(deterministic=True),
            source.reset,
            [segment.id for segment in source.segments],
            source.forgotten,
        )
        for journal, source in sorted(checkpoint.sources.items())
    }
    third = _Checkpoint(sources, dict(sorted(checkpoint.ack_intents.items())))
    first = dict(sorted(read_through_of(checkpoint).items()))
    encode = msgspec.json.encode
    return b"\n".join((encode(first), state, encode(third), b""))


def decode_documents(content: bytes) -> tuple[bytes, Checkpoint]:
    """Return the state's document and the checkpoint. Without a third document, the first one's offsets are used.

    Raises:
        ValueError: the content is no such file.
    """
    documents = content.splitlines()
    if len(documents) not in (2, 3):
        raise ValueError(f"expected three JSON documents, a line each, got {len(documents)} lines")
    offsets = decode_json(documents[0], dict[str, int])
    checkpoint = Checkpoint()
    if len(documents) == 2:
        for journal, read_through in offsets.items():
            checkpoint.sources[journal].read_through = read_through
        return documents[1], checkpoint
    _fill(checkpoint, decode_json(documents[2], _Checkpoint))
    return documents[1], checkpoint


def _epoch(encoded: bytes) -> JournalEpoch:
    try:
        return JournalEpoch.FromString(encoded)
    except DecodeError as error:
        raise ValueError(f"sources: expected an encoded epoch, got {encoded!r}: {error}") from error


def _fill(checkpoint: Checkpoint, document: _Checkpoint) -> None:
    for journal, source in document.sources.items():
        filled = checkpoint.sources[journal]
        filled.read_through = source.read_through
        filled.resume = source.resume
        if source.epoch:
            filled.epoch.CopyFrom(_epoch(source.epoch))
        filled.reset = source.reset
        filled.forgotten = source.forgotten
        for segment_id in source.segments:
            filled.segments.add(id=segment_id)
        for producer in source.producers:
            entry = filled.producers.add(id=producer.id)
            entry.state.last_ack = producer.state.last_ack
            entry.state.begin = producer.state.begin
    for journal, intent in document.ack_intents.items():
        checkpoint.ack_intents[journal] = intent
