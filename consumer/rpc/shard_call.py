"""Shard calls of an application's own services: answer from the shard, or tell the caller where it is.

    async def Count(self, request, context):
        async with serving_shard(self._resolver, context, request.shard) as resolution:
            return CountResponse(total=await resolution.call(total_of))

Callers that follow shards (`broadsheet.spark_bridge.task_resolver`) understand the refusal, and the metadata that
confirms a token.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import grpc

from broadsheet.consumer.application import Resolution, Resolver
from broadsheet.consumer.rpc.guard import claims_of
from broadsheet.runtime.errors import ValidationError
from broadsheet.wire.shard_metadata import (
    HONOURED,
    HONOURED_VALUE,
    merge_tokens,
    refusal_metadata,
    shard_in,
    token_in,
)
from broadsheet.wire.shard_pb2 import Status

# `Any`: grpc.aio passes each servicer method its context; requests and responses vary by method.
Context = Any


@asynccontextmanager
async def serving_shard(
    resolver: Resolver,
    context: Context,
    shard_id: str = "",
    *,
    read_through: Mapping[str, int] | None = None,
) -> AsyncIterator[Resolution]:
    """Lend out the shard of a call, ready and read through the call's token; its `shard` is set.

    If this process is not the shard's primary, the call ends with UNAVAILABLE, and metadata that name the status and
    the route. It ends with NOT_FOUND if there is no such shard, or the caller's claims do not select it. The body must
    not send initial metadata itself.

    Args:
        resolver: Of this process.
        context: Of the call.
        shard_id: The shard; if empty, the one that the call's metadata name.
        read_through: Offsets to wait for in addition to those of the call's token, bytes by journal.

    Raises:
        ValidationError: no shard is named, or the token is malformed.
        ResolverStoppedError: this process is shutting down.
        ClaimsMissingError: the call did not come through a member's server.
        grpc.aio.AbortError: this process cannot answer; the server has told the caller.
    """
    metadata = tuple(context.invocation_metadata() or ())
    wanted = shard_id or shard_in(metadata)
    if not wanted:
        raise ValidationError("shard", "expected the id of a shard in the request or its metadata")
    token = token_in(metadata)
    async with await resolver.resolve(
        wanted,
        claims=claims_of(context),
        may_proxy=False,
        read_through=merge_tokens(token, read_through or {}),
    ) as resolution:
        if resolution.shard is None:
            await _refuse(context, wanted, resolution)
        if token:
            # Sent before the first response, because a caller must know it before it uses a stream's responses.
            await context.send_initial_metadata(((HONOURED, HONOURED_VALUE),))
        yield resolution


async def _refuse(context: Context, shard_id: str, resolution: Resolution) -> None:
    status = resolution.status
    unknown = status == Status.SHARD_NOT_FOUND
    await context.abort(
        grpc.StatusCode.NOT_FOUND if unknown else grpc.StatusCode.UNAVAILABLE,
        f"shard {shard_id}: {Status.Name(status)}",
        trailing_metadata=refusal_metadata(status, resolution.header),
    )
