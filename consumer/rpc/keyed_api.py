"""The Keyed service: look-ups by key, pages of keys and of timers, and the tables that can be asked.

    request ─► this member's primary, or its standby if it is fresh enough ─► answer
            └► the primary, one hop: for callers that reach one member alone, as those of REST do
            └► its status, of a call that finds routes by itself, as tasks' do

Reads run beside the shard's transactions, on threads of this service: none waits for a transaction.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

from google.protobuf import json_format
from google.protobuf.message import Message

from broadsheet.consumer.errors import (
    ShardStoppedError,
    StateNotShownError,
    StoreClosedError,
    StoreError,
)
from broadsheet.consumer.registry.key_space import PRIMARY_SLOT
from broadsheet.consumer.rpc.guard import claims_of
from broadsheet.consumer.rpc.primary_hop import PrimaryHop
from broadsheet.consumer.rpc.state_reader import ShownState, StateReader
from broadsheet.consumer.stores.keyed_queries import (
    PAGE_SIZE,
    KeyedInfo,
    KeyedPage,
    KeyedPageOrder,
    KeyedQueries,
    KeyedQueryStore,
    KeyedTableInfo,
    KeyPrefix,
    TimerRange,
)
from broadsheet.journals.message.checkpoint import read_through_of
from broadsheet.runtime.errors import BoundExceededError, ValidationError
from broadsheet.wire import keyed_pb2_grpc
from broadsheet.wire.keyed_pb2 import (
    KEYED_ENCODING_ARROW,
    KEYED_ENCODING_ROWS,
    DescribeKeyedRequest,
    DescribeKeyedResponse,
    GetKeysRequest,
    GetKeysResponse,
    KeyedField,
    KeyedTable,
    KeyedVariable,
    ListTimersRequest,
    ListTimersResponse,
    ScanKeysRequest,
    ScanKeysResponse,
)
from broadsheet.wire.shard_metadata import shard_in
from broadsheet.wire.shard_pb2 import Checkpoint, Status
from broadsheet.wire.state_pb2 import ScannedState
from broadsheet.wire.validation_shard import validate_offsets, validate_shard_id
from broadsheet.wire.validation_terms import validate_header

if TYPE_CHECKING:
    import pyarrow as pa

READS_WAITING_MAX: Final = 4_096
"""Reads that run or wait here; more are refused."""
_LOOK_UP_THREADS: Final = 2
_PAGE_THREADS: Final = 2
"""Pages have threads of their own, so that look-ups do not wait for them."""

# `Any`: grpc.aio passes each servicer method its context.
Context = Any
Request: TypeAlias = DescribeKeyedRequest | GetKeysRequest | ScanKeysRequest | ListTimersRequest
Page: TypeAlias = GetKeysResponse | ScanKeysResponse | ListTimersResponse
ResponseT = TypeVar(
    "ResponseT", DescribeKeyedResponse, GetKeysResponse, ScanKeysResponse, ListTimersResponse
)
ResultT = TypeVar("ResultT")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Question:
    """A method's part of an answer."""

    method: str
    ask: Callable[[KeyedQueries], Any]
    """Returns the result, on a thread."""
    fill: Callable[[Any, Any], None]
    """Puts a result into a response, on the same thread."""
    threads: ThreadPoolExecutor


