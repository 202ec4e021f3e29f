"""Takes purchases, and answers when their effect is durable.

`serving_shard` does the routing: a call to the wrong member is redirected. The rest is a command, so the handler keeps
nothing: a caller whose member dies repeats the call at the next primary, with the same id.
"""

from __future__ import annotations

from typing import Any

import grpc

from broadsheet.consumer import Resolver, serving_shard
from broadsheet.consumer.commands import Commands
from broadsheet.examples.fraud import fraud_pb2_grpc
from broadsheet.examples.fraud.fraud_pb2 import ScoreRequest, ScoreResponse
from broadsheet.examples.fraud.rules import Purchase, Score
from broadsheet.runtime import ValidationError

# `Any`: grpc.aio passes each servicer method its context; requests and responses vary by method.
Context = Any


class FraudApi(fraud_pb2_grpc.FraudServiceServicer):
    """Serves `examples.fraud.v1.FraudService` for one member."""

    def __init__(self, resolver: Resolver, commands: Commands[Purchase, Score]) -> None:
        self._resolver = resolver
        self._commands = commands

    async def Score(  # noqa: N802 - gRPC's name
        self, request: ScoreRequest, context: Context
    ) -> ScoreResponse:
        """Score a purchase, and count it."""
        if not request.purchase_id:
            raise ValidationError("purchase_id", "expected an id, by which the call is repeated")
        purchase = Purchase(request.card, request.cents, request.country, request.at_ms)
        async with serving_shard(self._resolver, context) as resolution:
            answer = await self._commands.execute(
                resolution, purchase, command_id=request.purchase_id
            )
        return ScoreResponse(
            score=answer.score, purchases=answer.purchases, cents_total=answer.cents_total
        )


def register(
    server: grpc.aio.Server, resolver: Resolver, commands: Commands[Purchase, Score]
) -> None:
    """Add the service to a member's server."""
    fraud_pb2_grpc.add_FraudServiceServicer_to_server(FraudApi(resolver, commands), server)
