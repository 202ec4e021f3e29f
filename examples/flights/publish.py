"""Publishes the flights, in the order in which they departed, from Spark into the journals of departures.

In slices of time, each a publication of its own: readers see the first while Spark still writes the next, and a run
that was interrupted publishes only the slices that are missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - everyone calls it so

from examples.flights.dataset import ORDER
from spark_bridge.publish import Publication, PublishTarget, publish_dataframe

_BOUNDS = tuple(datetime(2013, month, 1, tzinfo=UTC) for month in (4, 10))
"""Departures before the first, between two, and from the last on are a slice each."""


def publish_flights(flights: DataFrame, target: PublishTarget) -> Iterator[Publication]:
    """Publish slice after slice; yield each once readers can see it.

    Args:
        flights: As `read_flights` returns.
        target: Where to; the same for every run, so that slices which are there already are not published again.
    """
    minutes = [int(bound.timestamp()) // 60 for bound in _BOUNDS]
    for number, (begin, end) in enumerate(zip([None, *minutes], [*minutes, None], strict=True)):
        part = flights
        if begin is not None:
            part = part.where(F.col("departs_at") >= begin)
        if end is not None:
            part = part.where(F.col("departs_at") < end)
        yield publish_dataframe(
            part, target, publication=f"flights-{number}", key="aircraft", order_by=ORDER
        )
