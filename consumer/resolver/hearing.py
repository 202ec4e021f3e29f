"""The client of other members' `PeerService`: their heartbeats, and their testimony about each other."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

import grpc

from broadsheet.allocator.model import MemberId
from broadsheet.consumer.resolver.resolver import CHANNEL_OPTIONS
from broadsheet.runtime.errors import ValidationError
from broadsheet.security.auth import Capability, ClientAuth, expiring
from broadsheet.security.endpoints import ChannelTarget, open_channel, parse_endpoint
from broadsheet.security.tls import TlsConfig
from broadsheet.wire.journal_pb2 import LabelSelector
from broadsheet.wire.peer_pb2 import (
    TESTIMONY_HEARD,
    TESTIMONY_NONE,
    TESTIMONY_SILENT,
    BeatRequest,
    BeatResponse,
    Testimony,
    WitnessRequest,
    WitnessResponse,
)
from broadsheet.wire.peer_pb2_grpc import PeerServiceStub

if TYPE_CHECKING:
    # The generated stubs have this class only for type checkers.
    from broadsheet.wire.peer_pb2_grpc import PeerServiceAsyncStub

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

    def __init__(self, auth: ClientAuth, tls: TlsConfig | None = None) -> None:
        self._auth = auth
        self._tls = tls

    @asynccontextmanager
    async def beats(self, endpoint: str) -> AsyncIterator[AsyncIterator[BeatResponse]]:
        """Listen to the beats of a process, over a dedicated connection.

        Raises:
            grpc.aio.AioRpcError: the stream broke, was refused or could not be opened; on iteration.
        """
        async with self._connected(endpoint) as stub:
            request = BeatRequest(every_milliseconds=round(BEAT_SECONDS * 1000))
            call = stub.Beat(request, timeout=LISTEN_SECONDS, metadata=self._metadata())
            try:
                yield call.__aiter__()
            finally:
                call.cancel()

    async def hears(self, endpoint: str) -> bool:
        """Return whether a process accepts a new connection now.

        gRPC's own threads accept it, not Python's: so a process whose interpreter or event loop is busy accepts. A
        process that is stopped, or whose machine is gone, does not. With TLS, an answer to our first message will do: a
        process whose certificate has expired lives, too.
        """
        target = parse_endpoint(endpoint, may_be_tls=True)
        if target.tls:
            return await _answers_handshake(target)
        async with open_channel(endpoint, options=CHANNEL_OPTIONS) as channel:
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
            async with self._connected(witness_endpoint) as stub:
                response: WitnessResponse | None = await stub.Witness(
                    request,
                    timeout=PROBE_SECONDS + ANSWER_SECONDS,
                    metadata=self._metadata(),
                )
        except (grpc.aio.AioRpcError, ValidationError):
            return TESTIMONY_NONE
        # gRPC returns None for an answer that it cannot parse.
        said = TESTIMONY_NONE if response is None else response.testimony
        return said if said in (TESTIMONY_HEARD, TESTIMONY_SILENT) else TESTIMONY_NONE

    def _metadata(self) -> tuple[tuple[str, str], ...]:
        claims = expiring(Capability.LIST, LabelSelector(), life_seconds=LISTEN_SECONDS)
        return tuple(self._auth.metadata(claims))

    @asynccontextmanager
    async def _connected(self, endpoint: str) -> AsyncIterator[PeerServiceAsyncStub]:
        async with open_channel(endpoint, self._tls, options=CHANNEL_OPTIONS) as channel:
            yield PeerServiceStub(channel)


async def _answers_handshake(target: ChannelTarget) -> bool:
    """Return whether a server answers the first message of TLS, whatever it answers; its certificate is not checked."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    host, _, port = target.address.rpartition(":")
    try:
        async with asyncio.timeout(PROBE_SECONDS):
            _, writer = await asyncio.open_connection(host.strip("[]"), int(port), ssl=context)
    except ssl.SSLError:
        return True  # An alert: no agreement, but an answer.
    except (OSError, TimeoutError, UnicodeError):
        return False
    writer.transport.abort()
    return True
