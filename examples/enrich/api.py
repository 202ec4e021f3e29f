"""Answers queries for accounts' usual spending, from the live state of the shard.

`serving_shard` does the routing: a call to the wrong member is redirected, and one that carries a token waits until the
shard has read through it. The messages need no fields for either.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import grpc

from broadsheet.consumer import BoundExceededError, Resolver, serving_shard
from broadsheet.examples.enrich import enrich_pb2_grpc
from broadsheet.examples.enrich.enrich_pb2 import LookUpRequest, LookUpResponse
from broadsheet.examples.enrich.store import Profile, ProfileStore

ACCOUNTS_MAX = 10_000
"""Most accounts in one question: some milliseconds of the shard's time."""

# `Any`: grpc.aio passes each servicer method its context; requests and responses vary by method.
Context = Any


class ProfileApi(enrich_pb2_grpc.ProfileServiceServicer):
    """Serves `examples.enrich.v1.ProfileService` for one member."""

    def __init__(self, resolver: Resolver) -> None:
        self._resolver = resolver

    async def LookUp(  # noqa: N802 - gRPC's name
        self, request: LookUpRequest, context: Context
    ) -> LookUpResponse:
        """Look up accounts of one shard."""
        if len(request.accounts) > ACCOUNTS_MAX:
            raise BoundExceededError(
                f"accounts: expected at most {ACCOUNTS_MAX}, got {len(request.accounts)}"
            )
        async with serving_shard(self._resolver, context) as resolution:
            return _answer(await resolution.call(ProfileStore.look_up, list(request.accounts)))


def register(server: grpc.aio.Server, resolver: Resolver) -> None:
    """Add the service to a member's server."""
    enrich_pb2_grpc.add_ProfileServiceServicer_to_server(ProfileApi(resolver), server)


def _answer(profiles: Sequence[Profile]) -> LookUpResponse:
    if not profiles:
        return LookUpResponse()
    payments, cents_total, cents_max, last_country = zip(*profiles, strict=True)
    return LookUpResponse(
        payments=payments,
        cents_total=cents_total,
        cents_max=cents_max,
        last_country=last_country,
    )
