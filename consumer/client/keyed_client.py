"""Client of the Keyed service: look-ups by key, pages of keys and of timers, and the tables that can be asked."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from google.protobuf.struct_pb2 import ListValue

from broadsheet.consumer.client.member_rpc import (
    MemberClient,
    RpcMethod,
    error_of_status,
    shard_claims,
)
from broadsheet.consumer.keyed.plain_values import plain
from broadsheet.security.auth import Capability
from broadsheet.wire.keyed_pb2 import (
    DescribeKeyedRequest,
    DescribeKeyedResponse,
    GetKeysRequest,
    GetKeysResponse,
    KeyedEncoding,
    ListTimersRequest,
    ListTimersResponse,
    ScanKeysRequest,
    ScanKeysResponse,
)
from broadsheet.wire.keyed_pb2_grpc import KeyedServiceStub
from broadsheet.wire.shard_pb2 import Status

_DESCRIBE = RpcMethod(KeyedServiceStub, "DescribeKeyed", DescribeKeyedResponse)
_GET = RpcMethod(KeyedServiceStub, "GetKeys", GetKeysResponse)
_SCAN = RpcMethod(KeyedServiceStub, "ScanKeys", ScanKeysResponse)
_TIMERS = RpcMethod(KeyedServiceStub, "ListTimers", ListTimersResponse)
ResponseT = TypeVar(
    "ResponseT", DescribeKeyedResponse, GetKeysResponse, ScanKeysResponse, ListTimersResponse
)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedReadOptions:
    """Terms of a read."""

    table: str = ""
    """Empty: the shard's only one."""
    columns: Sequence[str] = ()
    """Of the table; none: all."""
    read_through: Mapping[str, int] = field(default_factory=dict)
    """Offsets that the answer must have read through, bytes by journal."""
    max_staleness_seconds: float = 0.0
    """A standby may answer with all that was committed so long before; 0: only the primary may."""
    encoding: KeyedEncoding.ValueType = KeyedEncoding.KEYED_ENCODING_ROWS


_DEFAULT: Final = KeyedReadOptions()


class KeyedClient(MemberClient):
    """Asks any member about keys; it passes the question on to the shard's primary.

    All methods raise a `ShardError` for a shard that has no primary at the moment, and a `ValidationError` for a table,
    column or key that does not fit, which names what was expected.
    """

    async def describe(
        self, shard_id: str, options: KeyedReadOptions = _DEFAULT
    ) -> DescribeKeyedResponse:
        """Return the tables of a shard, their keys and variables, and its time."""
        request = DescribeKeyedRequest(
            shard=shard_id,
            read_through=options.read_through,
            max_staleness_seconds=options.max_staleness_seconds,
        )
        return await self._asked(_DESCRIBE, request)

    async def get(
        self,
        shard_id: str,
        keys: Sequence[Sequence[Any]],
        options: KeyedReadOptions = _DEFAULT,
    ) -> GetKeysResponse:
        """Return the rows of some keys, as of one commit.

        Args:
            shard_id: The shard.
            keys: The fields of each, at most 1,000 keys.
            options: The table, and how fresh it must be.
        """
        request = GetKeysRequest(
            shard=shard_id,
            table=options.table,
            columns=options.columns,
            keys=map(key_message, keys),
            read_through=options.read_through,
            max_staleness_seconds=options.max_staleness_seconds,
            encoding=options.encoding,
        )
        return await self._asked(_GET, request)

    async def scan(
        self,
        shard_id: str,
        prefix: Sequence[Any] = (),
        *,
        text_prefix: str = "",
        page_size: int = 0,
        options: KeyedReadOptions = _DEFAULT,
    ) -> AsyncGenerator[ScanKeysResponse, None]:
        """Yield pages of the keys that begin so, each as of one commit.

        Args:
            shard_id: The shard.
            prefix: Leading fields; none: all keys.
            text_prefix: How the next field begins, which is text.
            page_size: Keys of a page at most; 0: 1,000.
            options: The table, and how fresh it must be.
        """
        request = ScanKeysRequest(
            shard=shard_id,
            table=options.table,
            columns=options.columns,
            prefix=key_message(prefix),
            text_prefix=text_prefix,
            page_size=page_size,
            read_through=options.read_through,
            max_staleness_seconds=options.max_staleness_seconds,
            encoding=options.encoding,
        )
        while True:
            response = await self._asked(_SCAN, request)
            yield response
            if not response.cursor:
                return
            request.cursor = response.cursor

    async def timers(
        self,
        shard_id: str,
        key: Sequence[Any] | None = None,
        *,
        from_ms: int | None = None,
        until_ms: int | None = None,
        page_size: int = 0,
        options: KeyedReadOptions = _DEFAULT,
    ) -> AsyncGenerator[ListTimersResponse, None]:
        """Yield pages of timers, the next ones first.

        Args:
            shard_id: The shard.
            key: Whose; None: of all keys.
            from_ms: First time, Unix milliseconds.
            until_ms: Last time.
            page_size: Timers of a page at most; 0: 1,000.
            options: The table, and how fresh it must be.
        """
        request = ListTimersRequest(
            shard=shard_id,
            table=options.table,
            key=None if key is None else key_message(key),
            from_ms=from_ms,
            until_ms=until_ms,
            page_size=page_size,
            read_through=options.read_through,
            max_staleness_seconds=options.max_staleness_seconds,
            encoding=options.encoding,
        )
        while True:
            response = await self._asked(_TIMERS, request)
            yield response
            if not response.cursor:
                return
            request.cursor = response.cursor

    async def _asked(self, method: RpcMethod[ResponseT], request: Any) -> ResponseT:
        claims = shard_claims(Capability.READ, request.shard)
        response, _ = await self._rpc.request(method, request, claims)
        if response.status != Status.OK:
            raise error_of_status(request.shard, response.status, response.header, response.cause)
        return response


def key_message(key: Sequence[Any]) -> ListValue:
    """Return the fields of a key as a message: Python's values, or as JSON has them."""
    message = ListValue()
    message.extend(plain(list(key)))
    return message
