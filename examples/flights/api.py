"""Answers queries for aircraft from the live state of their shard.

Any member may be asked: it answers if it is the shard's primary, and forwards once if it is not.
"""

from __future__ import annotations

from typing import Any

import grpc

from broadsheet.consumer import Resolver, Status, claims_of
from broadsheet.examples.flights import flights_pb2_grpc
from broadsheet.examples.flights.aircraft import Aircraft
from broadsheet.examples.flights.flights_pb2 import (
    Aircraft as AircraftMessage,
    ListAircraftRequest,
    ListAircraftResponse,
)
from broadsheet.examples.flights.store import FlightStore

_FORWARD_SECONDS_MAX = 30.0

# `Any`: grpc.aio passes each servicer method its context; requests and responses vary by method.
Context = Any


class FlightsApi(flights_pb2_grpc.FlightsServiceServicer):
    """Serves `examples.flights.v1.FlightsService` for one member."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver

    async def ListAircraft(  # noqa: N802 - gRPC's name
        self, request: ListAircraftRequest, context: Context
    ) -> ListAircraftResponse:
        """List the aircraft of one shard, the latest in total first."""
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
            response = ListAircraftResponse(status=resolution.status, header=resolution.header)
            if resolution.shard is not None:
                # On the shard's worker thread, between batches: no message is half applied.
                flights, slowest = await resolution.call(_ask, request.limit)
                response.flights = flights
                response.aircraft.extend(slowest)
            return response

    async def _forward(
        self, request: ListAircraftRequest, context: Context
    ) -> ListAircraftResponse:
        stub = flights_pb2_grpc.FlightsServiceStub(self._resolver.channel_to(request.header))
        credentials = [
            (name, value)
            for name, value in context.invocation_metadata()
            if name == "authorization"
        ]
        timeout_seconds = min(
            context.time_remaining() or _FORWARD_SECONDS_MAX, _FORWARD_SECONDS_MAX
        )
        answer: ListAircraftResponse = await stub.ListAircraft(
            request, timeout=timeout_seconds, metadata=credentials
        )
        return answer


def register(server: grpc.aio.Server, resolver: Resolver) -> None:
    """Add the service to a member's server."""
    flights_pb2_grpc.add_FlightsServiceServicer_to_server(FlightsApi(resolver), server)


def _ask(store: FlightStore, limit: int) -> tuple[int, list[AircraftMessage]]:
    """Return the number of flights, and the aircraft by minutes late."""
    ranked = sorted(store.aircraft.items(), key=lambda entry: (-entry[1].late_minutes, entry[0]))
    flights = sum(totals.flights for totals in store.aircraft.values())
    return flights, [_message(*entry) for entry in ranked[: limit or None]]


def _message(tail_number: str, totals: Aircraft) -> AircraftMessage:
    return AircraftMessage(
        aircraft=tail_number,
        flights=totals.flights,
        legs=totals.legs,
        late_minutes=totals.late_minutes,
        turnarounds=totals.turnarounds,
        ground_minutes=totals.ground_minutes,
        longest_gap_minutes=totals.longest_gap_minutes,
        alerts=totals.alerts,
    )