class KeyedApi(keyed_pb2_grpc.KeyedServiceServicer):
    """The `broadsheet.v1.KeyedService` of one member."""

    def __init__(self, states: StateReader, hop: PrimaryHop) -> None:
        """Create the service.

        Args:
            states: Lends out stores.
            hop: Passes calls on to primaries.
        """
        self._states = states
        self._hop = hop
        self._look_ups = ThreadPoolExecutor(_LOOK_UP_THREADS, thread_name_prefix="key look-up")
        self._pages = ThreadPoolExecutor(_PAGE_THREADS, thread_name_prefix="key page")
        self._waiting = 0

    async def DescribeKeyed(  # noqa: N802 - gRPC's name
        self, request: DescribeKeyedRequest, context: Context
    ) -> DescribeKeyedResponse:
        """Tell which tables there are."""
        question = _Question(
            method="DescribeKeyed",
            ask=lambda queries: queries.describe(),
            fill=_fill_info,
            threads=self._look_ups,
        )
        return await self._answered(request, context, question, DescribeKeyedResponse)

    async def GetKeys(self, request: GetKeysRequest, context: Context) -> GetKeysResponse:  # noqa: N802
        """Return the rows of some keys."""

        def ask(queries: KeyedQueries) -> KeyedPage:
            keys = [
                _key(queries, request.table, values, f"keys[{number}]")
                for number, values in enumerate(request.keys)
            ]
            return queries.get(request.table, keys, request.columns)

        def fill(response: GetKeysResponse, page: KeyedPage) -> None:
            response.key_numbers.extend(page.key_numbers)
            _fill_rows(response, page, request.encoding)

        question = _Question(method="GetKeys", ask=ask, fill=fill, threads=self._look_ups)
        return await self._answered(request, context, question, GetKeysResponse)

    async def ScanKeys(self, request: ScanKeysRequest, context: Context) -> ScanKeysResponse:  # noqa: N802
        """Return a page of keys."""

        def ask(queries: KeyedQueries) -> KeyedPage:
            fields = _key(queries, request.table, request.prefix, "prefix")
            prefix = KeyPrefix(fields=fields, text=request.text_prefix)
            return queries.scan(request.table, prefix, _order(request), request.columns)

        return await self._paged(request, context, "ScanKeys", ask, ScanKeysResponse)

    async def ListTimers(self, request: ListTimersRequest, context: Context) -> ListTimersResponse:  # noqa: N802
        """Return a page of timers."""

        def ask(queries: KeyedQueries) -> KeyedPage:
            wanted = TimerRange(
                key=_key(queries, request.table, request.key, "key")
                if request.HasField("key")
                else None,
                from_ms=request.from_ms if request.HasField("from_ms") else None,
                until_ms=request.until_ms if request.HasField("until_ms") else None,
            )
            return queries.timers(request.table, wanted, _order(request))

        return await self._paged(request, context, "ListTimers", ask, ListTimersResponse)

    async def _paged(
        self,
        request: ScanKeysRequest | ListTimersRequest,
        context: Context,
        method: str,
        ask: Callable[[KeyedQueries], KeyedPage],
        response_type: type[ResponseT],
    ) -> ResponseT:
        def fill(response: ScanKeysResponse | ListTimersResponse, page: KeyedPage) -> None:
            response.cursor = page.cursor
            _fill_rows(response, page, request.encoding)

        question = _Question(method=method, ask=ask, fill=fill, threads=self._pages)
        return await self._answered(request, context, question, response_type)

    async def _answered(
        self,
        request: Request,
        context: Context,
        question: _Question,
        response_type: type[ResponseT],
    ) -> ResponseT:
        _validate(request)
        if self._waiting >= READS_WAITING_MAX:
            raise BoundExceededError(
                f"expected at most {READS_WAITING_MAX} reads of keys to wait here; try again later"
            )
        self._waiting += 1
        try:
            staleness = request.max_staleness_seconds
            response = await self._try_here(request, context, question, response_type, staleness)
            if response is None:
                # A standby that lacks what the token names.
                response = await self._try_here(request, context, question, response_type, 0.0)
            assert response is not None, "without a standby"
            return response
        finally:
            self._waiting -= 1

    async def _try_here(
        self,
        request: Request,
        context: Context,
        question: _Question,
        response_type: type[ResponseT],
        max_staleness_seconds: float,
    ) -> ResponseT | None:
        """Return the answer of this member, or of the primary; None if the standby here lacks what is asked for."""
        was_forwarded = request.HasField("header")
        # A caller that names the shard in its metadata follows routes by itself: it should learn the present one.
        finds_routes = bool(shard_in(tuple(context.invocation_metadata() or ())))
        async with self._states.lend(
            request.shard,
            claims=claims_of(context),
            max_staleness_seconds=max_staleness_seconds,
            may_proxy=not (was_forwarded or finds_routes),
            proxy_header=request.header if was_forwarded else None,
            read_through=request.read_through,
        ) as shown:
            if shown.store is not None:
                return await self._read(request, question, response_type, shown)
            header, status, cause = shown.header, shown.status, shown.cause
        if status != Status.OK:
            return response_type(status=status, header=header, cause=cause)
        stub = keyed_pb2_grpc.KeyedServiceStub
        response, _ = await self._hop.perform(stub, question.method, request, header, context)
        assert isinstance(response, response_type), "a stub returns its method's response"
        return response

    async def _read(
        self,
        request: Request,
        question: _Question,
        response_type: type[ResponseT],
        shown: ShownState,
    ) -> ResponseT | None:
        store = shown.store
        if not isinstance(store, KeyedQueryStore):
            raise StateNotShownError(
                request.shard,
                f"its store, a {type(store).__name__}, has no state by key: scan its tables with "
                "broadsheet.v1.StateService",
            )

        def answered() -> ResponseT | None:
            result = question.ask(store.queries)
            if shown.slot != PRIMARY_SLOT and _lacks(result.checkpoint, request.read_through):
                return None
            response = response_type(
                status=shown.status,
                header=shown.header,
                state=ScannedState(
                    slot=shown.slot,
                    read_through=read_through_of(result.checkpoint),
                    staleness_seconds=shown.staleness_seconds,
                ),
            )
            question.fill(response, result)
            return response

        try:
            return await _on_thread(question.threads, answered)
        except StoreClosedError as error:
            raise ShardStoppedError(request.shard, detail=error.detail) from error
        except StoreError as error:
            raise StateNotShownError(request.shard, error.detail) from error


