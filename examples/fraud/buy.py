"""Buys: sends purchases of random cards, and prints what came back.

python -m broadsheet.examples.fraud.buy --purchases 1000

Kill a member meanwhile: calls wait for the next primary and are repeated with their ids, so that each counts once.
"""

from __future__ import annotations

import argparse
import os
import random
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from broadsheet.consumer import CONSUMER_ADDRESS_DEFAULT
from broadsheet.examples.fraud.fraud_pb2 import ScoreRequest, ScoreResponse
from broadsheet.examples.fraud.fraud_pb2_grpc import FraudServiceStub
from broadsheet.spark_bridge import TaskResolver

CALLERS = 16
COUNTRIES = ("DE", "FR", "US", "BR")


def purchases(count: int, *, cards: int, seed: int, begin_ms: int) -> Iterator[ScoreRequest]:
    """Yield purchases of random cards, a second apart."""
    chance = random.Random(seed)
    for number in range(count):
        yield ScoreRequest(
            purchase_id=f"{seed}-{number}",
            card=f"card-{chance.randrange(cards)}",
            cents=round(100 * 10 ** chance.uniform(0, 3)),
            country=chance.choice(COUNTRIES),
            at_ms=begin_ms + 1000 * number,
        )


def buy(resolver: TaskResolver, request: ScoreRequest) -> ScoreResponse:
    """Have a purchase scored and counted, once, however often the call is repeated on the way.

    Raises:
        grpc.RpcError: the purchase is refused, or no primary answered within the resolver's deadline.
    """
    answer: ScoreResponse = resolver.stub(request.card, FraudServiceStub).Score(request)
    return answer


def main() -> None:
    """Buy, and print the scores' mean and the slowest call."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--address", default=os.environ.get("CONSUMER_ADDRESS", CONSUMER_ADDRESS_DEFAULT)
    )
    parser.add_argument("--purchases", type=int, default=1000)
    parser.add_argument("--cards", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    resolver = TaskResolver(options.address.split(","), mapping="modulo")
    requests = purchases(
        options.purchases,
        cards=options.cards,
        seed=options.seed,
        begin_ms=int(time.time() * 1000),
    )
    with ThreadPoolExecutor(CALLERS) as callers:
        timed = list(callers.map(partial(_timed, resolver), requests))
    unusual = sum(answer.score >= 50 for answer, _ in timed)
    slowest = max(seconds for _, seconds in timed)
    print(f"{len(timed)} purchases, {unusual} unusual, slowest answer {slowest * 1000:.0f} ms")


def _timed(resolver: TaskResolver, request: ScoreRequest) -> tuple[ScoreResponse, float]:
    began = time.monotonic()
    return buy(resolver, request), time.monotonic() - began


if __name__ == "__main__":
    main()
