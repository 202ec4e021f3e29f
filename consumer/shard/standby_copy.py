"""Read-only access to a standby's state: from a copy of the files that it has played so far.

    wait until all is played that the log held ─► copy ─► the application's store, opened on the copy ─► rows
                                                                                                       └► all removed

An application that follows its standbys (`FollowingApplication`) needs no copy: its store reads what is kept there.

The player's own files cannot be opened: it goes on changing them. A shard without a recovery log has its state where
every replica reaches it, or where none does but the primary; its store knows.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from broadsheet.consumer.application import Application, Store
from broadsheet.consumer.errors import ApplicationError, StateNotShownError, StoreError
from broadsheet.consumer.recoverylog.follower import StandbyFollower
from broadsheet.consumer.recoverylog.hints import has_recovery_log
from broadsheet.consumer.recoverylog.local_state import LocalState
from broadsheet.consumer.shard.live_shard import LiveShard
from broadsheet.consumer.stores.state_tables import CopyReader
from broadsheet.journals.client import JournalClient
from broadsheet.runtime.errors import ServiceError
from broadsheet.wire.shard_pb2 import ShardSpec


@dataclass(frozen=True, slots=True)
class ShownShard:
    """The shard of a copy, for its store; implements `broadsheet.consumer.application.Shard`."""

    id: str
    fqn: str
    spec: ShardSpec
    journals: JournalClient
    local_state: LocalState | None

    def progress(self) -> tuple[Mapping[str, int], Mapping[str, int]]:
        """Return no offsets: the copy's offsets are in its checkpoint."""
        return {}, {}


@asynccontextmanager
async def opened_copy(
    shard: LiveShard,
    application: Application[Any],  # the store's type is known to the application only
    state_directory: Path,
    *,
    wait_seconds: float,
) -> AsyncIterator[Store]:
    """Open a store that shows a standby's state; it is removed when the block ends.

    Args:
        shard: A replica of this process.
        application: Makes the store.
        state_directory: Of this process.
        wait_seconds: Longest wait for what the log holds by now to be played.

    Raises:
        StateNotShownError: this standby cannot show it, or not in time.
    """
    directory = state_directory / f"copy-{uuid4().hex}"
    store: Store | None = None
    try:
        local_state = None
        if has_recovery_log(shard.spec):
            follower = await _played_through(shard, directory, wait_seconds=wait_seconds)
            local_state = LocalState(directory, follower=follower)
        shown = ShownShard(shard.id, shard.fqn, shard.spec, shard.journals, local_state)
        store = await asyncio.to_thread(_new_store, application, shown)
        yield store
    finally:
        await asyncio.shield(asyncio.to_thread(_remove, store, directory))


async def _played_through(
    shard: LiveShard, directory: Path, *, wait_seconds: float
) -> StandbyFollower | None:
    """Return what follows the standby's files, or copy them; either has all that the log held when this was called."""
    try:
        async with asyncio.timeout(wait_seconds):
            follower = await shard.follow_played()
            if follower is not None:
                return follower
            copied = await shard.copy_played(directory)
    except TimeoutError:
        detail = f"its standby has not played all of its recovery log within {wait_seconds:g} s"
        raise StateNotShownError(shard.id, detail) from None
    except (ServiceError, OSError) as error:
        raise StateNotShownError(shard.id, f"its standby cannot be copied: {error}") from error
    if not copied:
        raise StateNotShownError(shard.id, "this replica is no standby that has caught up")
    return None


def _new_store(application: Application[Any], shard: ShownShard) -> Store:
    try:
        store: Store = application.new_store(shard)
    except Exception as error:
        raise ApplicationError(shard.id, "new_store", error) from error
    if not isinstance(store, CopyReader):
        raise StateNotShownError(shard.id, "its store cannot be opened on a standby")
    try:
        store.open_copy()
    except StoreError as error:
        store.destroy()
        raise StateNotShownError(shard.id, f"a standby cannot show it: {error.detail}") from error
    return store


def _remove(store: Store | None, directory: Path) -> None:
    if store is not None:
        store.destroy()
    shutil.rmtree(directory, ignore_errors=True)
