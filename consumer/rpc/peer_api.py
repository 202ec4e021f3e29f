"""The Peer service: Beat, Witness.

Beats come from the event loop that serves everything else, so a process that is stopped, or whose loop is blocked, does
not beat even if its machine still answers on its connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, suppress
from typing import Any

from broadsheet.allocator.key_space import KeySpace
from broadsheet.allocator.model import MemberId
from broadsheet.consumer.registry.key_space import process_of
from broadsheet.consumer.resolver.hearing import ANSWER_SECONDS, PROBE_SECONDS, Hearing
from broadsheet.runtime.clock import Clock
from broadsheet.runtime.errors import BoundExceededError, ValidationError
from broadsheet.wire import peer_pb2_grpc
from broadsheet.wire.peer_pb2 import (
    TESTIMONY_HEARD,
    TESTIMONY_NONE,
    TESTIMONY_SILENT,
    BeatRequest,
    BeatResponse,
    WitnessRequest,
    WitnessResponse,
)

EVERY_MILLISECONDS_MIN, EVERY_MILLISECONDS_MAX = 50, 60_000
BEATS_MAX = 64
"""Maximum concurrent streams of beats; two members listen to each member."""
PROBES_MAX = 16
"""Maximum concurrent probes; a request beyond it gets no testimony."""

# `Any`: grpc.aio passes each servicer method its context.
Context = Any


class PeerApi(peer_pb2_grpc.PeerServiceServicer):
    """The `broadsheet.v1.PeerService` of one member."""

    def __init__(
        self, key_space: KeySpace, hearing: Hearing, *, stopping: asyncio.Event, clock: Clock
    ) -> None:
        """Create the service.

        Args:
            key_space: Holds the members' endpoints.
            hearing: Probes them.
            stopping: Set once this process leaves.
            clock: Measures time.
        """
        self._key_space = key_space
        self._hearing = hearing
        self._stopping = stopping
        self._clock = clock
        self._probes = 0
        self._listeners = 0

    async def Beat(  # noqa: N802 - gRPC's name
        self, request: BeatRequest, context: Context
    ) -> AsyncIterator[BeatResponse]:
        """Beat until this process leaves."""
        del context
        every = request.every_milliseconds
        if not EVERY_MILLISECONDS_MIN <= every <= EVERY_MILLISECONDS_MAX:
            raise ValidationError(
                "every_milliseconds",
                f"expected {EVERY_MILLISECONDS_MIN} to {EVERY_MILLISECONDS_MAX}, got {every}",
            )
        if self._listeners >= BEATS_MAX:
            raise BoundExceededError(f"expected at most {BEATS_MAX} streams of beats at a time")
        self._listeners += 1
        try:
            async with aclosing(self._beats(every / 1000)) as beats:
                async for beat in beats:
                    yield beat
        finally:
            self._listeners -= 1

    async def _beats(self, every_seconds: float) -> AsyncGenerator[BeatResponse, None]:
        number = 0
        while not self._stopping.is_set():
            number += 1
            yield BeatResponse(number=number)
            # The timeout is the interval between two beats; the event ends it early.
            with suppress(TimeoutError):
                async with asyncio.timeout(every_seconds):
                    await self._stopping.wait()

    async def Witness(  # noqa: N802 - gRPC's name
        self, request: WitnessRequest, context: Context
    ) -> WitnessResponse:
        """Tell whether a member accepts a connection from us now."""
        del context
        member = self._key_space.members.get(MemberId(request.zone, request.suffix))
        # Another create revision is another life of the member, about which we cannot testify.
        is_known = member is not None and member.kv.create_revision == request.create_revision
        if member is None or not is_known or self._probes >= PROBES_MAX:
            return WitnessResponse(testimony=TESTIMONY_NONE)
        self._probes += 1
        asked = self._clock.monotonic_seconds()
        try:
            heard = await self._hearing.hears(process_of(member).process_spec.endpoint)
        finally:
            self._probes -= 1
        spent_seconds = self._clock.monotonic_seconds() - asked
        if not heard and spent_seconds > PROBE_SECONDS + ANSWER_SECONDS / 2:
            # Our own loop was blocked, so we may have missed the answer.
            return WitnessResponse(testimony=TESTIMONY_NONE)
        return WitnessResponse(testimony=TESTIMONY_HEARD if heard else TESTIMONY_SILENT)
