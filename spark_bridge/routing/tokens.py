"""Offsets of journals on their way between tasks: what one wrote, another wants to see reflected."""

from __future__ import annotations

from typing import TYPE_CHECKING

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
