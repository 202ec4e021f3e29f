"""The choice of the store that answers a state request: the local primary's, a local standby's, or none."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from broadsheet.allocator.model import ItemId
from broadsheet.consumer.application import Application
from broadsheet.consumer.errors import StateNotShownError
from broadsheet.consumer.recoverylog.hints import has_recovery_log
from broadsheet.consumer.registry.key_space import PRIMARY_SLOT
from broadsheet.consumer.resolver.local_shards import LocalShards
from broadsheet.consumer.resolver.resolver import ShardResolution, ShardResolver
from broadsheet.consumer.shard.live_shard import LiveShard
from broadsheet.consumer.shard.standby_copy import opened_copy
from broadsheet.consumer.stores.state_tables import ScannableStore
from broadsheet.runtime.clock import Clock
from broadsheet.security.auth import Claims
from broadsheet.wire.journal_pb2 import Header
from broadsheet.wire.shard_pb2 import Status

_PASSES_TO_STANDBYS = (Status.OK, Status.NOT_SHARD_PRIMARY, Status.NO_SHARD_PRIMARY)
"""Statuses of a shard whose primary is not here; OK if the request may be passed on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownState:
    """A store to read, or the reason why there is none here."""

    status: Status.ValueType
    header: Header
    cause: str = ""
    store: ScannableStore | None = None
    """Set only if the status is OK; not destroyed within the block of `lend`. None with OK: the header names another
    member, which the caller may pass the request on to."""
    slot: int = PRIMARY_SLOT
    staleness_seconds: float = 0.0
    """Maximum age of the store: everything committed that long ago is in it."""
    ended: asyncio.Future[Any] = field(default_factory=asyncio.Future)
    """Resolves when the store must be returned."""


class StateReader:
    """The lender of this process's stores, for reading."""

    def __init__(
        self,
        resolver: ShardResolver,
        local_shards: LocalShards,
        application: Application[Any],  # any store type
        *,
        state_directory: Path,
        clock: Clock,
    ) -> None:
        """Create a reader.

        Args:
            resolver: Finds primaries.
            local_shards: Holds standbys.
            application: Opens a standby's files.
            state_directory: Holds the copies of these files.
            clock: Measures their age.
        """
        self._resolver = resolver
        self._local_shards = local_shards
        self._application = application
        self._state_directory = state_directory
        self._clock = clock

    @asynccontextmanager
    async def lend(
        self,
        shard_id: str,
        *,
        claims: Claims,
        max_staleness_seconds: float,
        may_proxy: bool = False,
        proxy_header: Header | None = None,
        read_through: Mapping[str, int] | None = None,
    ) -> AsyncIterator[ShownState]:
        """Lend out the store of a shard for as long as the block lasts.

        Args:
            shard_id: The shard.
            claims: Of the caller.
            max_staleness_seconds: Maximum age of a standby's state; 0: no standby may answer.
            may_proxy: The caller can pass the request on to another member.
            proxy_header: Of the member that passed it on.
            read_through: Offsets that a primary's state must have read through, bytes by journal; of a standby's, its
                checkpoint tells.

        Raises:
            StateNotShownError: the store shows no tables.
            ResolverStoppedError: this process is shutting down.
            UnauthenticatedError: the claims have expired.
        """
        async with await self._resolver.resolve(
            shard_id,
            claims=claims,
            may_proxy=may_proxy,
            proxy_header=proxy_header,
            read_through=read_through,
        ) as resolution:
            if resolution.shard is not None:
                yield ShownState(
                    status=Status.OK,
                    header=resolution.header,
                    store=_scannable(resolution.reference.store, shard_id),
                    ended=resolution.reference.ended,
                )
                return
            standby = self._local_shards.shards.get(ItemId(shard_id))
            if (
                standby is None
                or max_staleness_seconds <= 0
                or resolution.status not in _PASSES_TO_STANDBYS
            ):
                yield ShownState(
                    status=resolution.status, header=resolution.header, cause=resolution.cause
                )
                return
            async with self._of_standby(standby, resolution, max_staleness_seconds) as shown:
                yield shown

    @asynccontextmanager
    async def _of_standby(
        self, standby: LiveShard, resolution: ShardResolution, max_staleness_seconds: float
    ) -> AsyncIterator[ShownState]:
        asked_at = self._clock.monotonic_seconds()
        copy = opened_copy(
            standby, self._application, self._state_directory, wait_seconds=max_staleness_seconds
        )
        try:
            store = await copy.__aenter__()
        except StateNotShownError as error:
            # The primary may be able to show it, and the route names it.
            yield ShownState(status=resolution.status, header=resolution.header, cause=error.detail)
            return
        try:
            # Remote state is current; a copy has at least everything that existed when it was requested.
            played = has_recovery_log(standby.spec)
            elapsed = self._clock.monotonic_seconds() - asked_at
            yield ShownState(
                status=Status.OK,
                header=resolution.header,
                store=_scannable(store, standby.id),
                slot=standby.assignment.slot,
                staleness_seconds=elapsed if played else 0.0,
            )
        finally:
            await copy.__aexit__(None, None, None)


def _scannable(store: object, shard_id: str) -> ScannableStore:
    if not isinstance(store, ScannableStore):
        raise StateNotShownError(
            shard_id, f"its store, a {type(store).__name__}, has no `tables` and `scan`"
        )
    return store
