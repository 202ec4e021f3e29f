"""Reads one shard's table from the first of its members that answers.

Once rows have arrived, a scan that breaks off is an error, because the rows of another commit do not continue it. Spark
retries the task, which then reads all rows again.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, TypeVar

import pyarrow as pa

from broadsheet.consumer.client import StateClient
from broadsheet.consumer.client.loop_thread import LoopThread
from broadsheet.consumer.errors import ShardError
from broadsheet.consumer.registry.key_space import member_id_of
from broadsheet.journals.message.arrow_ipc import validated
from broadsheet.runtime.backoff import Backoff
from broadsheet.runtime.errors import EndpointError, RpcFailedError, ValidationError
from broadsheet.security.errors import NotAuthorizedError
from broadsheet.spark_bridge.shard_tables.access import (
    ClusterAccess,
    NoMemberAnsweredError,
    StateReadError,
)
from broadsheet.spark_bridge.shard_tables.columns import Provenance
from broadsheet.spark_bridge.shard_tables.shard_listing import list_shards
from broadsheet.wire.journal_pb2 import Route
from broadsheet.wire.state_pb2 import DescribeStateResponse, ScanStateResponse

AnswerT = TypeVar("AnswerT")

PAUSE_SECONDS_MAX = 1.0
"""Longest pause between two rounds of requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScanOrder:
    """A read of one shard's table."""

    access: ClusterAccess
    shard_id: str
    route: bytes
    """The driver's route: a `protocol.Route`."""
    table: str
    columns: Sequence[str]
    max_staleness_seconds: float
    patience_seconds: float


def endpoints_of(route: Route, *, standbys: bool) -> list[str]:
    """Return the endpoints to ask in order: standbys first, if they may answer, because the primary is busy."""
    primary = [
        endpoint
        for index, endpoint in enumerate(route.endpoints)
        if endpoint and index == route.primary
    ]
    others = [
        endpoint
        for index, endpoint in enumerate(route.endpoints)
        if endpoint and index != route.primary
    ]
    return [*others, *primary] if standbys else primary


def describe_first(order: ScanOrder) -> DescribeStateResponse:
    """Return the tables of the shard.

    Raises:
        StateReadError: no member answers for it, or its store shows no tables.
    """
    return asyncio.run(_ShardReader(order).describe())


def scan_batches(order: ScanOrder) -> Iterator[tuple[Provenance, pa.RecordBatch]]:
    """Yield the rows of the shard, and their origin.

    Raises:
        StateReadError: no member answers for it, or the scan broke off.
    """
    reader = _ShardReader(order)
    with LoopThread(name=f"scan {order.shard_id}") as thread:
        first = thread.call(reader.open())
        try:
            with closing(_Parts(thread, reader)) as parts:
                provenance = _provenance(order, first)
                for batch in _batches(order, parts):
                    yield provenance, batch
        finally:
            thread.call(reader.close())


def _batches(order: ScanOrder, parts: _Parts) -> Iterator[pa.RecordBatch]:
    """Yield a member's batches, validated because data from the network may be damaged."""
    try:
        with pa.ipc.open_stream(parts) as batches:
            for batch in batches:
                yield validated(batch)
    except (pa.ArrowException, OSError) as error:
        raise StateReadError(order.shard_id, f"its member sent no valid rows: {error}") from error


class _Parts(io.RawIOBase):
    """The stream's bytes as a file for Arrow."""

    def __init__(self, thread: LoopThread, reader: _ShardReader) -> None:
        self._thread = thread
        self._reader = reader
        self._rest = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:  # whatever holds bytes
        target = memoryview(buffer).cast("B")
        filled = 0
        # Filled up, because Arrow takes fewer bytes than it asked for as the end.
        while filled < len(target):
            if not self._rest:
                part = self._thread.call(self._reader.next_part())
                if part is None:
                    break
                self._rest = memoryview(part)
            size = min(len(target) - filled, len(self._rest))
            target[filled : filled + size] = self._rest[:size]
            self._rest = self._rest[size:]
            filled += size
        return filled


