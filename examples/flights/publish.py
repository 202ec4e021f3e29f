"""Publishes the flights, in the order in which they departed, from Spark into the journals of departures.

Each slice of time is a separate write: readers see the first while Spark still writes the next, and a run that was
interrupted publishes only the missing slices.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

from pyspark.sql import (
    DataFrame,
    functions as F,  # noqa: N812 - everyone calls it so
)

from broadsheet.examples.flights.dataset import ORDER
from broadsheet.spark_bridge import Services

WRITE_TASKS = 4
"""Each writes into all journals; beside the members there are so many slots in the demonstration."""
_BOUNDS = tuple(datetime(2013, month, 1, tzinfo=UTC) for month in (4, 10))
"""Departures before the first, between two, and from the last on are a slice each."""


def publish_flights(flights: DataFrame, services: Services, *, root: str) -> Iterator[int]:
    """Publish slice after slice; yield the number of its flights once readers can see them.

    Args:
        flights: As `read_flights` returns.
        services: Where the journals are, and the etcd that remembers what is published.
        root: Where it remembers; the same for every run, so that slices which are there already are not written again.
    """
    minutes = [int(bound.timestamp()) // 60 for bound in _BOUNDS]
    for number, (begin, end) in enumerate(zip([None, *minutes], [*minutes, None], strict=True)):
        part = flights
        if begin is not None:
            part = part.where(F.col("departs_at") >= begin)
        if end is not None:
            part = part.where(F.col("departs_at") < end)
        write_flights(part, services, root=root, publication=f"flights-{number}")
        yield part.count()


def write_flights(flights: DataFrame, services: Services, *, root: str, publication: str) -> None:
    """Write flights into the journals of departures, exactly once, however often it is called with one name.

    All flights of an aircraft go to one journal, and are written by one task in the order of their departure.
    """
    (
        flights.repartition(WRITE_TASKS, "aircraft")
        .sortWithinPartitions(*ORDER)
        .write.format("journal")
        .mode("append")
        .option("address", services.broker_address)
        .option("selector", "name:prefix=flights/departures/")
        .option("etcd", ",".join(services.etcd.endpoints))
        .option("root", root)
        .option("key", "aircraft")
        .option("publication", publication)
        .save()
    )
