"""A store that keeps one JSON value in a file of a local directory: for small states, first steps, and tests.

    {directory}/{shard id, quoted}/state.json    state and checkpoint, as of the last commit
                                   next.json     the commit being written
                                   epoch         how often the shard was restored; its lock guards all three

A commit writes next.json whole, syncs it and renames it over state.json, so a crash leaves either commit. Every restore
raises the epoch, and a commit looks at it under the lock: a primary whose epoch is not the newest cannot commit. That
holds among processes that see the directory through one kernel; for shards that move between machines use `SqlStore`.

Source: gazette/core consumer/store_json_file.go (files and documents; the fence there is the recovery log's).
"""

from __future__ import annotations

import copy
import fcntl
import os
import time
from collections.abc import Collection, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import msgspec

from consumer.application import Shard
from consumer.errors import CommitFencedError, StoreClosedError, StoreError
from consumer.op_future import OpFuture, failed
from consumer.protocol.shard_pb2 import Checkpoint
from consumer.stores.commit_thread import CommitThread
from consumer.stores.json_document import decode_documents, encode_documents

StateT = TypeVar("StateT")

_LOCK_POLL_SECONDS = 0.02
"""`flock` cannot wait with a deadline; the lock is held for the milliseconds of one commit."""


class JsonFileStore(Generic[StateT]):
    """Keeps `state`, a value that msgspec can write as JSON, and the checkpoint in one file."""

    def __init__(
        self,
        shard: Shard,
        directory: Path,
        *,
        initial: StateT,
        state_type: Any = None,
        lock_wait_seconds: float = 10.0,
    ) -> None:
        """Create a store; nothing is read before `restore_checkpoint`.

        Args:
            shard: The shard; its id names the directory of its files.
            directory: Holds the files of any number of shards.
            initial: The state before the first commit, e.g. `{}`. Copied.
            state_type: What to decode the state as, e.g. `dict[str, int]` or a `msgspec.Struct`. None is the type of
                `initial`.
            lock_wait_seconds: Longest wait for another primary of this shard that is just committing.
        """
        self._fqn = shard.fqn
        self._directory = directory / quote(shard.id, safe="")
        self._lock_wait_seconds = lock_wait_seconds
        self._initial = copy.deepcopy(initial)
        self._decoder: msgspec.json.Decoder[StateT] = msgspec.json.Decoder(
            state_type or type(initial)
        )
        self._encoder = msgspec.json.Encoder()
        self._epoch = 0
        self._committed = self._encoder.encode(initial)
        self._commits = CommitThread(shard.fqn)
        self._closed = False
        self.state: StateT = copy.deepcopy(initial)
        """The state of the running transaction; change it or replace it, on the worker thread."""

    def committed_state(self) -> StateT:
        """Return a copy of the state as of the last commit; for queries, on any thread."""
        return self._decoder.decode(self._committed)

    def restore_checkpoint(self, shard: Shard) -> Checkpoint:
        """Raise the epoch, and read the last committed state and checkpoint."""
        del shard
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            with self._locked() as epoch_file:
                self._epoch = self._read_epoch(epoch_file) + 1
                # One small write within a sector: it is whole or it is not there.
                os.pwrite(epoch_file, f"{self._epoch:020}\n".encode(), 0)
                os.fsync(epoch_file)
                self._sync_directory()
                return self._read_state()
        except OSError as error:
            raise StoreError(self._fqn, f"cannot restore: {error}") from error

    def start_commit(
        self, shard: Shard, checkpoint: Checkpoint, wait_for: Collection[Future[object]]
    ) -> OpFuture:
        """Encode the state now; write it on a thread of its own after `wait_for`."""
        del shard
        try:
            state = self._encoder.encode(self.state)
        except (TypeError, ValueError) as error:
            return failed(StoreError(self._fqn, f"the state cannot be written as JSON: {error}"))
        return self._commits.start(
            partial(self._commit, state, encode_documents(state, checkpoint)),
            wait_for=wait_for,
            abandon=lambda: None,
        )

    def destroy(self) -> None:
        """Abort a commit that still waits. The files stay: they are the store."""
        self._closed = True
        self._commits.close()

    def _read_state(self) -> Checkpoint:
        path = self._directory / "state.json"
        if not path.exists():
            self.state = copy.deepcopy(self._initial)
            return Checkpoint()
        try:
            state, checkpoint = decode_documents(path.read_bytes())
            self.state = self._decoder.decode(state)
        except ValueError as error:
            raise StoreError(self._fqn, f"{path} cannot be read: {error}") from error
        self._committed = state
        return checkpoint

    def _commit(self, state: bytes, content: bytes) -> None:
        try:
            with self._locked() as epoch_file:
                current = self._read_epoch(epoch_file)
                if current != self._epoch:
                    raise CommitFencedError(self._fqn, self._epoch, current)
                self._replace_state(content)
        except OSError as error:
            raise StoreError(self._fqn, f"cannot commit: {error}") from error
        self._committed = state

    def _replace_state(self, content: bytes) -> None:
        following = self._directory / "next.json"
        with following.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        following.replace(self._directory / "state.json")
        self._sync_directory()

    @contextmanager
    def _locked(self) -> Iterator[int]:
        """Hold the lock of the epoch file, and yield its descriptor."""
        if self._closed:
            raise StoreClosedError(self._fqn)
        path = self._directory / "epoch"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._lock(descriptor, path)
            yield descriptor
        finally:
            os.close(descriptor)  # Releases the lock.

    def _lock(self, descriptor: int, path: Path) -> None:
        deadline = time.monotonic() + self._lock_wait_seconds
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    raise StoreError(
                        self._fqn,
                        f"{path} is locked by another process for {self._lock_wait_seconds} s; is it stopped?",
                    ) from None
                time.sleep(_LOCK_POLL_SECONDS)
            else:
                return

    def _read_epoch(self, descriptor: int) -> int:
        content = os.pread(descriptor, 64, 0).strip()
        if not content:
            return 0
        try:
            return int(content)
        except ValueError:
            raise StoreError(
                self._fqn, f"{self._directory / 'epoch'} holds no number: {content!r}"
            ) from None

    def _sync_directory(self) -> None:
        descriptor = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
