"""The State service: ListReplicas, DescribeState, ScanState.

A member answers only for its own replicas: a client that wants the whole cluster asks each member that List names. One
that reaches a single member, as a browser does, has it ask the others (ListReplicas).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager, aclosing
from typing import Any, Final

from broadsheet.consumer.errors import (
    ShardStoppedError,
    StateNotShownError,
    StoreClosedError,
    StoreError,
    StoreUnavailableError,
)
from broadsheet.consumer.registry.key_space import is_selected
from broadsheet.consumer.resolver.local_shards import LocalShards
from broadsheet.consumer.rpc.allocation_api import MemberForwarder, was_forwarded
from broadsheet.consumer.rpc.allocation_messages import parse_member
from broadsheet.consumer.rpc.guard import claims_of
from broadsheet.consumer.rpc.state_reader import ShownState, StateReader
from broadsheet.consumer.shard.replica_progress import progress_of
from broadsheet.consumer.stores.state_tables import ScannableStore
from broadsheet.journals.client import JournalClient
from broadsheet.journals.message.checkpoint import read_through_of
from broadsheet.runtime.errors import BoundExceededError, ValidationError, needs_extra
from broadsheet.security.auth import Capability, Claims
from broadsheet.wire import state_pb2_grpc
from broadsheet.wire.labels import LabelMatcher
from broadsheet.wire.shard_pb2 import Checkpoint
from broadsheet.wire.state_pb2 import (
    DescribeStateRequest,
    DescribeStateResponse,
    ListReplicasRequest,
    ListReplicasResponse,
    ScannedState,
    ScanStateRequest,
    ScanStateResponse,
    StateTable,
)
from broadsheet.wire.validation_shard import validate_shard_id
from broadsheet.wire.validation_terms import validate_selector

SCANS_MAX = 4
"""Maximum concurrent scans: each takes a thread, which competes with the shards' own for the processor."""
SCANS_WAITING_MAX = 256
"""Maximum requests that wait for their turn; more are refused."""

# `Any`: grpc.aio passes each servicer method its context.
Context = Any

PART_BYTES: Final = 1 << 20
"""Maximum size of one message, well below gRPC's default limit."""
_END: Final = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""End of a stream in Arrow's IPC format."""
_DONE: Final = object()
Part = Checkpoint | bytes


async def scan_parts(
    store: ScannableStore,
    table: str,
    columns: Sequence[str],
    *,
    shard_id: str,
    ended: asyncio.Future[Any],
) -> AsyncGenerator[Part, None]:
    """Yield the checkpoint of the rows, then the bytes of one Arrow stream, part by part.

    The parts are produced on a dedicated thread, one part ahead of the consumer.

    Args:
        store: Must not be destroyed meanwhile.
        table: Of the store; empty: its only one.
        columns: Of the table; none: all.
        shard_id: Named by errors.
        ended: Resolves when the store must be returned.

    Raises:
        ShardStoppedError: the store had to be returned, or the scan took too long.
        StateNotShownError: its column cannot show a value.
        ValidationError: there is no such table or column.
    """
    parts = _parts(store, table, columns)
    loop = asyncio.get_running_loop()
    thread = ThreadPoolExecutor(1, thread_name_prefix=f"scan {shard_id}")
    step = loop.run_in_executor(thread, next, parts, _DONE)
    try:
        while True:
            await asyncio.wait((step, ended), return_when=asyncio.FIRST_COMPLETED)
            if ended.done():
                raise ShardStoppedError(shard_id, detail="it stopped while it was being read")
            part = step.result()
            if part is _DONE:
                return
            assert isinstance(part, Checkpoint | bytes), "as `_parts` yields"
            # Started before the yield, so that the next part is produced while this one is sent.
            step = loop.run_in_executor(thread, next, parts, _DONE)
            yield part
    except (StoreClosedError, StoreUnavailableError) as error:
        raise ShardStoppedError(shard_id, detail=error.detail) from error
    except StoreError as error:
        raise StateNotShownError(shard_id, error.detail) from error
    except ImportError as error:
        raise StateNotShownError(shard_id, lacking(error)) from error
    finally:
        # A step may still run on the thread. Its result is read and dropped, because its caller is gone.
        step.add_done_callback(lambda done: done.cancelled() or done.exception())
        # The scan is closed on its own thread, after the step that may still run there.
        closing = loop.run_in_executor(thread, parts.close)
        thread.shutdown(wait=False)
        await asyncio.shield(closing)


def lacking(error: ImportError) -> str:
    """Return the error text of a member that has no pyarrow."""
    return f"its member {needs_extra('spark', error.name or 'pyarrow')}"


def _parts(
    store: ScannableStore, table: str, columns: Sequence[str]
) -> Generator[Part, None, None]:
    with store.scan(table or _only(store), columns) as scan:
        yield scan.checkpoint
        yield scan.schema.serialize().to_pybytes()
        for batch in scan.batches:
            encoded = memoryview(batch.serialize())
            for begin in range(0, len(encoded), PART_BYTES):
                yield bytes(encoded[begin : begin + PART_BYTES])
    yield _END


def _only(store: ScannableStore) -> str:
    """Return the name of a store's only table; if there are several, an empty name, which `scan` refuses."""
    tables = list(store.tables())
    return tables[0] if len(tables) == 1 else ""


