"""A watch that survives lost streams: whole revisions, each once, in order, for ever.

Each watch has a separate stream, so that a slow consumer does not hold up the others. The resume point moves past a
revision only when all of it was delivered; a stream that breaks in the middle of a fragmented answer loses nothing.
Progress notifications move the resume point too, so that a compaction of other keys' history does not end an idle
watch.

Source: etcd-io/etcd server/etcdserver/api/v3rpc/watch.go (fragments, progress, compaction).
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import NoReturn

import grpc
import grpc.aio
import structlog

from broadsheet.allocator.errors import (
    AllocatorError,
    EtcdAuthenticationError,
    EtcdLimitError,
    EtcdUnavailableError,
    RevisionCompactedError,
)
from broadsheet.allocator.etcd import rpc_pb2
from broadsheet.allocator.etcd.api import WatchBatch, WatchEvent, mod_revision_of
from broadsheet.allocator.etcd.calls import Caller, Metadata
from broadsheet.allocator.etcd.channel import EndpointChannel
from broadsheet.allocator.etcd.convert import events_from, header_from
from broadsheet.allocator.etcd.status import (
    EtcdFailure,
    error_for,
    names_token,
    outcome_of,
    translated,
)
from broadsheet.allocator.ops import prefix_range_end
from broadsheet.runtime.backoff import Backoff

WATCH_PATH = "/etcdserverpb.Watch/Watch"
REQUIRE_LEADER: Metadata = (("hasleader", "true"),)
"""Makes a server that is cut off from its cluster end the stream, rather than stay silent."""
RESUME_DELAY_SECONDS_MAX = 1.0
"""Bound of the pause between two streams: short, because a stale mirror costs more than a request."""

STABLE_SECONDS = 10.0
"""A stream that lasted this long was healthy, with or without events, so its loss resets the delay."""

_log = structlog.get_logger()
_Call = grpc.aio.StreamStreamCall[rpc_pb2.WatchRequest, rpc_pb2.WatchResponse]


class _StreamLostError(Exception):
    """The stream ended for a transient reason."""


class _TokenRefusedError(_StreamLostError):
    """The stream was refused to a token that may have ended; the next one logs in again."""

    def __init__(self, cause: str, metadata: Metadata) -> None:
        super().__init__(cause)
        self.metadata = metadata


async def watch_prefix(
    caller: Caller, prefix: bytes, *, start_revision: int
) -> AsyncGenerator[WatchBatch, None]:
    """Yield every change of keys with `prefix` from `start_revision` on, resuming lost streams.

    Args:
        caller: Performs the calls.
        prefix: The bytes that the keys start with.
        start_revision: First revision wanted, from 1.

    Raises:
        RevisionCompactedError: the revision to (re)start at is gone.
        EtcdAuthenticationError: the user may not watch these keys.
        ClusterMismatchError: another cluster answers.
    """
    assert start_revision > 0, "a watch needs a revision to start from"
    next_revision = start_revision
    backoff = Backoff(initial_seconds=0.05, max_seconds=RESUME_DELAY_SECONDS_MAX)
    refused: Metadata = ()
    while True:
        opened_at = math.inf
        try:
            async with aclosing(_one_stream(caller, prefix, next_revision, refused)) as received:
                async for batch in received:
                    if batch is None:
                        refused = ()
                        opened_at = caller.clock.monotonic_seconds()
                        if backoff.attempt:
                            _log.info("watch.resumed", prefix=prefix, next_revision=next_revision)
                        continue
                    backoff.reset()
                    next_revision = max(next_revision, batch.header.revision + 1)
                    yield batch
        except _StreamLostError as lost:
            if isinstance(lost, _TokenRefusedError):
                refused = lost.metadata
            if caller.clock.monotonic_seconds() - opened_at > STABLE_SECONDS:
                backoff.reset()
            if not backoff.attempt:
                _log.warning(
                    "watch.lost", prefix=prefix, next_revision=next_revision, cause=str(lost)
                )
        await backoff.sleep()


async def _one_stream(
    caller: Caller, prefix: bytes, start_revision: int, refused: Metadata
) -> AsyncGenerator[WatchBatch | None, None]:
    """Yield None once the watch is set up, then its batches, until the stream ends.

    Args:
        caller: Performs the calls.
        prefix: Of the keys.
        start_revision: First revision wanted.
        refused: The token that the stream before was refused; none if it was not.
    """
    channel = await caller.pool.pick(timeout_seconds=caller.request_timeout_seconds)
    metadata: Metadata = ()
    call: _Call | None = None
    try:
        metadata = await caller.metadata(channel, timeout_seconds=caller.request_timeout_seconds)
        call = _opened(channel, metadata)
        await call.write(_create_request(prefix, start_revision))
        pending: list[WatchEvent] = []
        response = await _first_response(caller, channel, call)
        yield None
        while True:
            _check(caller, response, start_revision)
            pending += events_from(response.events)
            if not response.fragment and (batch := _batch(response, pending)):
                pending = []
                start_revision = batch.header.revision + 1
                yield batch
            received = await call.read()
            if not isinstance(received, rpc_pb2.WatchResponse):
                raise _StreamLostError("etcd ended the stream")
            response = received
    except grpc.aio.AioRpcError as error:
        failure = translated(error, caller.pool.endpoints)
        if outcome_of(error) is EtcdFailure.NEW_TOKEN_NEEDED and metadata:
            caller.forget_token(metadata)
        elif isinstance(failure, EtcdAuthenticationError):
            _log_in_again_once(caller, failure, metadata, refused)
        elif not isinstance(failure, EtcdUnavailableError | EtcdLimitError):
            raise failure from error
        raise _StreamLostError(str(failure)) from error
    except EtcdAuthenticationError as failure:
        # A cancelled watch.
        _log_in_again_once(caller, failure, metadata, refused)
    except asyncio.CancelledError:
        caller.pool.check_not_closed_under_call()
        raise
    except asyncio.InvalidStateError as error:
        # grpc.aio raises this for a write to a call that has already ended.
        raise _StreamLostError("the stream ended while it was opened") from error
    finally:
        if call is not None:
            call.cancel()


def _opened(channel: EndpointChannel, metadata: Metadata) -> _Call:
    stub: grpc.aio.StreamStreamMultiCallable[rpc_pb2.WatchRequest, rpc_pb2.WatchResponse] = (
        channel.channel.stream_stream(
            WATCH_PATH,
            request_serializer=rpc_pb2.WatchRequest.SerializeToString,
            response_deserializer=rpc_pb2.WatchResponse.FromString,
        )
    )
    # No deadline, because a watch has no end. Keep-alive probes of the connection end it if the server is gone.
    call: _Call = stub(metadata=metadata + REQUIRE_LEADER)
    return call


def _create_request(prefix: bytes, start_revision: int) -> rpc_pb2.WatchRequest:
    return rpc_pb2.WatchRequest(
        create_request=rpc_pb2.WatchCreateRequest(
            key=prefix,
            range_end=prefix_range_end(prefix),
            start_revision=start_revision,
            # Moves the resume point of an idle watch, so that a compaction does not end it.
            progress_notify=True,
            fragment=True,
        )
    )


async def _first_response(
    caller: Caller, channel: EndpointChannel, call: _Call
) -> rpc_pb2.WatchResponse:
    """Return the notification that the watch was created; fail if the server does not send it in time."""
    try:
        async with asyncio.timeout(caller.request_timeout_seconds):
            received = await call.read()
    except TimeoutError:
        caller.pool.suspect(channel)
        raise _StreamLostError(f"{channel.endpoint.name} is connected but silent") from None
    if not isinstance(received, rpc_pb2.WatchResponse):
        raise _StreamLostError("etcd ended the stream")
    return received


def _log_in_again_once(
    caller: Caller, failure: EtcdAuthenticationError, metadata: Metadata, refused: Metadata
) -> NoReturn:
    """Have the next stream log in again, unless this one's token is newer than one that was refused.

    Until 3.5 etcd tells a watch with a token that has ended, or that it forgot in a restart, the same as a user who may
    not watch these keys: permission denied. Only a new token tells which it was.
    """
    # Without a token it was the login itself that failed, or there is no user to log in.
    is_newer = refused and metadata != refused
    if not metadata or (is_newer and not names_token(str(failure))):
        raise failure
    caller.forget_token(metadata)
    raise _TokenRefusedError(str(failure), metadata) from failure


def _check(caller: Caller, response: rpc_pb2.WatchResponse, next_revision: int) -> None:
    """Raise what a response says is wrong.

    Raises:
        EtcdAuthenticationError: the watch was cancelled: its token, or its user, may not have it.
        RevisionCompactedError: the revision to start at is gone.
        ClusterMismatchError: another cluster answers.
    """
    caller.check_cluster(response.header)
    if response.compact_revision:
        raise RevisionCompactedError(next_revision, response.compact_revision)
    if not response.canceled:
        return
    reason = response.cancel_reason or "no reason given"
    # A cancelled watch has a reason as text, and no status code.
    failure: AllocatorError = error_for(
        grpc.StatusCode.PERMISSION_DENIED
        if "permission denied" in reason.lower()
        else grpc.StatusCode.UNAVAILABLE,
        reason,
        caller.pool.endpoints,
    )
    if not isinstance(failure, EtcdUnavailableError | EtcdLimitError):
        raise failure
    raise _StreamLostError(f"etcd cancelled the watch: {reason}")


def _batch(response: rpc_pb2.WatchResponse, events: list[WatchEvent]) -> WatchBatch | None:
    if events:
        # The header's revision may be ahead of the events sent so far: only the last event's revision is safe to resume
        # after.
        header = header_from(response.header, revision=mod_revision_of(events[-1]))
        return WatchBatch(header=header, events=tuple(events))
    # Its header has the store's revision, but older events may still follow.
    if response.created:
        return None
    return WatchBatch(header=header_from(response.header), events=())