async def _on_thread(threads: ThreadPoolExecutor, read: Callable[[], ResultT]) -> ResultT:
    """Return the result of a read; a caller that goes away meanwhile does not end it, so that its store stays."""
    running = asyncio.get_running_loop().run_in_executor(threads, read)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        # Its result is read and dropped.
        running.cancelled() or running.exception()
        raise


def _lacks(checkpoint: Checkpoint, read_through: Mapping[str, int]) -> bool:
    """Tell whether a checkpoint has not read through some offsets, of journals that are its sources."""
    read = read_through_of(checkpoint)
    return any(offset > read.get(journal, offset) for journal, offset in read_through.items())


def _validate(request: Request) -> None:
    if request.HasField("header"):
        validate_header(request.header, "header")
    validate_shard_id(request.shard, "shard")
    validate_offsets(request.read_through, "read_through")
    staleness = request.max_staleness_seconds
    if not math.isfinite(staleness) or staleness < 0:
        raise ValidationError(
            "max_staleness_seconds", f"expected seconds, at least 0, got {staleness}"
        )
    if isinstance(request, DescribeKeyedRequest):
        return
    if request.encoding not in (KEYED_ENCODING_ROWS, KEYED_ENCODING_ARROW):
        raise ValidationError(
            "encoding",
            f"expected KEYED_ENCODING_ROWS or KEYED_ENCODING_ARROW, got {request.encoding}",
        )


def _order(request: ScanKeysRequest | ListTimersRequest) -> KeyedPageOrder:
    return KeyedPageOrder(size=request.page_size or PAGE_SIZE, cursor=request.cursor)


def _key(queries: KeyedQueries, table: str, values: Any, path: str) -> list[Any]:
    from broadsheet.consumer.keyed.key_fields import fields_of

    return fields_of([_plain(each) for each in values], queries.key_of(table), path)


def _plain(value: Any) -> Any:
    """Return a value of a `ListValue` as JSON has it, also an object or a list, for which no field has a type."""
    return json_format.MessageToDict(value) if isinstance(value, Message) else value


# -- answers


def _fill_rows(response: Page, page: KeyedPage, encoding: int) -> None:
    if encoding == KEYED_ENCODING_ARROW:
        response.arrow = _stream_of(page.table)
        return
    from broadsheet.consumer.keyed.plain_values import plain_rows

    for row in plain_rows(page.table):
        response.rows.add().update(row)


def _stream_of(table: pa.Table) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def _fill_info(response: DescribeKeyedResponse, info: KeyedInfo) -> None:
    response.tables.extend(map(_table, info.tables))
    response.time = info.time
    response.watermark_ms = info.watermark_ms
    if info.next_timer_ms is not None:
        response.next_timer_ms = info.next_timer_ms


def _table(info: KeyedTableInfo) -> KeyedTable:
    return KeyedTable(
        name=info.name,
        key=_fields(info.key),
        variables=[
            KeyedVariable(
                name=each.name,
                kind=each.kind,
                fields=_fields(each.fields),
                map_key=[] if each.map_key is None else _fields(each.map_key),
                ttl_ms=each.ttl_ms or 0,
            )
            for each in info.columns
        ],
        arrow_schema=info.schema.serialize().to_pybytes(),
        operator=info.operator,
    )


def _fields(schema: pa.Schema) -> list[KeyedField]:
    return [
        KeyedField(name=each.name, type=str(each.type), nullable=each.nullable) for each in schema
    ]