class _ShardReader:
    """Finds a member that answers, and holds the answer open; used on one loop."""

    def __init__(self, order: ScanOrder) -> None:
        self._order = order
        self._auth = order.access.auth()
        self._tls = order.access.tls.config()
        self._route = Route.FromString(order.route)
        self._client: StateClient | None = None
        self._answers: AsyncGenerator[ScanStateResponse, None] | None = None

    async def describe(self) -> DescribeStateResponse:
        async def ask(endpoint: str) -> DescribeStateResponse:
            async with StateClient(endpoint, auth=self._auth, tls=self._tls) as client:
                return await client.describe(
                    self._order.shard_id, max_staleness_seconds=self._order.max_staleness_seconds
                )

        # Only the primary, because a standby would copy all of its files for this.
        return await self._first(ask, primary_first=True)

    async def open(self) -> ScanStateResponse:
        """Return the answer's first part."""
        return await self._first(self._begin)

    async def next_part(self) -> bytes | None:
        """Return the next bytes; None at the end."""
        assert self._answers is not None, "open it first"
        try:
            return (await anext(self._answers)).arrow
        except StopAsyncIteration:
            return None
        except (EndpointError, ShardError, TimeoutError, RpcFailedError) as error:
            raise StateReadError(self._order.shard_id, f"the scan broke off: {error}") from error

    async def close(self) -> None:
        answers, client = self._answers, self._client
        self._answers = self._client = None
        try:
            if answers is not None:
                await answers.aclose()
        finally:
            if client is not None:
                await client.__aexit__(None, None, None)

    async def _begin(self, endpoint: str) -> ScanStateResponse:
        order = self._order
        self._client = StateClient(endpoint, auth=self._auth, tls=self._tls)
        await self._client.__aenter__()
        self._answers = self._client.scan(
            order.shard_id,
            order.table,
            order.columns,
            max_staleness_seconds=order.max_staleness_seconds,
        )
        try:
            return await anext(self._answers)
        except BaseException:
            await self.close()
            raise

    async def _first(
        self, ask: Callable[[str], Awaitable[AnswerT]], *, primary_first: bool = False
    ) -> AnswerT:
        """Return the first part of the first replica that answers; look the replicas up again until one does."""
        order = self._order
        deadline = asyncio.get_running_loop().time() + order.patience_seconds
        backoff = Backoff(max_seconds=PAUSE_SECONDS_MAX)
        met: dict[str, str] = {}
        while True:
            endpoints = [
                endpoint
                for endpoint in endpoints_of(self._route, standbys=order.max_staleness_seconds > 0)
                if order.access.permits(endpoint)
            ]
            for endpoint in reversed(endpoints) if primary_first else endpoints:
                try:
                    return await ask(endpoint)
                except (EndpointError, ShardError, TimeoutError) as error:
                    met[endpoint] = str(error)
                except (ValidationError, RpcFailedError, NotAuthorizedError) as error:
                    # It is about the request, so another member would refuse it, too.
                    raise StateReadError(order.shard_id, str(error)) from error
            # After a whole round, so that each member is asked at least once, however short the patience.
            if asyncio.get_running_loop().time() >= deadline:
                raise StateReadError(
                    order.shard_id,
                    f"no member answered for it within {order.patience_seconds:g} s"
                    + "".join(f"; {endpoint}: {cause}" for endpoint, cause in met.items()),
                )
            await backoff.sleep()
            await self._look_up(met)

    async def _look_up(self, met: dict[str, str]) -> None:
        order = self._order
        # A member of the route may be gone since, and one that holds the shard may know a later route.
        known = filter(order.access.permits, filter(None, self._route.endpoints))
        addresses = tuple(dict.fromkeys((*order.access.addresses, *known)))
        access = replace(order.access, addresses=addresses)
        try:
            listing = await list_shards(access, f"id={order.shard_id}")
        except NoMemberAnsweredError as error:
            met |= error.met
            return
        for listed in listing.shards:
            self._route = listed.route


def _provenance(order: ScanOrder, first: ScanStateResponse) -> Provenance:
    state = first.state
    return Provenance(
        order.shard_id,
        str(member_id_of(first.header.process_id)),
        state.slot,
        dict(state.read_through),
        state.staleness_seconds,
    )
