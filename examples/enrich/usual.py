"""A pandas UDF of accounts' usual spending, in a separate module because pandas is slow to import."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
from pyspark.sql import Column
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.types import LongType

from broadsheet.examples.enrich.look_up import look_up, mean_cents
from broadsheet.spark_bridge import TaskResolver


def usual_cents_of(resolver: TaskResolver) -> Callable[[Column], Column]:
    """Return a function from a column of accounts to their usual spending, cents; null for one that never paid."""

    def usual(accounts: pd.Series) -> pd.Series:
        profiles = look_up(resolver, accounts)
        return accounts.map(lambda account: mean_cents(profiles[account])).astype("Int64")

    # `Any`: pyspark types it by pandas, which has no types.
    made: Any = pandas_udf(usual, LongType())  # type: ignore[call-overload]
    udf: Callable[[Column], Column] = made
    return udf