class StateApi(state_pb2_grpc.StateServiceServicer):
    """The `broadsheet.v1.StateService` of one member."""

    def __init__(
        self,
        local_shards: LocalShards,
        forwarder: MemberForwarder,
        journals: JournalClient,
        states: StateReader,
        *,
        reads_journals: bool,
    ) -> None:
        """Create the service.

        Args:
            local_shards: The replicas of this process.
            forwarder: Asks other members about their replicas.
            journals: Reads the journals' write heads.
            states: Lends out stores.
            reads_journals: Whether the sources of shards are journals.
        """
        self._local_shards = local_shards
        self._forwarder = forwarder
        self._membership = forwarder.membership
        self._journals = journals
        self._states = states
        self._turns = asyncio.Semaphore(SCANS_MAX)
        self._waiting = 0
        self._reads_journals = reads_journals

    async def ListReplicas(  # noqa: N802 - gRPC's name
        self, request: ListReplicasRequest, context: Context
    ) -> ListReplicasResponse:
        """Return the progress of a member's replicas that the request and the caller's claims select."""
        validate_selector(request.selector, "selector")
        if request.member and request.member != str(self._membership.member_id):
            return await self._replicas_of_other(request, context)
        selections = [LabelMatcher(request.selector), LabelMatcher(claims_of(context).selector)]
        shards = [
            shard
            for shard in self._local_shards.shards.values()
            if all(is_selected(shard.spec, each) for each in selections)
        ]
        replicas = await progress_of(shards, self._journals, reads_journals=self._reads_journals)
        return ListReplicasResponse(header=self._membership.unrouted_header(), replicas=replicas)

    async def _replicas_of_other(
        self, request: ListReplicasRequest, context: Context
    ) -> ListReplicasResponse:
        asked = parse_member(request.member, "member")
        member = self._membership.key_space.members.get(asked)
        # The caller that passed the call on took us for that member, so a second hop could go in a circle.
        if member is None or was_forwarded(context):
            raise ValidationError("member", f"expected a member of the cluster, got {asked}")
        response: ListReplicasResponse = await self._forwarder.forward(
            member,
            lambda channel: state_pb2_grpc.StateServiceStub(channel).ListReplicas,
            request,
            context,
            Capability.LIST,
        )
        return response

    async def DescribeState(  # noqa: N802 - gRPC's name
        self, request: DescribeStateRequest, context: Context
    ) -> DescribeStateResponse:
        """Describe the tables of the shard's store."""
        _validate(request)
        async with self._lent(request, claims_of(context)) as shown:
            response = DescribeStateResponse(
                status=shown.status, header=shown.header, cause=shown.cause
            )
            if shown.store is not None:
                response.tables.extend(await _described(shown, request.shard))
            return response

    async def ScanState(  # noqa: N802 - gRPC's name
        self, request: ScanStateRequest, context: Context
    ) -> AsyncIterator[ScanStateResponse]:
        """Stream the rows of a table as of the last commit."""
        _validate(request)
        claims = claims_of(context)
        if self._waiting >= SCANS_WAITING_MAX:
            raise BoundExceededError(
                f"expected at most {SCANS_WAITING_MAX} scans to wait here; try again later"
            )
        self._waiting += 1
        try:
            await self._turns.acquire()
        finally:
            self._waiting -= 1
        try:
            async with aclosing(self._scan(request, claims)) as responses:
                async for response in responses:
                    yield response
        finally:
            self._turns.release()

    async def _scan(
        self, request: ScanStateRequest, claims: Claims
    ) -> AsyncGenerator[ScanStateResponse, None]:
        async with self._lent(request, claims) as shown:
            if shown.store is None:
                yield ScanStateResponse(status=shown.status, header=shown.header, cause=shown.cause)
                return
            parts = scan_parts(
                shown.store,
                request.table,
                request.columns,
                shard_id=request.shard,
                ended=shown.ended,
            )
            async with aclosing(parts):
                async for part in parts:
                    yield _response(part, shown)

    def _lent(
        self, request: DescribeStateRequest | ScanStateRequest, claims: Claims
    ) -> AbstractAsyncContextManager[ShownState]:
        return self._states.lend(
            request.shard,
            claims=claims,
            max_staleness_seconds=request.max_staleness_seconds,
        )


def _response(part: Checkpoint | bytes, shown: ShownState) -> ScanStateResponse:
    if isinstance(part, bytes):
        return ScanStateResponse(arrow=part)
    return ScanStateResponse(
        status=shown.status,
        header=shown.header,
        state=ScannedState(
            slot=shown.slot,
            read_through=read_through_of(part),
            staleness_seconds=shown.staleness_seconds,
        ),
    )


async def _described(shown: ShownState, shard_id: str) -> list[StateTable]:
    assert shown.store is not None, "asked of what is shown"
    try:
        tables = await asyncio.to_thread(shown.store.tables)
    except StoreError as error:
        raise StateNotShownError(shard_id, error.detail) from error
    except ImportError as error:
        raise StateNotShownError(shard_id, lacking(error)) from error
    return [
        StateTable(name=name, arrow_schema=schema.serialize().to_pybytes())
        for name, schema in tables.items()
    ]


def _validate(request: DescribeStateRequest | ScanStateRequest) -> None:
    validate_shard_id(request.shard, "shard")
    staleness = request.max_staleness_seconds
    if not math.isfinite(staleness) or staleness < 0:
        raise ValidationError(
            "max_staleness_seconds", f"expected seconds, at least 0, got {staleness}"
        )
