"""The one hop of a call to a shard's primary, on behalf of a caller who asked another member.

Source: gazette/core consumer/shard_api.go (Stat is proxied once, with the header of the resolution).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import grpc

from broadsheet.consumer.resolver.resolver import ShardResolver, answer_of_peer
from broadsheet.consumer.rpc.guard import claims_of
from broadsheet.runtime.errors import EndpointError
from broadsheet.security.auth import Capability, Claims, ClientAuth
from broadsheet.serving.tracing import NO_SPAN, tracing
from broadsheet.wire.journal_pb2 import Header
from broadsheet.wire.labels import ID, label_set, selector

PROXY_SECONDS_MAX = 3600.0
"""Deadline of a forwarded call whose caller set none."""

# `Any`: grpc.aio passes each servicer method its context; requests and responses vary by method.
Context = Any


class PrimaryHop:
    """Forwards calls about one shard, whose requests have the fields `shard` and `header`, to its primary."""

    def __init__(self, resolver: ShardResolver, auth: ClientAuth) -> None:
        """Create it.

        Args:
            resolver: Has channels to other members.
            auth: Signs the hop.
        """
        self._resolver = resolver
        self._hops = HopTokens(auth)
        self._tracing = tracing()

    async def perform(
        self,
        stub_type: Callable[[grpc.aio.Channel], Any],
        method: str,
        request: Any,
        header: Header,
        context: Context,
    ) -> tuple[Any, Any]:
        """Forward a call; return the response, and the call of gRPC.

        Args:
            stub_type: Of the service.
            method: Its name.
            request: A copy with the header is sent.
            header: Of the resolution: it names the primary.
            context: Of the caller.

        Raises:
            EndpointError: the primary could not be reached.
        """
        forwarded = type(request)()
        forwarded.CopyFrom(request)
        forwarded.header.CopyFrom(header)
        remaining = context.time_remaining()
        timeout_seconds = (
            PROXY_SECONDS_MAX if remaining is None else min(remaining, PROXY_SECONDS_MAX)
        )
        metadata = self._hops.metadata(
            request.shard,
            claims_of(context).subject,
            timeout_seconds=timeout_seconds,
            now=datetime.now(UTC),
        )
        traced = self._tracing
        service = request.DESCRIPTOR.file.package
        name = f"/{service}.{stub_type.__name__.removesuffix('Stub')}/{method}"
        with NO_SPAN if traced is None else traced.calling(name):
            call = getattr(self._resolver.stub_to(header, stub_type), method)(
                forwarded,
                timeout=timeout_seconds,
                metadata=metadata if traced is None else (*metadata, *traced.metadata()),
            )
            try:
                response = await answer_of_peer(call, _address_in(header))
            except grpc.aio.AioRpcError as error:
                # The primary could not be reached; other statuses are its answer.
                if error.code() is grpc.StatusCode.UNAVAILABLE:
                    raise EndpointError(_address_in(header), error.details() or "") from error
                raise
        return response, call


class HopTokens:
    """Tokens for the one hop of a call: READ of one shard, on behalf of one caller, until the call's deadline.

    A token states its expiry in whole seconds, so calls of one second with one shard, caller and deadline have equal
    claims, and share one token: signing takes as long as the rest of our part in a short call.
    """

    def __init__(self, auth: ClientAuth) -> None:
        """Keep none yet.

        Args:
            auth: Signs them.
        """
        self._auth = auth
        self._second = 0
        """Unix time of the kept tokens."""
        self._kept: dict[tuple[str, str, int], tuple[tuple[str, str], ...]] = {}
        """By shard, subject and expiry, Unix seconds."""

    def metadata(
        self, shard_id: str, subject: str, *, timeout_seconds: float, now: datetime
    ) -> tuple[tuple[str, str], ...]:
        """Return the metadata of a call.

        Args:
            shard_id: For which the caller is authorized.
            subject: The caller; see `Claims.subject`.
            timeout_seconds: The longest that the call may take.
            now: The present time.
        """
        now_seconds = now.timestamp()
        # None is kept for longer, so that a key that was replaced signs nothing any more.
        if int(now_seconds) != self._second:
            self._second = int(now_seconds)
            self._kept.clear()
        key = shard_id, subject, int(now_seconds + timeout_seconds)
        found = self._kept.get(key)
        if found is None:
            found = self._kept[key] = self._auth.metadata(_hop_claims(*key))
        return found


def _hop_claims(shard_id: str, subject: str, expires_at_seconds: int) -> Claims:
    """Return claims for calls about one shard, for which the caller is authorized."""
    return Claims(
        capability=Capability.READ,
        selector=selector(label_set((ID, shard_id))),
        expires_at=datetime.fromtimestamp(expires_at_seconds, UTC),
        subject=subject,
    )


def _address_in(header: Header) -> str:
    route = header.route
    return next(
        endpoint
        for member, endpoint in zip(route.members, route.endpoints, strict=True)
        if member == header.process_id
    )
