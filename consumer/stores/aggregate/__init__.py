"""Aggregates by key in columns of numpy, in a recovery log or on a disk that stays. Needs the extra `[aggregate]`."""

import datasketches  # noqa: F401 - missed first, because another extra has pyarrow too

from broadsheet.consumer.stores.aggregate.aggregates import Aggregates
from broadsheet.consumer.stores.aggregate.columns import (
    Count,
    Distinct,
    Last,
    Max,
    Min,
    Quantiles,
    Sum,
)
from broadsheet.consumer.stores.aggregate.store import AggregateStore

__all__ = [
    "AggregateStore",
    "Aggregates",
    "Count",
    "Distinct",
    "Last",
    "Max",
    "Min",
    "Quantiles",
    "Sum",
]
