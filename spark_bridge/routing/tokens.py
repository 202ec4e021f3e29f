"""Offsets of journals on their way between tasks: what one wrote, another wants to see reflected."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TYPE_CHECKING

from consumer.protocol.auth import ClientAuth
from consumer.protocol.call_metadata import Token, merge_tokens

if TYPE_CHECKING:
    from pyspark.accumulators import Accumulator
    from pyspark.sql import SparkSession


def token_accumulator(spark: SparkSession) -> Accumulator[dict[str, int]]:
    """Return what tasks add their tokens to, and the driver takes the merged one from: `accumulator.value`.

    A task that is run again adds its token once more, which changes nothing: of two offsets the greater counts.
    """
    from pyspark.accumulators import AccumulatorParam

    class MergedTokens(AccumulatorParam[dict[str, int]]):
        def zero(self, value: dict[str, int]) -> dict[str, int]:
            del value
            return {}

        def addInPlace(  # noqa: N802 - Spark's name
            self, value1: dict[str, int], value2: Token
        ) -> dict[str, int]:
            return merge_tokens(value1, value2)

    return spark.sparkContext.accumulator({}, MergedTokens())


def token_of_heads(
    broker_address: str, journals: Iterable[str], *, auth: ClientAuth | None = None
) -> dict[str, int]:
    """Return where journals end at this moment: who has read through it has seen all that was written before.

    Args:
        broker_address: Of any broker.
        journals: Their names.
        auth: Signs the requests.

    Raises:
        JournalError: a journal does not exist, or no broker answered.
    """
    return asyncio.run(_heads(broker_address, tuple(journals), auth))


async def _heads(
    broker_address: str, journals: tuple[str, ...], auth: ClientAuth | None
) -> dict[str, int]:
    from consumer.journal.client import JournalClient

    async with JournalClient(broker_address, auth=auth) as client:
        return {journal: await client.write_head(journal) for journal in journals}
