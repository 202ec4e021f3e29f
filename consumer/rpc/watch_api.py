"""The Watch service: WatchShards.

A call has a position, the revision that its caller's table has, and no queue: each response is computed from what
changed since then. So a slow caller costs no memory, skips states in between, and delays no other. Calls at the same
position with equal selectors share their responses.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass
from itertools import islice
from typing import Any
from weakref import WeakValueDictionary

from broadsheet.allocator.model import ItemId
from broadsheet.consumer.resolver.resolver import LocalMember
from broadsheet.consumer.rpc.guard import claims_of
from broadsheet.consumer.rpc.shard_listing import Listing, ShardChangeLog, selections_of
from broadsheet.runtime.clock import Clock
from broadsheet.runtime.errors import BoundExceededError
from broadsheet.wire import watch_pb2_grpc
from broadsheet.wire.alphabet import require
from broadsheet.wire.journal_pb2 import Header, LabelSelector
from broadsheet.wire.labels import LabelMatcher
from broadsheet.wire.shard_pb2 import ListResponse, ShardSpec
from broadsheet.wire.validation_terms import validate_selector
from broadsheet.wire.watch_pb2 import WatchShardsRequest, WatchShardsResponse

ROWS_PER_RESPONSE = 256
"""Rows of one response, usually 50 to 100 KB; other tasks run after as many."""
BYTES_PER_RESPONSE = 1 << 20
"""Size at which a response is sent with fewer rows: gRPC's limit is 4 MiB, and etcd's for one spec 1.5 MiB."""
LOOK_SECONDS = 1.0
"""Pause between two looks whether the member leaves."""
PROGRESS_SECONDS = 10.0
"""Longest silence of a call: its caller can tell a quiet cluster from a member that is gone."""
SHARED_TABLES_MAX = 16
"""Tables kept while calls that share them take them; calls beyond these make each part for themselves."""
SHARED_CHANGES_MAX = 64
"""Views whose changes at one revision are kept for others; calls with further views make them for themselves."""
SELECTORS_BYTES_MAX = 4 << 20
"""Different selectors of all watches, which are kept as long as these last; prepared they take some thirty times as
much.
"""
AHEAD_SECONDS_MAX = 10.0
"""How long a call waits for a revision that its caller has and this member has not; then it gets the whole table."""

# `Any`: grpc.aio passes each servicer method its context.
Context = Any


_ViewKey = tuple[bytes, bytes]
"""Encodings of the selectors of a view; equal for equal views."""


@dataclass(slots=True)
class _View:
    """The selectors of calls that want and may see the same, prepared once for all changes that these are told of."""

    key: _ViewKey
    selections: Sequence[LabelMatcher]
    calls: int = 0
    """Calls that use it."""


class _Views:
    """The views of all open calls."""

    def __init__(self) -> None:
        self._views: dict[_ViewKey, _View] = {}
        self._bytes = 0
        """Of the selectors."""

    @contextmanager
    def used(self, wanted: LabelSelector, allowed: LabelSelector) -> Iterator[_View]:
        """Yield the view of a call, for as long as it lasts.

        Entering raises BoundExceededError if the selectors of all calls are too long.
        """
        key = (
            wanted.SerializeToString(deterministic=True),
            allowed.SerializeToString(deterministic=True),
        )
        length = sum(map(len, key))
        view = self._views.get(key)
        if view is None:
            if self._bytes + length > SELECTORS_BYTES_MAX:
                raise BoundExceededError(
                    f"expected {SELECTORS_BYTES_MAX} bytes of different selectors of all watches at most; "
                    "use shorter ones"
                )
            view = self._views[key] = _View(key, selections_of(wanted, allowed))
            self._bytes += length
        view.calls += 1
        try:
            yield view
        finally:
            view.calls -= 1
            if not view.calls:
                del self._views[key]
                self._bytes -= length


class WatchApi(watch_pb2_grpc.WatchServiceServicer):
    """The `broadsheet.v1.WatchService` of one member."""

    def __init__(
        self,
        membership: LocalMember,
        changes: ShardChangeLog,
        *,
        stopping: asyncio.Event,
        clock: Clock,
    ) -> None:
        """Create the service.

        Args:
            membership: Of this process; its key space is shown.
            changes: Of that key space.
            stopping: Set once this process leaves.
            clock: Measures silence.
        """
        self._membership = membership
        self._key_space = membership.key_space
        self._changes = changes
        self._stopping = stopping
        self._clock = clock
        self._shared: dict[tuple[int, bytes, bytes], Sequence[WatchShardsResponse]] = {}
        """Responses at `_shared_revision`, by position and selectors."""
        self._shared_revision = 0
        self._tables: WeakValueDictionary[tuple[int, bytes, bytes], SharedTable] = (
            WeakValueDictionary()
        )
        """Tables that are being sent, by revision and selectors."""
        self._views = _Views()

    async def WatchShards(  # noqa: N802 - gRPC's name
        self, request: WatchShardsRequest, context: Context
    ) -> AsyncIterator[WatchShardsResponse]:
        """Stream the table of the selected shards, then its changes."""
        validate_selector(request.selector, "selector")
        revision = request.resume_revision
        require(revision >= 0, "resume_revision", f"expected 0 or a revision, got {revision}")
        with self._views.used(request.selector, claims_of(context).selector) as view:
            position = await self._position(request)
            async with aclosing(self._follow(view, position)) as responses:
                async for response in responses:
                    yield response

    async def _position(self, request: WatchShardsRequest) -> int | None:
        """Return the revision of the caller's table; None if there is none to go on from."""
        revision = request.resume_revision
        if not revision or request.resume_cluster_id != self._key_space.header.cluster_id:
            return None
        with suppress(TimeoutError):
            async with asyncio.timeout(AHEAD_SECONDS_MAX):
                await self._key_space.wait_for_revision(revision)
                return revision
        return None

    async def _follow(
        self, view: _View, position: int | None
    ) -> AsyncGenerator[WatchShardsResponse, None]:
        # The first response comes at once, so that a caller that resumes knows that its table is current.
        told_seconds = float("-inf")
        while not self._stopping.is_set():
            header = self._membership.unrouted_header()
            told = False
            async with aclosing(self._news(view, position, header)) as responses:
                async for response in responses:
                    yield response
                    told = True
            now_seconds = self._clock.monotonic_seconds()
            if not told and now_seconds - told_seconds >= PROGRESS_SECONDS:
                yield WatchShardsResponse(header=header)
                told = True
            if told:
                told_seconds = now_seconds
            position = header.etcd.revision
            with suppress(TimeoutError):
                async with asyncio.timeout(LOOK_SECONDS):
                    await self._key_space.wait_for_update(position)

    async def _news(
        self, view: _View, position: int | None, header: Header
    ) -> AsyncGenerator[WatchShardsResponse, None]:
        """Yield what brings a table from `position` to the header's revision."""
        touched = None if position is None else self._changes.since(position)
        if position is None or touched is None:
            async with aclosing(self._table(view, header)) as parts:
                async for part in parts:
                    yield part
            return
        for response in self._difference(view, position, touched, header):
            yield response

    async def _table(
        self, view: _View, header: Header
    ) -> AsyncGenerator[WatchShardsResponse, None]:
        """Yield all rows. What changes while they are sent is sent again afterwards, because it is newer than the
        header.
        """
        for part in self._parts(view, header):
            if part is not None:
                yield part
            await asyncio.sleep(0)

    def _parts(self, view: _View, header: Header) -> Iterator[WatchShardsResponse | None]:
        """Return the parts of a table, shared with other calls at this revision if it may be."""
        key = (header.etcd.revision, *view.key)
        table = self._tables.get(key)
        if table is None:
            parts = table_of(self._listing(view), list(self._key_space.items), header)
            # A caller that stalls would keep a shared table in memory: beyond the bound, none is kept.
            if len(self._tables) >= SHARED_TABLES_MAX:
                return parts
            table = self._tables[key] = SharedTable(parts)
        return table.read()

    def _difference(
        self,
        view: _View,
        position: int,
        touched: Mapping[ItemId, Sequence[ShardSpec]],
        header: Header,
    ) -> Sequence[WatchShardsResponse]:
        revision = header.etcd.revision
        if revision != self._shared_revision:
            self._shared.clear()
            self._shared_revision = revision
        key = (position, *view.key)
        known = self._shared.get(key)
        if known is None:
            known = difference_of(touched, self._listing(view), header)
            if len(self._shared) < SHARED_CHANGES_MAX:
                self._shared[key] = known
        return known

    def _listing(self, view: _View) -> Listing:
        return Listing(self._key_space, view.selections)


