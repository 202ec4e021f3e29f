"""Answers queries for counts of words, from the live state of the shard that counts them.

Any member may be asked: it answers if it is the shard's primary, and forwards once if it is not.
"""

from __future__ import annotations

from typing import Any

import grpc

from broadsheet.consumer import Resolver, Status, claims_of
from broadsheet.consumer.stores import SqliteStore
from broadsheet.examples.word_count import word_count_pb2_grpc
from broadsheet.examples.word_count.store import CountStore
from broadsheet.examples.word_count.word_count_pb2 import (
    Count,
    ListCountsRequest,
    ListCountsResponse,
)

_FORWARD_SECONDS_MAX = 30.0

# `Any`: grpc.aio passes each servicer method its context; requests and responses vary by method.
Context = Any


class WordCountApi(word_count_pb2_grpc.WordCountServiceServicer):
    """Serves `examples.word_count.v1.WordCountService` for one member."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver

    async def ListCounts(  # noqa: N802 - gRPC's name
        self, request: ListCountsRequest, context: Context
    ) -> ListCountsResponse:
        """List counts of one shard."""
        forwarded = request.HasField("header")
        async with await self._resolver.resolve(
            request.shard,
            claims=claims_of(context),
            may_proxy=not forwarded,
            proxy_header=request.header if forwarded else None,
            read_through=request.read_through,
        ) as resolution:
            if resolution.status == Status.OK and resolution.shard is None:
                request.header.CopyFrom(resolution.header)
                return await self._forward(request, context)
            response = ListCountsResponse(status=resolution.status, header=resolution.header)
            if resolution.shard is not None:
                counts = await resolution.call(_ask, list(request.words), request.limit)
                response.counts.extend(Count(word=word, count=n) for word, n in counts.items())
            return response

    async def _forward(self, request: ListCountsRequest, context: Context) -> ListCountsResponse:
        stub = word_count_pb2_grpc.WordCountServiceStub(self._resolver.channel_to(request.header))
        credentials = [
            (name, value)
            for name, value in context.invocation_metadata()
            if name == "authorization"
        ]
        timeout_seconds = min(
            context.time_remaining() or _FORWARD_SECONDS_MAX, _FORWARD_SECONDS_MAX
        )
        answer: ListCountsResponse = await stub.ListCounts(
            request, timeout=timeout_seconds, metadata=credentials
        )
        return answer


def register(server: grpc.aio.Server, resolver: Resolver) -> None:
    """Add the service to a member's server."""
    word_count_pb2_grpc.add_WordCountServiceServicer_to_server(WordCountApi(resolver), server)


def _ask(store: SqliteStore, words: list[str], limit: int) -> dict[str, int]:
    if not isinstance(store, CountStore):
        return {}  # A shard that splits lines has no counts.
    return store.counts_of(words) if words else store.most_frequent(limit)
