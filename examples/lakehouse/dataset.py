"""Flights and the alerts that they make, by DuckDB from the file: the input, and what must come of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import duckdb
import pyarrow as pa

from broadsheet.examples.flights.messages import ALERT_LATE_MINUTES

ALERT_COLUMNS: Final = "aircraft, carrier, flight, origin, destination, scheduled_at, late_minutes"
_FLIGHTS: Final = """
SELECT
  coalesce(tailnum, 'unassigned-' || carrier) AS aircraft, carrier, flight, origin, dest AS destination,
  (epoch(time_hour) // 60)::BIGINT + minute AS scheduled_at,
  (epoch(time_hour) // 60)::BIGINT + minute + coalesce(dep_delay, 0) AS departs_at,
  dep_time IS NULL AS cancelled, air_time AS air_minutes, arr_delay AS late_minutes,
  make_date(year, month, day) AS date
FROM read_csv(?, nullstr = 'NA') WHERE make_date(year, month, day) < DATE '2013-01-01' + ?
"""
_DAY: Final = """
SELECT * EXCLUDE (date) FROM flights WHERE date = ? ORDER BY departs_at, scheduled_at, carrier, flight, origin
"""
_ALERTS: Final = f"SELECT {ALERT_COLUMNS} FROM flights WHERE late_minutes > {ALERT_LATE_MINUTES}"  # noqa: S608 - constants
_SURPLUS: Final = f"""
SELECT count(*) FROM (SELECT {ALERT_COLUMNS} FROM these EXCEPT ALL SELECT {ALERT_COLUMNS} FROM those)
"""  # noqa: S608 - constants


def flights_by_day(file: Path, days: int) -> Iterator[pa.Table]:
    """Yield the flights of each day, in the order in which they departed.

    Args:
        file: As `broadsheet.examples.flights.dataset.unpack_flights` makes it.
        days: Of 2013, from its first one on.
    """
    with _connected(file, days) as connection:
        dates = connection.sql("SELECT DISTINCT date FROM flights ORDER BY date").fetchall()
        for (date,) in dates:
            yield connection.sql(_DAY, params=[date]).to_arrow_table()


def expected_alerts(file: Path, days: int) -> pa.Table:
    """Return the alerts of these days, in one query that knows nothing of journals, shards or tables."""
    with _connected(file, days) as connection:
        return connection.sql(_ALERTS).to_arrow_table()


def differences(expected: pa.Table, found: pa.Table) -> tuple[int, int]:
    """Return how many alerts are missing, and how many are there too often, or differ."""
    return _surplus(expected, found), _surplus(found, expected)


def _surplus(these: pa.Table, those: pa.Table) -> int:
    with duckdb.connect() as connection:
        connection.register("these", these)
        connection.register("those", those)
        ((count,),) = connection.sql(_SURPLUS).fetchall()
        return int(count)


def _connected(file: Path, days: int) -> duckdb.DuckDBPyConnection:
    connection = duckdb.connect()
    connection.execute(f"CREATE TABLE flights AS {_FLIGHTS}", [str(file), days])
    return connection
