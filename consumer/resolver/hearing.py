"""The client of other members' `PeerService`: their heartbeats, and their testimony about each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import grpc

from broadsheet.allocator.errors import ValidationError
from broadsheet.allocator.model import MemberId
from broadsheet.consumer.journal.channels import parse_endpoint
from broadsheet.consumer.protocol.auth import Capability, ClientAuth, expiring
from broadsheet.consumer.protocol.journal_pb2 import LabelSelector
from broadsheet.consumer.protocol.peer_pb2 import (
    TESTIMONY_HEARD,
    TESTIMONY_NONE,
    TESTIMONY_SILENT,
    BeatRequest,
    BeatResponse,
    Testimony,
    WitnessRequest,
    WitnessResponse,
)
from broadsheet.consumer.protocol.peer_pb2_grpc import PeerServiceStub
from broadsheet.consumer.resolver.resolver import CHANNEL_OPTIONS

if TYPE_CHECKING:
    # The generated stubs have this class only for type checkers.
    from broadsheet.consumer.protocol.peer_pb2_grpc import PeerServiceAsyncStub

BEAT_SECONDS = 0.25
"""Interval between two beats of a peer."""
LISTEN_SECONDS = 3600.0
"""Lifetime of a stream of beats: it is requested again after this, with a fresh token."""
PROBE_SECONDS = 0.7
"""Time that a witness waits for an answer: a connection takes a millisecond or two."""
ANSWER_SECONDS = 0.5
"""Additional time for the witness's own answer."""
MUTE_CODES = (
    grpc.StatusCode.UNIMPLEMENTED,
    grpc.StatusCode.UNAUTHENTICATED,
    grpc.StatusCode.PERMISSION_DENIED,
    grpc.StatusCode.INVALID_ARGUMENT,
)
"""Codes from a process that is alive, but does not beat for us: an older version, or one with other keys."""


class Hearing:
    """The calls of one member to other members' `PeerService`."""

    def __init__(self, auth: ClientAuth) -> None:
        self._auth = auth

    @asynccontextmanager
    async def beats(self, endpoint: str) -> AsyncIterator[AsyncIterator[BeatResponse]]:
        """Listen to the beats of a process, over a dedicated connection.

        Raises:
            grpc.aio.AioRpcError: the stream broke, was refused or could not be opened; on iteration.
        """
        async with _connected(endpoint) as stub:
            request = BeatRequest(every_milliseconds=round(BEAT_SECONDS * 1000))
            call = stub.Beat(request, timeout=LISTEN_SECONDS, metadata=self._metadata(endpoint))
            try:
                yield call.__aiter__()
            finally:
                call.cancel()

    async def hears(self, endpoint: str) -> bool:
        """Return whether a process accepts a new connection now.

        gRPC's own threads accept it, not Python's: so a process whose interpreter or event loop is busy accepts. A
        process that is stopped, or whose machine is gone, does not.
        """
        target = parse_endpoint(endpoint, may_be_tls=True).address
        async with grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS) as channel:
            try:
                async with asyncio.timeout(PROBE_SECONDS):
                    await channel.channel_ready()
            except TimeoutError:
                return False
            return True

    async def testimony(
        self, witness_endpoint: str, member_id: MemberId, create_revision: int
    ) -> Testimony.ValueType:
        """Return a witness's testimony about a member.

        It is TESTIMONY_NONE if the witness does not answer, answers nonsense or does not know.
        """
        request = WitnessRequest(
            zone=member_id.zone, suffix=member_id.suffix, create_revision=create_revision
        )
        try:
            async with _connected(witness_endpoint) as stub:
                response: WitnessResponse | None = await stub.Witness(
                    request,
                    timeout=PROBE_SECONDS + ANSWER_SECONDS,
                    metadata=self._metadata(witness_endpoint),
                )
        except (grpc.aio.AioRpcError, ValidationError):
            return TESTIMONY_NONE
        # gRPC returns None for an answer that it cannot parse.
        said = TESTIMONY_NONE if response is None else response.testimony
        return said if said in (TESTIMONY_HEARD, TESTIMONY_SILENT) else TESTIMONY_NONE

    def _metadata(self, endpoint: str) -> tuple[tuple[str, str], ...]:
        # We use no TLS between members. A member that requires it does not understand us, and the token would be
        # readable on the way.
        if parse_endpoint(endpoint, may_be_tls=True).tls:
            return ()
        claims = expiring(Capability.LIST, LabelSelector(), life_seconds=LISTEN_SECONDS)
        return tuple(self._auth.metadata(claims))


@asynccontextmanager
async def _connected(endpoint: str) -> AsyncIterator[PeerServiceAsyncStub]:
    target = parse_endpoint(endpoint, may_be_tls=True).address
    async with grpc.aio.insecure_channel(target, options=CHANNEL_OPTIONS) as channel:
        yield PeerServiceStub(channel)