class SharedTable:
    """The responses that hold a whole table, which all calls that need it at one revision share."""

    def __init__(self, parts: Iterator[WatchShardsResponse | None]) -> None:
        self._to_come = parts
        self._made: list[WatchShardsResponse | None] = []

    def read(self) -> Iterator[WatchShardsResponse | None]:
        """Yield every part; the first call that needs one has it made."""
        number = 0
        while number < len(self._made) or self._make():
            yield self._made[number]
            number += 1

    def _make(self) -> bool:
        """Make the next part, if there is one."""
        made = len(self._made)
        self._made.extend(islice(self._to_come, 1))
        return len(self._made) > made


def table_of(
    listing: Listing, ids: Sequence[ItemId], header: Header
) -> Iterator[WatchShardsResponse | None]:
    """Yield the responses that hold all rows, and None after some rows that the caller does not see.

    So each step takes little time.
    """
    draft = _Draft(header, reset=True)
    for number, item_id in enumerate(ids, start=1):
        draft.add(listing.row(item_id))
        if draft.is_full or number % ROWS_PER_RESPONSE == 0:
            yield None if draft.is_empty else draft.take()
    yield draft.take(more=False)


class _Draft:
    """The next response of a state, while it is filled."""

    def __init__(self, header: Header, *, reset: bool = False) -> None:
        self._header = header
        self._response = WatchShardsResponse(header=header, reset=reset)
        self._bytes = 0

    @property
    def is_empty(self) -> bool:
        return not self._response.shards and not self._response.removed

    @property
    def is_full(self) -> bool:
        rows = len(self._response.shards) + len(self._response.removed)
        return rows >= ROWS_PER_RESPONSE or self._bytes >= BYTES_PER_RESPONSE

    def add(self, row: ListResponse.Shard | None) -> None:
        """Add a row, if there is one."""
        if row is not None:
            self._response.shards.append(row)
            self._bytes += row.ByteSize()

    def remove(self, item_id: ItemId) -> None:
        """Add the id of a shard that the caller no longer sees."""
        self._response.removed.append(item_id)

    def take(self, *, more: bool = True) -> WatchShardsResponse:
        """Return the response, and begin the next."""
        response, self._response = self._response, WatchShardsResponse(header=self._header)
        response.more = more
        self._bytes = 0
        return response


def difference_of(
    touched: Mapping[ItemId, Sequence[ShardSpec]], listing: Listing, header: Header
) -> Sequence[WatchShardsResponse]:
    """Return the rows of the shards that the caller sees, and the ids of those that it saw before."""
    responses: list[WatchShardsResponse] = []
    draft = _Draft(header)
    for item_id, earlier in sorted(touched.items()):
        if draft.is_full:
            responses.append(draft.take())
        row = listing.row(item_id)
        draft.add(row)
        # The id of a shard that the caller never saw is none of its business.
        if row is None and any(map(listing.sees, earlier)):
            draft.remove(item_id)
    if not draft.is_empty:
        responses.append(draft.take(more=False))
    return responses
